"""A simulated process: a host with its driver, and the ports of `core.driver` around it.

A process is an actor. Only `act(action)` changes it, and it answers with the effects on the world around it:
parcels sent, connections cut, reports. The effects of an action depend on nothing but the process and the
action, so an exploration may keep the answer.

    ("event", e)                 a parcel, a view, a connection that came or went
    ("start", copy, kept)        an engine stands ready, from this saved state or empty
    ("produce", copy)            an engine puts out what its group completed; a sink has written its group
    ("finish", copy)             the engine stands still again
    ("snap", copy, ok)           a snapshot is taken, or failed
    ("resume", copy)             a backup's engine stands ready, from the snapshot that it holds
    ("saved", copy, floor)       a snapshot is in the vault, which keeps nothing older; None: it failed
    ("reread", source, consumer, after)
                                 the log's next bucket is read again for a consumer
    ("fetched", copy, kept)      a state has arrived completely; None: it could not be fetched
    ("install", copy, ok)        an engine has started from it, or would not
    ("feed", source)             the next bucket of a source, read again from the log or sealed now
    ("timer", key)               a timer fires

The gateway's `Disk` outlives it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.driver import Driver
from understudy.core.edge.messages import Ack
from understudy.core.edge.outlet import Outlet
from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.host.host import Host
from understudy.core.host.parcels import (
    Attach,
    Began,
    FetchState,
    Inside,
    Parcel,
    PeerDown,
    PeerUp,
    Say,
)
from understudy.core.replica.events import (
    CopyState,
    FetchFailed,
    Installed,
    LogRead,
    Processed,
    Produced,
    Progress,
    Received,
    Saved,
    SaveFailed,
    SnapshotFailed,
    SnapshotTaken,
)
from understudy.core.shape.partition import Copy, Partition
from understudy.core.timers import TimerFired
from understudy.core.view.events import Report
from understudy.sim.checkers import Violation, demand
from understudy.sim.flow import Flow
from understudy.sim.observing import Observer
from understudy.sim.worker import Kept, SimWorker

Action = tuple[Hashable, ...]


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


@dataclass(eq=False, slots=True)
class Disk:
    """What a gateway finds when it starts again: the logs of its sources and what its sinks hold."""

    sealed: dict[str, int]
    trimmed: dict[str, BucketId]
    #: How much of each source's log is gone. Where state is saved, it goes further back than memory.
    forgotten: dict[str, BucketId]
    delivered: dict[str, BucketId]

    @classmethod
    def empty(cls, sources: Iterable[str], sinks: Iterable[str]) -> Disk:
        names, nothing = list(sources), dict.fromkeys(sources, NOTHING)
        return cls(dict.fromkeys(names, 0), nothing, dict(nothing), dict.fromkeys(sinks, NOTHING))

    def begins_after(self, source: str) -> BucketId:
        """The number after which the memory of a gateway that starts begins."""
        return self.trimmed[source]

    def unread(self, source: str, inputs: Sequence[Bucket]) -> int:
        """The first bucket that a gateway which starts must read again from a source's log."""
        begins_after = self.begins_after(source)
        return sum(bucket.number <= begins_after for bucket in inputs)

    def trim(self, source: str, trimmed: BucketId, needed: BucketId) -> None:
        """All live copies have a source's buckets through `trimmed`, and no copy will ever ask for anything
        through `needed` again.
        """
        self.trimmed[source] = max(self.trimmed[source], trimmed)
        self.forgotten[source] = max(self.forgotten[source], min(self.trimmed[source], needed))


