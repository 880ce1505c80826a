"""The worker: the thread that drives the engine of one copy, one task at a time.

Processing a group: decode its payloads, advance the engine, and pass its output on as soon as there is some,
encoded. A bucket's rows are encoded once, however many consumers take all of them.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import pyarrow as pa

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.replica.events import LimitGroups
from understudy.core.shape.partition import Partition
from understudy.engine.interface import CopyEngine, Output, Snapshot
from understudy.runtime.node.pace import BUCKETS, BYTES, Pace, Stride
from understudy.runtime.payload import Part, encode, merged

log = logging.getLogger(__name__)

#: What a group brought out for some consumers: a run of buckets for each; the last says how far it goes.
Shares = tuple[tuple[Partition, tuple[Bucket, ...]], ...]


@dataclass
class WorkerStats:
    """Written by the worker's thread only."""

    groups: int = 0
    rows_in: int = 0
    rows_out: int = 0
    last_group_ms: float = 0.0
    last_group_buckets: int = 0


class WorkerOwner(Protocol):
    """The owner of a worker. Calls come from the worker's thread, `produced` also from the engine's."""

    def produced(self, shares: Shares) -> None: ...

    def limit_groups(self, limit: LimitGroups) -> None: ...

    def processed(self) -> None: ...

    def snapshot_taken(self, version: int, snapshot: Snapshot, pause_us: int) -> None: ...

    def snapshot_failed(self, version: int, why: Exception) -> None: ...

    def failed(self, error: BaseException) -> None: ...


class Worker:
    """Runs tasks on an engine in order.

    `stream_for` names the stream of the output that a consumer takes; `time_of` the time column of a stream;
    `produced` says through which number each consumer's output was produced before.
    """

    def __init__(
        self,
        engine: CopyEngine,
        owner: WorkerOwner,
        pace: Pace,
        *,
        stream_for: Callable[[Partition], str],
        time_of: Mapping[str, str],
        produced: Mapping[Partition, BucketId],
    ) -> None:
        self._engine = engine
        self._owner = owner
        self._pace = pace
        self._stride = Stride(BUCKETS if engine.stepwise else BYTES)
        self._stream_for = stream_for
        self._time_of = time_of
        self._through = dict(produced)
        self._counting = threading.Lock()
        self._wanted = threading.Event()
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self.stats = WorkerStats()
        self._thread.start()

    def process(self, buckets: Sequence[Bucket]) -> None:
        """Feed these buckets to the engine, say `produced` for its output, then `processed`."""
        self._tasks.put(lambda: self._process(buckets))

    def snapshot(self, version: int, into: Path) -> None:
        """Snapshot the engine, then say `snapshot_taken` or `snapshot_failed`."""
        self._tasks.put(lambda: self._snapshot(version, into))

    @property
    def limit(self) -> LimitGroups:
        """What the next group may have, so that it does not take too long."""
        most = self._stride.most
        return LimitGroups(buckets_max=most) if self._engine.stepwise else LimitGroups(bytes_max=most)

    def wake(self) -> None:
        """If the engine only rests, let it be done with the group at once."""
        self._wanted.set()

    def end(self) -> None:
        self._tasks.put(None)
        self.wake()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except BaseException as error:
                self._owner.failed(error)
                return

    def _process(self, buckets: Sequence[Bucket]) -> None:
        began = time.monotonic()
        inputs = self._tables(buckets)
        self.stats.rows_in += sum(table.num_rows for table in inputs.values())
        self._engine.advance(inputs, buckets[-1].number, self._emit)
        self.stats.groups += 1
        self.stats.last_group_buckets = len(buckets)
        took_s = time.monotonic() - began
        self.stats.last_group_ms = took_s * 1_000
        before = self.limit
        sizes = [1 if self._engine.stepwise else bucket.size_bytes for bucket in buckets]
        full = self._stride.is_filled_by(sizes)
        self._stride.took(took_s, sum(sizes))
        if self.limit != before:
            self._owner.limit_groups(self.limit)
        rest_s = self._pace.rest_s(began, took_s, buckets[-1].number)
        # While an engine rests, its next group grows. After a full one more waits already than that may have.
        self._wanted.wait(0 if full else rest_s)
        self._wanted.clear()
        self._owner.processed()

    def _tables(self, buckets: Sequence[Bucket]) -> dict[str, pa.Table]:
        tables: dict[str, list[pa.Table]] = {}
        for bucket in buckets:
            if bucket.payload is not None:
                for stream, table in merged(cast(Sequence[Part], bucket.payload), self._time_of).items():
                    tables.setdefault(stream, []).append(table)
        return {stream: pa.concat_tables(parts) for stream, parts in tables.items()}

    def _emit(self, output: Output) -> None:
        shares: list[tuple[Partition, tuple[Bucket, ...]]] = []
        encoded: dict[tuple[str, int], Bucket] = {}
        rows_out = 0
        for consumer in output.consumers:
            rows = output.shares.get(consumer, {})
            stream = self._stream_for(consumer)
            run: list[Bucket] = []
            for number in sorted(rows):
                table = rows[number]
                rows_out += table.num_rows
                bucket = encoded.get((stream, id(table)))
                if bucket is None:
                    payload = encode({stream: table})
                    bucket = encoded[stream, id(table)] = Bucket(number, payload, len(payload))
                run.append(bucket)
            before = self._through.get(consumer, NOTHING)
            if output.through > (run[-1].number if run else before):
                # No more rows, but the boundary moved on.
                run.append(Bucket(output.through))
            # After a restored state an engine may be behind what was produced from it.
            self._through[consumer] = max(before, output.through)
            if run:
                shares.append((consumer, tuple(run)))
        with self._counting:
            self.stats.rows_out += rows_out
        if shares:
            self._owner.produced(tuple(shares))

    def _snapshot(self, version: int, into: Path) -> None:
        began = time.monotonic()
        try:
            snapshot = self._engine.snapshot(into)
        except Exception as problem:
            self._owner.snapshot_failed(version, problem)
            return
        self._owner.snapshot_taken(version, snapshot, int((time.monotonic() - began) * 1e6))
