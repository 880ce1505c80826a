"""The worker: the thread that drives an engine, one task at a time.

Processing a group: decode its payloads, advance the engine, encode its output. What the engine is, a whole
flow or one partition of a fragment, is the business of a `Work`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar, cast

import pyarrow as pa

from understudy.core.bucket import Bucket, BucketId
from understudy.engine.interface import Snapshot
from understudy.engine.segment import Segment
from understudy.runtime.node.pace import Pace
from understudy.runtime.payload import decode, encode

log = logging.getLogger(__name__)

Output = TypeVar("Output")
Output_co = TypeVar("Output_co", covariant=True)
Output_contra = TypeVar("Output_contra", contravariant=True)


@dataclass
class WorkerStats:
    """Written by the worker's thread only."""

    groups: int = 0
    rows_in: int = 0
    rows_out: int = 0
    last_group_ms: float = 0.0
    last_group_buckets: int = 0


class Work(Protocol[Output_co]):
    """What a worker does with its engine."""

    def process(self, buckets: Sequence[Bucket], stats: WorkerStats) -> Output_co:
        """Take in a group; returns what came out. Counts rows in the stats."""

    def snapshot(self, into: Path) -> Snapshot: ...


class WorkerOwner(Protocol[Output_contra]):
    """Who the worker works for. All calls come from the worker's thread."""

    def produced(self, output: Output_contra) -> None: ...

    def processed(self) -> None: ...

    def snapshot_taken(self, snapshot: Snapshot, pause_us: int) -> None: ...

    def failed(self, error: BaseException) -> None: ...


class Worker(Generic[Output]):
    """Runs tasks on an engine in order."""

    def __init__(self, work: Work[Output], owner: WorkerOwner[Output], pace: Pace | None = None) -> None:
        self._work = work
        self._owner = owner
        self._pace = pace
        self._wanted = threading.Event()
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self.stats = WorkerStats()
        self._thread.start()

    def process(self, buckets: Sequence[Bucket]) -> None:
        """Feed these buckets to the engine, then say `processed`."""
        self._tasks.put(lambda: self._process(buckets))

    def snapshot(self, into: Path) -> None:
        """Snapshot the engine, then say `snapshot_taken`."""
        self._tasks.put(lambda: self._snapshot(into))

    def wake(self) -> None:
        """If the engine only rests, let it be done with the group at once: somebody waits for it."""
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
        self._owner.produced(self._work.process(buckets, self.stats))
        self.stats.groups += 1
        self.stats.last_group_buckets = len(buckets)
        took_s = time.monotonic() - began
        self.stats.last_group_ms = took_s * 1_000
        if self._pace is not None:
            self._wanted.wait(self._pace.rest_s(began, took_s, buckets[-1].number))
            self._wanted.clear()
        self._owner.processed()

    def _snapshot(self, into: Path) -> None:
        began = time.monotonic()
        snapshot = self._work.snapshot(into)
        self._owner.snapshot_taken(snapshot, int((time.monotonic() - began) * 1e6))


class SegmentWork:
    """A whole flow: sources' buckets in, sinks' buckets out."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def process(self, buckets: Sequence[Bucket], stats: WorkerStats) -> list[Bucket]:
        tables: dict[str, list[pa.Table]] = {}
        for bucket in buckets:
            if bucket.payload is not None:
                for source, table in decode(cast(bytes, bucket.payload)).items():
                    tables.setdefault(source, []).append(table)
        inputs = {source: pa.concat_tables(parts) for source, parts in tables.items()}
        before = self._segment.through
        advanced = self._segment.advance(inputs, buckets[-1].number)
        stats.rows_in += sum(table.num_rows for table in inputs.values())
        stats.rows_out += sum(t.num_rows for tables in advanced.buckets.values() for t in tables.values())
        out = [made_of(number, advanced.buckets[number]) for number in sorted(advanced.buckets)]
        if advanced.through > (out[-1].number if out else before):
            # No more rows, but the boundary moved on.
            out.append(Bucket(advanced.through))
        return out

    def snapshot(self, into: Path) -> Snapshot:
        return self._segment.snapshot(into)


def made_of(number: BucketId, tables: Mapping[str, pa.Table]) -> Bucket:
    """A bucket that holds these tables."""
    payload = encode(tables)
    return Bucket(number, payload, len(payload))
