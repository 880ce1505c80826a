"""The connections of a host to the other processes of its flow: which stand, and which are missed.

Of two connections to one process the newer one counts, which has the greater serial. A host is always
connected to itself.

*A view goes ahead* of the first parcel that a process gets after its sender has turned to that view, once for
every connection. A process that sent a view itself is not told that view again.

*Suspicion.* A process that this host needs and cannot reach is reported to the controller: `suspect_ms` after
its connection broke, unless it stands again by then, and `absent_ms` after it was first needed if it never
stood. A peer that breaks the protocol is cut off. If it does so again and again, its connection is made later
each time, until it is missed like any other (`runtime/transport/breaches.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from understudy.core.host.limits import Timing
from understudy.core.host.parcels import Cut, Dispatch, HostInstruction, Parcel, Relay, Tell
from understudy.core.host.places import Places
from understudy.core.timers import SetTimer
from understudy.core.view.events import CopySuspected

_REPLACED = "a newer connection took its place"


class Connections:
    """`up` holds the serial of each connection that stands, `awaited` the processes with a timer running."""

    def __init__(self, name: str, places: Places, timing: Timing) -> None:
        self.name = name
        self.places = places
        self.timing = timing
        self.up: dict[str, int] = {name: 0}
        self.awaited: set[str] = set()
        #: The greatest serial of a connection to each process so far.
        self._newest: dict[str, int] = {}
        #: The newest view that each process has from this one, or this one from it.
        self._told_view: dict[str, int] = {}

    def stands(self, node: str) -> bool:
        return node in self.up

    def counts(self, node: str, serial: int) -> bool:
        """Whether this is the connection to that process that stands."""
        return self.up.get(node) == serial

    # --- what comes and goes -----------------------------------------------------------------------------

    def refused(self, node: str, serial: int) -> Cut | None:
        """The end of a connection that may not stand; None if it may."""
        if node == self.name:
            return Cut(node, serial, f"{node} is the name of this process", breach=True)
        if serial <= self._newest.get(node, 0):
            # Its caller gave this one up before it made the next; it was only slow to arrive.
            return Cut(node, serial, _REPLACED)
        return None

    def replaced(self, node: str) -> Cut:
        """The end of the connection that stands, for a newer one."""
        return Cut(node, self.up[node], _REPLACED)

    def made(self, node: str, serial: int) -> None:
        self._newest[node] = self.up[node] = serial
        self._told_view.pop(node, None)

    def gone(self, node: str) -> None:
        del self.up[node]

    # --- what is sent ------------------------------------------------------------------------------------

    def dispatch(self, node: str, parcel: Parcel) -> list[Dispatch]:
        """The parcel, behind the view if the process may not know it; nothing without a connection."""
        if node not in self.up:
            return []
        view = self.places.view
        if view is None or node == self.name or self._told_view.get(node, 0) >= view.epoch:
            return [Dispatch(node, parcel)]
        self._told_view[node] = view.epoch
        return [Dispatch(node, Relay(view)), Dispatch(node, parcel)]

    def knows_view(self, node: str, epoch: int) -> None:
        """It need not be told what it has told."""
        self._told_view[node] = max(self._told_view.get(node, 0), epoch)

    # --- what is missed ----------------------------------------------------------------------------------

    def await_missing(self, needed: Iterable[str]) -> list[SetTimer]:
        """Wait for those of these processes that are neither connected nor awaited."""
        missing = set(needed) - self.up.keys() - self.awaited
        return [self._await(node, self.timing.absent_ms) for node in sorted(missing)]

    def await_again(self, node: str) -> SetTimer:
        """Wait for a process whose connection broke."""
        return self._await(node, self.timing.suspect_ms)

    def waited(self, node: str, *, needed: bool) -> list[HostInstruction]:
        """The time to wait for this process is over."""
        self.awaited.discard(node)
        if not needed or node in self.up:
            return []
        return [*self._suspicions(node), self._await(node, self.timing.absent_ms)]

    def _await(self, node: str, delay_ms: int) -> SetTimer:
        self.awaited.add(node)
        return SetTimer(("absent", node), delay_ms)

    def _suspicions(self, node: str) -> list[Tell]:
        view = self.places.view
        if view is None:
            # It has no seat that could be reported.
            return []
        return [Tell(CopySuspected(copy, view.seat(copy).epoch, self.name)) for copy in view.copies_on(node)]