class Process:
    """A node, or the gateway, which alone has a disk."""

    def __init__(
        self, host: Host, flow: Flow, observers: tuple[Observer, ...] = (), disk: Disk | None = None
    ) -> None:
        self.name = host.name
        self.host = host
        self.drive_again()
        self.flow = flow
        self.observers = observers
        self.disk = disk
        self.workers: dict[Copy, SimWorker] = {}
        self.timers: dict[Hashable, int] = {}
        #: Those that the last action has set.
        self.fresh_timers: list[Hashable] = []
        self.up: dict[str, int] = {}
        #: How many buckets of each source this gateway has put in.
        self.put: dict[str, int] = {}
        if disk is not None:
            self.put = {source: disk.unread(source, inputs) for source, inputs in flow.inputs.items()}
        #: What its outlets have dropped, and for whom: to know when to look whether it was needed.
        self.dropped: tuple[Hashable, ...] = ()
        #: Its outlets that have a gap.
        self.gaps: frozenset[str] = frozenset()
        #: What is to be read again of a log: for which consumer, and after which number.
        self.rereading: list[tuple[Copy, Copy, BucketId]] = []
        #: The number of its state, in an exploration.
        self.number = 0
        self._out: list[Effect] = []

    def drive_again(self) -> None:
        """A driver knows its ports: a copy of a process needs one of its own."""
        self.driver = Driver(self.host, self)

    @property
    def view_epoch(self) -> int:
        return self.host.view.epoch if self.host.view is not None else 0

    def has_state(self, copy: Copy) -> bool:
        """Whether this copy's state is here: in its engine, or fetched and not installed yet."""
        worker, resident = self.workers.get(copy), self.host.residents.get(copy)
        fetched = worker is not None and worker.fetched is not None
        return fetched or (resident is not None and resident.machine.holds)

    # --- the one way in ----------------------------------------------------------------------------------

    def act(self, action: Action) -> tuple[Effect, ...]:
        self._out, self.fresh_timers = [], []
        try:
            self._act(action)
            if self.observers:
                self.host.check()
        except (PeerError, BrokenInvariant) as error:
            raise Violation("sound", f"{self.name} on {action}: {error}") from error
        self.trim_logs()
        if self.observers:
            self._check()
        out, self._out = tuple(self._out), []
        return out

    def _act(self, action: Action) -> None:
        match action:
            case "event", (PeerUp(node, serial) as event):
                self.up[node] = max(serial, self.up.get(node, 0))
                self.driver.handle(event)
            case "event", (PeerDown(node, serial) as event):
                if self.up.get(node) == serial:
                    del self.up[node]
                self.driver.handle(event)
            case "event", event:
                self.driver.handle(event)  # type: ignore[arg-type]
            case "start", Copy() as copy, kept:
                self._start(self.workers[copy], kept)  # type: ignore[arg-type]
            case "resume", Copy() as copy:
                worker = self.workers[copy]
                worker.resuming = False
                self._start(worker, worker.held)
            case "saved", Copy() as copy, floor:
                self._saved(self.workers[copy], floor)  # type: ignore[arg-type]
            case "reread", Copy() as source, Copy() as consumer, int(after):
                self._reread(source, consumer, after)
            case "produce", Copy() as copy:
                self._produce(self.workers[copy])
            case "finish", Copy() as copy:
                worker = self.workers[copy]
                worker.group, worker.produced = (), False
                self._inside(worker, Processed())
            case "snap", Copy() as copy, bool(ok):
                self._snap(self.workers[copy], ok)
            case "fetched", Copy() as copy, kept:
                self._fetched(self.workers[copy], kept)  # type: ignore[arg-type]
            case "install", Copy() as copy, bool(ok):
                self._install(self.workers[copy], ok)
            case "hang", Copy() as copy:
                self.workers[copy].hangs = True
            case "feed", str(source):
                self._feed(source)
            case "timer", key:
                del self.timers[key]
                self.driver.handle(TimerFired(key))
            case _:
                raise TypeError(f"a process does not know {action}")

    def _inside(self, worker: SimWorker, event: object) -> None:
        self.driver.handle(Inside(worker.copy, worker.epoch, event))

    # --- engines, sinks and sources ----------------------------------------------------------------------

    def _produce(self, worker: SimWorker) -> None:
        worker.produced = True
        if worker.copy.partition in self.host.topology.ends:
            assert self.disk is not None
            name = worker.copy.partition.name
            for observer in self.observers:
                observer.delivered(self.name, worker.copy, self.disk.delivered[name], worker.group)
            self.disk.delivered[name] = worker.group[-1].number
            self._out.append(DeliveredThrough(worker.copy, self.disk.delivered[name]))
            return
        assert worker.engine is not None
        shares = worker.engine.advance(worker.group)
        for observer in self.observers:
            for partition, run in shares:
                observer.produced(self.name, worker.copy, partition, run)
        if shares:
            self._inside(worker, Produced(shares))

    def _start(self, worker: SimWorker, kept: Kept | None) -> None:
        worker.starting, worker.engine = False, self.flow.engine(worker.copy.partition)
        if kept is not None:
            worker.engine.restore(kept.engine)
            worker.given = worker.acked = worker.restored = kept.state.through
            for observer in self.observers:
                observer.installed(self.name, worker.copy, kept.state, kept.engine)
        self.driver.handle(Began(worker.copy, worker.epoch, None if kept is None else kept.state))

    def _saved(self, worker: SimWorker, floor: BucketId | None) -> None:
        version, worker.saving = worker.saving, None
        assert version is not None
        if floor is None:
            self._inside(worker, SaveFailed(version, "the store is away"))
        else:
            self._inside(worker, Saved(version, floor))

    def _reread(self, source: Copy, consumer: Copy, after: BucketId) -> None:
        assert self.disk is not None
        name = source.partition.name
        demand(
            after >= self.disk.forgotten[name], "kept", f"the log of {name} is read after {after}, too late"
        )
        self.rereading.remove((source, consumer, after))
        number = next(bucket.number for bucket in self.flow.inputs[name] if bucket.number > after)
        (bucket,) = (bucket for bucket in self.flow.inputs[name] if bucket.number == number)
        rows = bucket.payload if isinstance(bucket.payload, tuple) else ()
        shares = dict(self.flow.dealings[source.partition].shares([(number, rows)], number))
        run = shares[consumer.partition]
        self.driver.handle(Inside(source, 0, LogRead(consumer, after, run)))

    def _feed(self, source: str) -> None:
        assert self.disk is not None
        bucket = self.flow.inputs[source][self.put[source]]
        if self.put[source] == self.disk.sealed[source]:
            self.disk.sealed[source] += 1
            for observer in self.observers:
                observer.sealed(self.name, source, bucket)
        self.put[source] += 1
        rows = bucket.payload if isinstance(bucket.payload, tuple) else ()
        copy = Copy(Partition(source))
        shares = self.flow.dealings[copy.partition].shares([(bucket.number, rows)], bucket.number)
        self.driver.handle(Inside(copy, 0, Produced(shares)))

    def feedable(self, source: str) -> bool:
        """Whether the next bucket of a source may be put in."""
        end = self.host.end(source)
        assert self.disk is not None
        return (
            end is not None
            and end.above is not None
            and not end.above.full
            and self.put[source] < len(self.flow.inputs[source])
        )

    def trim_logs(self) -> None:
        """Let go of all of the logs that no copy needs any more."""
        for source in self.disk.trimmed if self.disk is not None else ():
            end = self.host.end(source)
            if end is not None and end.above is not None and self.disk is not None:
                self.disk.trim(source, end.above.trimmed_through, end.above.log_needed)

    # --- the movement of states --------------------------------------------------------------------------

    def _snap(self, worker: SimWorker, ok: bool) -> None:
        version, worker.snapping = worker.snapping, None
        assert version is not None and worker.engine is not None
        if ok:
            worker.taken[version] = worker.engine.snapshot()
            self._inside(worker, SnapshotTaken(version))
        else:
            self._inside(worker, SnapshotFailed(version, "the disk is full"))

    def _fetched(self, worker: SimWorker, kept: Kept | None) -> None:
        assert worker.fetching is not None
        if kept is None:
            attempt, worker.fetching = worker.fetching.attempt, None
            self._inside(worker, FetchFailed(attempt, "the lender does not have it"))
        else:
            worker.fetched = kept
            self._inside(worker, Progress())

    def _install(self, worker: SimWorker, ok: bool) -> None:
        assert worker.fetching is not None and worker.fetched is not None
        attempt, kept = worker.fetching.attempt, worker.fetched
        if worker.fetching.hold and ok:
            # The host says `hold` if it still wants it.
            self._inside(worker, Received(attempt, kept.state.through))
            if worker.fetched is kept:
                worker.fetching = worker.fetched = None
            return
        worker.fetching = worker.fetched = None
        if not ok:
            self._inside(worker, FetchFailed(attempt, "the engine does not start"))
            return
        worker.engine = self.flow.engine(worker.copy.partition)
        worker.engine.restore(kept.engine)
        worker.given = worker.acked = kept.state.through
        for observer in self.observers:
            observer.installed(self.name, worker.copy, kept.state, kept.engine)
        self._inside(worker, Installed(attempt, kept.state))

    # --- ports -------------------------------------------------------------------------------------------

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

    # --- what must hold after every action ---------------------------------------------------------------

    def _check(self) -> None:
        for worker in self.workers.values():
            safe = worker.given
            if self.disk is not None:
                safe = self.disk.delivered.get(worker.copy.partition.name, NOTHING)
            what = f"{worker.copy} on {self.name} acknowledged {worker.acked}, and holds {safe}"
            demand(worker.acked <= safe, "state-exact", what)
            # One for a standby, or for each backup, and one for the store.
            most = self._borrowers(worker.copy) + (worker.saving is not None)
            demand(len(worker.lent) <= most, "bounded", f"{worker.copy} on {self.name} keeps {worker.lent}")
        dropped: list[Hashable] = [len(self.host.residents)]
        gaps: list[str] = []
        for resident in self.host.residents.values():
            for outlet in resident.machine.above.outlets.values() if resident.machine.above else ():
                self._check_bounds(outlet)
                dropped.append(outlet.buffer.gone_through)
                gaps += [outlet.name] if outlet.gap else []
        if self.disk is not None:
            dropped += self.disk.forgotten.values()
        self.dropped, self.gaps = tuple(dropped), frozenset(gaps)

    def _borrowers(self, copy: Copy) -> int:
        view = self.host.view
        if not self.host.timing.ship_ms or view is None or copy.partition not in view.partitions:
            return 1
        return len(view.partitions[copy.partition].seats) - 1

    def _check_bounds(self, outlet: Outlet) -> None:
        # One group is always let in, and it may close every window that was open.
        limits, held = self.host.limits, len(outlet.buffer)
        most = outlet.buffer.buckets_max + 2 * limits.group_buckets_max + 4
        if outlet.stored and not outlet.backed:
            most += outlet.buffer.buckets_max
        demand(held <= most, "bounded", f"{outlet.name} on {self.name} holds {held} buckets of {most}")
