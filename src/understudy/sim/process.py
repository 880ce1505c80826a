"""A simulated process: a host with its driver, its ports, and what happens to them.

A process is an actor. Only `act(action)` changes it, and it answers with the effects on the world around it:
parcels sent, connections cut, reports (`sim.ports`). An exploration may keep the answer.

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

from collections.abc import Hashable

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.driver import Driver
from understudy.core.edge.outlet import Outlet
from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.host.host import Host
from understudy.core.host.parcels import Began, Inside, PeerDown, PeerUp
from understudy.core.replica.events import (
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
from understudy.sim.checkers import Violation, demand
from understudy.sim.disk import Disk
from understudy.sim.flow import Flow
from understudy.sim.observing import Observer
from understudy.sim.ports import DeliveredThrough, Effect, SimPorts
from understudy.sim.worker import Kept, SimWorker

Action = tuple[Hashable, ...]


class Process(SimPorts):
    """A node, or the gateway, which alone has a disk."""

    def __init__(
        self, host: Host, flow: Flow, observers: tuple[Observer, ...] = (), disk: Disk | None = None
    ) -> None:
        super().__init__(host, observers, disk)
        self.drive_again()
        self.flow = flow
        #: How many buckets of each source this gateway has put in.
        self.put: dict[str, int] = {}
        if disk is not None:
            self.put = {source: disk.unread(source, inputs) for source, inputs in flow.inputs.items()}
        #: What its outlets have dropped, and for whom: to know when to look whether it was needed.
        self.dropped: tuple[Hashable, ...] = ()
        #: Its outlets that have a gap.
        self.gaps: frozenset[str] = frozenset()
        #: The number of its state, in an exploration.
        self.number = 0

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
