"""Hosting: drives a `core.host.Host` in a process, on one actor, over the mesh.

What a host asks of the network is done here. What it asks for its copies (an engine, a group to process, a
snapshot to take) is the owner's to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from understudy.core.flux_events import CopySuspected
from understudy.core.flux_view import FluxView
from understudy.core.host import Host
from understudy.core.instructions import Instruction
from understudy.core.parcels import (
    Carry,
    Cut,
    Dispatch,
    HostEvent,
    Inside,
    LeaveSeat,
    Parcel,
    ParcelFrom,
    PeerDown,
    PeerUp,
    TakeSeat,
    ViewSeen,
)
from understudy.core.partition import Copy
from understudy.core.view import Status
from understudy.runtime.actor import Actor
from understudy.runtime.coordination.reports import FluxReported
from understudy.runtime.mesh import Mesh
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.wire import Frame

log = logging.getLogger(__name__)

#: A neighbour that cannot be reached for this many times the silence limit is reported, alive or not.
ABSENT_SILENCES = 2


class HostOwner(Protocol):
    """What a host's process does for its copies. All calls come on the actor and must not block."""

    def take_seat(self, copy: Copy, epoch: int, status: Status) -> None: ...

    def leave_seat(self, copy: Copy, epoch: int) -> None: ...

    def carry(self, copy: Copy, epoch: int, instruction: Instruction) -> None: ...

    def noticed(self, node: str, parcel: Parcel) -> None:
        """This parcel is about to be handled."""

    def handled(self) -> None:
        """An event was handled and all that came of it is done."""

    def stats(self, node: str, frame: Frame) -> None: ...

    def peer_lost(self, node: str) -> None:
        """The connection to another process broke."""

    def report(self, event: FluxReported) -> None: ...


class Hosting:
    """A host on its actor. Methods without a leading underscore may be called from any thread, except
    `handle`, which belongs to the actor.
    """

    def __init__(
        self,
        host: Host,
        settings: RunSettings,
        actor: Actor,
        owner: HostOwner,
        address_of: Callable[[str], str | None],
    ) -> None:
        self.host = host
        self._settings = settings
        self._actor = actor
        self._owner = owner
        self._needs_of = 0
        self.mesh = Mesh(host.name, settings, actor, self, address_of)

    def on_view(self, view: FluxView) -> None:
        self._actor.post(self.handle, ViewSeen(view))

    def on_tick(self) -> None:
        """Call it about once a second."""
        self._actor.post(self._report_absent)

    def post(self, event: HostEvent) -> None:
        self._actor.post(self.handle, event)

    def inside(self, copy: Copy, epoch: int, *events: object) -> None:
        """Things happened to a copy of this process."""
        self._actor.post(self.handle, Inside(copy, epoch, events))

    def handle(self, event: HostEvent) -> None:
        for instruction in self.host.handle(event):
            match instruction:
                case Dispatch(node, parcel):
                    if node == self.host.name:
                        self._actor.post(self.handle, ParcelFrom(node, parcel))
                    else:
                        self.mesh.send(node, parcel)
                case Carry(copy, epoch, inner):
                    self._owner.carry(copy, epoch, inner)
                case TakeSeat(copy, epoch, status):
                    self._owner.take_seat(copy, epoch, status)
                case LeaveSeat(copy, epoch):
                    self._owner.leave_seat(copy, epoch)
                case Cut(node, why):
                    log.warning("%s broke the protocol: %s", node, why)
                    self.mesh.cut(node, f"it broke the protocol: {why.splitlines()[0]}")
        if isinstance(event, ViewSeen | ParcelFrom):
            self._follow_needs()
        self._owner.handled()

    def _follow_needs(self) -> None:
        epoch = self.host.view.epoch if self.host.view is not None else 0
        if epoch != self._needs_of:
            self._needs_of = epoch
            self.mesh.want(self.host.needed)

    # --- what the mesh tells -----------------------------------------------------------------------------

    def peer_up(self, node: str) -> None:
        self.handle(PeerUp(node))

    def peer_down(self, node: str) -> None:
        self.handle(PeerDown(node))
        self._owner.peer_lost(node)

    def parcel_arrived(self, node: str, parcel: Parcel) -> None:
        self._owner.noticed(node, parcel)
        self.handle(ParcelFrom(node, parcel))

    def frame_arrived(self, node: str, frame: Frame) -> None:
        self._owner.stats(node, frame)

    def _report_absent(self) -> None:
        """Neighbours that stay out of reach are suspected: what is kept for them would grow for ever."""
        view = self.host.view
        for node in self.mesh.absent(ABSENT_SILENCES * self._settings.silence_s):
            for copy in view.copies_on(node) if view is not None else []:
                assert view is not None
                log.warning("%s on %s is not to be reached", copy, node)
                self._owner.report(CopySuspected(copy, view.seat(copy).epoch, self.host.name))
