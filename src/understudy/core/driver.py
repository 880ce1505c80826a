"""The driver: carries out what a host asks for.

A process, a random schedule, an exploration and a simulation in virtual time differ only in their `Ports`:
what a network, an engine, a disk and a clock are to them. The driver is the same.

`handle` may be called from within a port only after the driver has returned to its caller: ports queue what
happens to them, on an actor, a schedule or a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Protocol

from understudy.core.bucket import Bucket, BucketId
from understudy.core.host.host import Host
from understudy.core.host.parcels import (
    Await,
    Cut,
    Dispatch,
    FetchState,
    HoldState,
    HostEvent,
    Leave,
    Lend,
    Parcel,
    ParcelFrom,
    ReadAgain,
    Save,
    SinkRests,
    Snap,
    Start,
    StartHeld,
    Tell,
    Unlend,
    Work,
)
from understudy.core.replica.events import CopyState
from understudy.core.shape.partition import Copy
from understudy.core.timers import SetTimer
from understudy.core.view.events import Report


class Ports(Protocol):
    """What a host needs of its surroundings. No call may block, and none may call the driver back."""

    def send(self, node: str, parcel: Parcel, cause: int) -> None:
        """Put a parcel on the connection to this process, behind all sent before. It may get lost only
        together with the connection.
        """

    def cut(self, node: str, serial: int, why: str, breach: bool) -> None:
        """Close that connection to this process; `PeerDown` follows unless another took its place.

        With `breach` the process broke the protocol, and should not be let in again at once.
        """

    def start(self, copy: Copy, epoch: int) -> None:
        """Set up an engine, from the store's newest snapshot if there is one; `Began` follows."""

    def wait(self, copy: Copy, epoch: int) -> None:
        """The copy is a standby: it will fetch its state."""

    def fetch(self, wanted: FetchState) -> None:
        """Fetch a snapshot from another process and start an engine from it; `Installed` or `FetchFailed`
        follows, and `Progress` meanwhile. One that is to be held starts nothing; `Received` follows.
        """

    def hold(self, copy: Copy, epoch: int, attempt: int) -> None:
        """Keep the snapshot of this attempt, which was received, in the place of the one before."""

    def start_held(self, copy: Copy, epoch: int) -> None:
        """Start an engine from the snapshot that is held for this copy; `Began` follows."""

    def leave(self, copy: Copy, epoch: int) -> None:
        """End the copy's engine and forget its snapshots."""

    def process(self, copy: Copy, epoch: int, buckets: tuple[Bucket, ...]) -> None:
        """Feed a group to the engine, or to the sink; `Produced` and `Processed` follow."""

    def snapshot(self, copy: Copy, epoch: int, version: int) -> None:
        """Snapshot the engine, which stands still; `SnapshotTaken` or `SnapshotFailed` follows."""

    def lend(self, copy: Copy, epoch: int, state: CopyState) -> None:
        """Keep the snapshot of the state's version, and the state, for a standby's `fetch` or for `save`."""

    def unlend(self, copy: Copy, epoch: int, version: int) -> None:
        """Forget that snapshot."""

    def save(self, copy: Copy, epoch: int, version: int) -> None:
        """Put that snapshot, and its state, into the store; `Saved` or `SaveFailed` follows."""

    def read_again(self, source: Copy, consumer: Copy, after: BucketId, bytes_max: int) -> None:
        """Read a source's log after this number, as the consumer takes it; `LogRead` follows, with at least
        one bucket.
        """

    def rests(self, sink: Copy, through: BucketId) -> None:
        """This sink, which was told to rest, delivers nothing after this number."""

    def report(self, report: Report) -> None:
        """Report this to the controller, sooner or later."""

    def timer(self, key: Hashable, delay_ms: int) -> None:
        """`TimerFired(key)` follows after the delay, unless the timer is set again before."""


class Driver:
    """A host with its ports."""

    def __init__(self, host: Host, ports: Ports) -> None:
        self.host = host
        self._ports = ports
        self._own: deque[ParcelFrom] = deque()

    def handle(self, event: HostEvent) -> None:
        """Let the host handle an event, and then every parcel that it sent to itself because of it."""
        self._carry_out(event)
        while self._own:
            self._carry_out(self._own.popleft())

    def _carry_out(self, event: HostEvent) -> None:
        host, ports = self.host, self._ports
        for instruction in host.handle(event):
            match instruction:
                case Dispatch(node, parcel):
                    if node == host.name:
                        self._own.append(ParcelFrom(node, 0, parcel, host.events_handled))
                    else:
                        ports.send(node, parcel, host.events_handled)
                case Work(copy, epoch, buckets):
                    ports.process(copy, epoch, buckets)
                case SetTimer(key, delay_ms):
                    ports.timer(key, delay_ms)
                case Start(copy, epoch):
                    ports.start(copy, epoch)
                case Await(copy, epoch):
                    ports.wait(copy, epoch)
                case FetchState():
                    ports.fetch(instruction)
                case HoldState(copy, epoch, attempt):
                    ports.hold(copy, epoch, attempt)
                case StartHeld(copy, epoch):
                    ports.start_held(copy, epoch)
                case Leave(copy, epoch):
                    ports.leave(copy, epoch)
                case Snap(copy, epoch, version):
                    ports.snapshot(copy, epoch, version)
                case Lend(copy, epoch, state):
                    ports.lend(copy, epoch, state)
                case Unlend(copy, epoch, version):
                    ports.unlend(copy, epoch, version)
                case Save(copy, epoch, version):
                    ports.save(copy, epoch, version)
                case ReadAgain(source, consumer, after, bytes_max):
                    ports.read_again(source, consumer, after, bytes_max)
                case SinkRests(sink, through):
                    ports.rests(sink, through)
                case Tell(report):
                    ports.report(report)
                case Cut(node, serial, why, breach):
                    ports.cut(node, serial, why, breach)
