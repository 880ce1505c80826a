"""Hosting: the ports of a `core.host` that every process has: its actor, its connections, its clock.

The gateway's boundary and a node's copies add what is their own: sources and sinks, or engines. Everything
that touches the host runs on one actor.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable

from understudy.core.bucket import Bucket, BucketId
from understudy.core.driver import Driver
from understudy.core.host.host import Host
from understudy.core.host.parcels import (
    FetchState,
    HostEvent,
    Inside,
    Parcel,
    ParcelFrom,
    PeerDown,
    PeerUp,
    ViewSeen,
)
from understudy.core.replica.events import CopyState
from understudy.core.shape.partition import Copy
from understudy.core.timers import TimerFired
from understudy.core.view.events import Report
from understudy.core.view.view import View
from understudy.runtime.actor import Actor
from understudy.runtime.mesh import Mesh
from understudy.runtime.settings import RunSettings
from understudy.runtime.timers import Timers
from understudy.runtime.transport.wire import Frame

log = logging.getLogger(__name__)


class Hosting(ABC):
    """A host on its actor. Public methods may be called from any thread, except those of `core.driver.Ports`
    and those that say so, which belong to the actor.
    """

    def __init__(
        self,
        host: Host,
        settings: RunSettings,
        actor: Actor,
        address_of: Callable[[str], str | None],
        tell: Callable[[Report], None],
    ) -> None:
        self.host = host
        self._actor = actor
        self._tell = tell
        self._needs_of = 0
        self._ended = False
        self._driver = Driver(host, self)
        self._timers = Timers(lambda key: self.post(TimerFired(key)))
        self.mesh = Mesh(host.name, settings, actor, self, address_of)

    def on_view(self, view: View) -> None:
        self.post(ViewSeen(view))

    def post(self, event: HostEvent) -> None:
        self._actor.post(self.handle, event)

    def inside(self, copy: Copy, epoch: int, event: object) -> None:
        """Something happened to a copy of this process."""
        self.post(Inside(copy, epoch, event))

    def end(self) -> None:
        """Close the connections. Called by the actor, or when it has ended."""
        self._ended = True
        self._timers.end()
        self.mesh.end()

    # --- on the actor ------------------------------------------------------------------------------------

    def handle(self, event: HostEvent) -> None:
        """Let the host handle an event. Belongs to the actor."""
        if self._ended:
            return
        self._driver.handle(event)
        epoch = self.host.view.epoch if self.host.view is not None else 0
        if epoch != self._needs_of:
            self._needs_of = epoch
            self.mesh.want(self.host.needed)
        self.handled(event)

    def handled(self, event: HostEvent) -> None:  # noqa: B027 - a hook
        """An event was handled and everything that the host asked for is done."""

    # --- called by the mesh, on the actor ----------------------------------------------------------------

    def peer_up(self, node: str, serial: int) -> None:
        self.handle(PeerUp(node, serial))

    def peer_down(self, node: str, serial: int) -> None:
        self.handle(PeerDown(node, serial))

    def parcel_arrived(self, node: str, serial: int, parcel: Parcel, cause: int) -> None:
        self.handle(ParcelFrom(node, serial, parcel, cause))

    def frame_arrived(self, node: str, frame: Frame) -> None:  # noqa: B027 - a hook
        """A frame that is not of the protocol: one of `mesh.BESIDE`."""

    # --- ports -------------------------------------------------------------------------------------------

    def send(self, node: str, parcel: Parcel, cause: int) -> None:
        self.mesh.send(node, parcel, cause)

    def cut(self, node: str, serial: int, why: str, breach: bool) -> None:
        log.warning("the connection to %s is cut: %s", node, why)
        self.mesh.cut(node, serial, why.splitlines()[0], breach)

    def report(self, report: Report) -> None:
        log.info("reports %s", report)
        self._tell(report)

    def timer(self, key: Hashable, delay_ms: int) -> None:
        self._timers.set(key, delay_ms)

    def rests(self, sink: Copy, through: BucketId) -> None:
        raise AssertionError(f"{sink} is at the gateway")

    @abstractmethod
    def process(self, copy: Copy, epoch: int, buckets: tuple[Bucket, ...]) -> None: ...

    @abstractmethod
    def start(self, copy: Copy, epoch: int) -> None: ...

    @abstractmethod
    def wait(self, copy: Copy, epoch: int) -> None: ...

    @abstractmethod
    def fetch(self, wanted: FetchState) -> None: ...

    @abstractmethod
    def hold(self, copy: Copy, epoch: int, attempt: int) -> None: ...

    @abstractmethod
    def start_held(self, copy: Copy, epoch: int) -> None: ...

    @abstractmethod
    def leave(self, copy: Copy, epoch: int) -> None: ...

    @abstractmethod
    def snapshot(self, copy: Copy, epoch: int, version: int) -> None: ...

    @abstractmethod
    def lend(self, copy: Copy, epoch: int, state: CopyState) -> None: ...

    @abstractmethod
    def unlend(self, copy: Copy, epoch: int, version: int) -> None: ...

    @abstractmethod
    def save(self, copy: Copy, epoch: int, version: int) -> None: ...

    @abstractmethod
    def read_again(self, source: Copy, consumer: Copy, after: BucketId, bytes_max: int) -> None: ...
