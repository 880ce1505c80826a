"""A copy of a partition on its node: an engine with its worker, and the movement of its state.

The protocol is in `core.host` on the node's actor; this does what it asks for. An engine is made and started
beside the dataflow, in a thread of its own. A copy that leaves takes its engine with it; whatever the worker
still says is void, which the host knows by the seat's epoch.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import pyarrow as pa

from understudy.core.bucket import Bucket
from understudy.core.errors import require
from understudy.core.exchange import ProducedFor
from understudy.core.flux_events import CopyCaughtUp, CopyMoveFailed
from understudy.core.instructions import (
    CaughtUp,
    Instruction,
    Process,
    RequestMove,
    ShipPartition,
    TakeSnapshot,
)
from understudy.core.messages import (
    MoverReady,
    PairAvailable,
    PartitionState,
    Processed,
    SnapshotTaken,
)
from understudy.core.parcels import Began
from understudy.core.partition import Copy, Partition
from understudy.engine.interface import Snapshot
from understudy.engine.partitions import PartitionEngine
from understudy.engine.storing import open_snapshot
from understudy.runtime.coordination.reports import FluxReported
from understudy.runtime.hosting import Hosting
from understudy.runtime.node.mover import ActiveGone, StateFetch, fetch_state
from understudy.runtime.node.pace import Pace
from understudy.runtime.node.shipping import Shipping
from understudy.runtime.node.worker import Worker, WorkerStats, made_of
from understudy.runtime.payload import Part, merged
from understudy.runtime.recording import Recorder
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.channel import Channel

log = logging.getLogger(__name__)

#: What a group brought out: for each consumer, its buckets; the last says how far they go.
Shares = dict[Partition, list[Bucket]]


class PartitionWork:
    """One partition of a fragment: parts of buckets in, shares of buckets out."""

    def __init__(
        self, engine: PartitionEngine, consumers: Sequence[Partition], time_of: Mapping[str, str]
    ) -> None:
        self._engine = engine
        self._consumers = consumers
        self._time_of = time_of

    def process(self, buckets: Sequence[Bucket], stats: WorkerStats) -> Shares:
        tables: dict[str, list[pa.Table]] = {}
        for bucket in buckets:
            if bucket.payload is not None:
                for stream, table in merged(cast(Sequence[Part], bucket.payload), self._time_of).items():
                    tables.setdefault(stream, []).append(table)
        inputs = {stream: pa.concat_tables(parts) for stream, parts in tables.items()}
        before = self._engine.output_through
        advanced = self._engine.advance(inputs, buckets[-1].number)
        stats.rows_in += sum(table.num_rows for table in inputs.values())
        out: Shares = {}
        for consumer in self._consumers:
            rows = advanced.shares.get(consumer, {})
            stats.rows_out += sum(table.num_rows for table in rows.values())
            out[consumer] = [made_of(n, {self._engine.name: rows[n]}) for n in sorted(rows)]
            if advanced.through > (out[consumer][-1].number if out[consumer] else before):
                # No more rows, but the boundary moved on.
                out[consumer].append(Bucket(advanced.through))
        return out

    def snapshot(self, into: Path) -> Snapshot:
        return self._engine.snapshot(into)


class HostedCopy:
    """One copy in its seat. `carry` and `mover_met` belong to the actor."""

    def __init__(
        self,
        copy: Copy,
        epoch: int,
        hosting: Hosting,
        *,
        settings: RunSettings,
        recorder: Recorder,
        folder: Path,
        make_engine: Callable[[], PartitionEngine],
        starting: threading.Lock,
        time_of: Mapping[str, str],
        pace: Pace,
        on_failure: Callable[[BaseException], None],
        report: Callable[[FluxReported], None],
    ) -> None:
        self.copy = copy
        self.epoch = epoch
        self._hosting = hosting
        self._settings = settings
        self._recorder = recorder
        self._folder = folder
        self._make_engine = make_engine
        self._starting = starting
        self._time_of = time_of
        self._pace = pace
        self._on_failure = on_failure
        self._report = report
        self._over = threading.Event()
        self._engine: PartitionEngine | None = None
        self._worker: Worker[Shares] | None = None
        self._shipping = Shipping(folder / "outgoing")
        self._version = 0
        self.fetch: StateFetch | None = None

    @property
    def stats(self) -> WorkerStats:
        return WorkerStats() if self._worker is None else self._worker.stats

    # --- beginning and leaving: in threads of their own --------------------------------------------------

    def begin(self) -> None:
        """Start with an empty engine."""
        self._in_thread("engine", self._begin)

    def catch_up(self, find: Callable[[], str | None], node: str) -> None:
        """Start with the state of the other copy, wherever `find` says that it is."""
        self._in_thread("catch-up", lambda: self._catch_up(find, node))

    def end(self) -> threading.Thread:
        """Leave the seat; the engine ends in the thread that is returned."""
        self._over.set()
        return self._in_thread("leaving", self._end)

    def _in_thread(self, what: str, do: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                do()
            except BaseException as error:
                self.failed(error)

        thread = threading.Thread(target=guarded, name=f"{what} {self.copy}", daemon=True)
        thread.start()
        return thread

    def _begin(self) -> None:
        self._start(None)
        self._hosting.post(Began(self.copy, self.epoch))

    def _catch_up(self, find: Callable[[], str | None], node: str) -> None:
        into = self._folder / "incoming"
        hello = {"copy": str(self.copy), "node": node, "epoch": self.epoch}
        try:
            state = fetch_state(
                find,
                hello,
                into,
                self._settings,
                stopped_after=self._over.wait,
                on_attempt=self._attempting,
            )
        except ActiveGone:
            log.error("%s: the active copy died before its state was here", self.copy)  # noqa: TRY400
            self._report(CopyMoveFailed(self.copy, self.epoch))
            return
        if state is None:
            return
        require(isinstance(state, PartitionState), "the state of a whole replica came to a partition")
        assert isinstance(state, PartitionState)
        self._start(open_snapshot(into))
        self._recorder.installed_in(self.copy, state.version, state.through)
        shutil.rmtree(into, ignore_errors=True)
        self._hosting.inside(self.copy, self.epoch, state)

    def _attempting(self, fetch: StateFetch) -> None:
        self.fetch = fetch

    def _start(self, snapshot: Snapshot | None) -> None:
        with self._starting:
            if self._over.is_set():
                return
            engine = self._make_engine()
            self._engine = engine
            engine.start(snapshot)
        consumers = self._hosting.host.topology.consumers(self.copy.partition)
        self._worker = Worker(PartitionWork(engine, consumers, self._time_of), self, self._pace)

    def _end(self) -> None:
        self._shipping.drop("this copy is going away")
        if self._worker is not None:
            self._worker.end()
        with self._starting:
            if self._engine is not None:
                self._engine.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- what the protocol asks for ----------------------------------------------------------------------

    def carry(self, instruction: Instruction) -> None:
        match instruction:
            case Process(buckets):
                require(self._worker is not None, f"{self.copy} was given work before it had an engine")
                assert self._worker is not None
                self._recorder.handed_to(self.copy, buckets)
                self._worker.process(buckets)
            case TakeSnapshot(version):
                assert self._worker is not None
                self._version = version
                self._worker.snapshot(self._shipping.begin(version))
            case ShipPartition(state):
                self._shipping.ship(state)
            case CaughtUp():
                log.info("%s has caught up", self.copy)
                self._report(CopyCaughtUp(self.copy, self.epoch))
            case RequestMove():
                # The movers meet when the standby's asks; nothing needs to be prepared here.
                pass
            case _:
                raise AssertionError(f"a node cannot carry out {instruction}")

    def mover_met(self, channel: Channel) -> None:
        """The standby's mover is there: a snapshot is taken for it as soon as the engine stands still."""
        self._shipping.met(channel)
        self._hosting.inside(self.copy, self.epoch, PairAvailable(), MoverReady())
        self._wake()

    def mover_gone(self, channel: Channel) -> None:
        self._shipping.gone(channel)

    def hurry(self) -> None:
        """A process was lost: this copy may have to stand in for one that was ahead of it."""
        self._pace.hurry(time.monotonic())
        self._wake()

    def _wake(self) -> None:
        if self._worker is not None:
            self._worker.wake()

    # --- the worker --------------------------------------------------------------------------------------

    def produced(self, output: Shares) -> None:
        for consumer, buckets in output.items():
            self._recorder.produced_for(self.copy, consumer, buckets)
        events = [ProducedFor(consumer, bucket) for consumer, buckets in output.items() for bucket in buckets]
        self._hosting.inside(self.copy, self.epoch, *events)

    def processed(self) -> None:
        self._hosting.inside(self.copy, self.epoch, Processed())

    def snapshot_taken(self, snapshot: Snapshot, pause_us: int) -> None:
        self._shipping.taken(snapshot)
        self._recorder.snapshot_of(self.copy, self._version, snapshot, pause_us)
        self._hosting.inside(self.copy, self.epoch, SnapshotTaken())

    def failed(self, error: BaseException) -> None:
        if self._over.is_set():
            log.info("%s left while its engine worked: %s", self.copy, error)
            return
        self._on_failure(error)
