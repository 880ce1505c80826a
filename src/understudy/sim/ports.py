"""What a simulated process does for its host: the ports of `core.driver`, without threads and I/O.

Some of what a host asks for is noted at the copy's `SimWorker`, and is a later choice of the world: to start
an engine, to work on a group, to take a snapshot. The rest goes out at once, as an effect on the world around
the process. The effects of an action depend on nothing but the process and the action.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.edge.messages import Ack
from understudy.core.host.host import Host
from understudy.core.host.parcels import Attach, FetchState, Parcel, Say
from understudy.core.replica.events import CopyState
from understudy.core.shape.partition import Copy
from understudy.core.view.events import Report
from understudy.sim.checkers import demand
from understudy.sim.disk import Disk
from understudy.sim.observing import Observer
from understudy.sim.worker import Kept, SimWorker


@dataclass(frozen=True, slots=True)
class Sent:
    """A parcel for the connection with this serial."""

    node: str
    serial: int
    parcel: Parcel


@dataclass(frozen=True, slots=True)
class CutOff:
    """That connection is closed from this side."""

    node: str
    serial: int


@dataclass(frozen=True, slots=True)
class Reported:
    report: Report


@dataclass(frozen=True, slots=True)
class RestsThrough:
    """A sink rests, so that another version of the flow may deliver what follows."""

    sink: Copy
    through: BucketId


@dataclass(frozen=True, slots=True)
class DeliveredThrough:
    """A sink holds everything through this number, on disk."""

    sink: Copy
    through: BucketId


Effect = Sent | CutOff | Reported | RestsThrough | DeliveredThrough


class SimPorts:
    """Of one process. An end of the flow, a source or a sink, has a worker as soon as it has work."""

    def __init__(self, host: Host, observers: tuple[Observer, ...], disk: Disk | None) -> None:
        self.name = host.name
        self.host = host
        self.observers = observers
        self.disk = disk
        self.workers: dict[Copy, SimWorker] = {}
        self.timers: dict[Hashable, int] = {}
        #: Those that the last action has set.
        self.fresh_timers: list[Hashable] = []
        #: The serial of the connection that stands to each process.
        self.up: dict[str, int] = {}
        #: What is to be read again of a log: for which consumer, and after which number.
        self.rereading: list[tuple[Copy, Copy, BucketId]] = []
        self._out: list[Effect] = []

    def send(self, node: str, parcel: Parcel, cause: int) -> None:
        match parcel:
            case Say(copy, _, _, Ack(through)) | Attach(copy, _, _, _, _, through):
                worker = self._worker(copy)
                worker.acked = max(worker.acked, through)
        demand(node in self.up, "sound", f"{self.name} sends to {node}, to which no connection stands")
        self._out.append(Sent(node, self.up[node], parcel))

    def cut(self, node: str, serial: int, why: str, breach: bool) -> None:
        demand(not breach, "sound", f"{self.name} cuts off {node}: {why}\n{self.host.story()}")
        if self.up.get(node) == serial:
            del self.up[node]
        self._out.append(CutOff(node, serial))

    def start(self, copy: Copy, epoch: int) -> None:
        self.workers[copy] = SimWorker(copy, epoch, starting=True)

    def wait(self, copy: Copy, epoch: int) -> None:
        self.workers[copy] = SimWorker(copy, epoch)

    def hold(self, copy: Copy, epoch: int, attempt: int) -> None:
        worker = self.workers[copy]
        worker.held, worker.fetched, worker.fetching = worker.fetched, None, None
        assert worker.held is not None
        worker.given = worker.held.state.through
        for observer in self.observers:
            observer.installed(self.name, copy, worker.held.state, worker.held.engine)

    def start_held(self, copy: Copy, epoch: int) -> None:
        self.workers[copy].resuming = True

    def fetch(self, wanted: FetchState) -> None:
        worker = self.workers[wanted.copy]
        worker.fetching, worker.fetched, worker.hangs = wanted, None, False

    def leave(self, copy: Copy, epoch: int) -> None:
        worker = self.workers.pop(copy)
        demand(worker.epoch == epoch, "sound", f"{copy} left seat {epoch} and sat in {worker.epoch}")

    def process(self, copy: Copy, epoch: int, buckets: tuple[Bucket, ...]) -> None:
        worker = self._worker(copy)
        demand(not worker.group, "sound", f"{copy} on {self.name} is given a group while it works on one")
        if copy.partition not in self.host.topology.ends:
            for observer in self.observers:
                observer.handed(self.name, copy, worker.given, buckets)
        worker.group, worker.given = buckets, buckets[-1].number

    def snapshot(self, copy: Copy, epoch: int, version: int) -> None:
        worker = self.workers[copy]
        demand(worker.snapping is None, "sound", f"{copy} on {self.name} takes two snapshots at once")
        worker.snapping = version

    def lend(self, copy: Copy, epoch: int, state: CopyState) -> None:
        worker = self.workers[copy]
        engine = worker.taken.pop(state.version)
        for observer in self.observers:
            observer.snapshot(self.name, copy, state, engine)
        worker.lent[state.version] = Kept(state, engine)

    def unlend(self, copy: Copy, epoch: int, version: int) -> None:
        worker = self.workers[copy]
        demand(worker.saving != version, "sound", f"{copy} on {self.name} drops the snapshot that it saves")
        worker.taken.pop(version, None)
        worker.lent.pop(version, None)

    def save(self, copy: Copy, epoch: int, version: int) -> None:
        worker = self.workers[copy]
        demand(worker.saving is None, "sound", f"{copy} on {self.name} saves two snapshots at once")
        worker.saving = version

    def read_again(self, source: Copy, consumer: Copy, after: BucketId, bytes_max: int) -> None:
        self.rereading.append((source, consumer, after))

    def rests(self, sink: Copy, through: BucketId) -> None:
        self._out.append(RestsThrough(sink, through))

    def report(self, report: Report) -> None:
        self._out.append(Reported(report))

    def timer(self, key: Hashable, delay_ms: int) -> None:
        self.timers[key] = delay_ms
        self.fresh_timers.append(key)

    def _worker(self, copy: Copy) -> SimWorker:
        worker = self.workers.get(copy)
        if worker is None:
            # An end of the flow is seated without a word.
            worker = self.workers[copy] = SimWorker(copy, 0)
            if self.disk is not None:
                worker.given = worker.acked = self.disk.delivered.get(copy.partition.name, NOTHING)
        return worker
