"""The worker: the thread that drives a node's engine, one task at a time.

Processing a group: decode its payloads, advance the segment, encode its output.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import pyarrow as pa

from understudy.core.bucket import Bucket, BucketId
from understudy.engine.interface import Snapshot
from understudy.engine.segment import Segment, SegmentAdvanced
from understudy.runtime.payload import decode, encode

log = logging.getLogger(__name__)


@dataclass
class WorkerStats:
    """Written by the worker's thread only."""

    groups: int = 0
    rows_in: int = 0
    rows_out: int = 0
    last_group_ms: float = 0.0
    last_group_buckets: int = 0


class WorkerOwner(Protocol):
    """Who the worker works for. All calls come from the worker's thread."""

    def produced(self, buckets: Sequence[Bucket]) -> None: ...

    def processed(self) -> None: ...

    def snapshot_taken(self, snapshot: Snapshot, pause_us: int) -> None: ...

    def failed(self, error: BaseException) -> None: ...


class Worker:
    """Runs tasks on a segment in order."""

    def __init__(self, segment: Segment, owner: WorkerOwner) -> None:
        self._segment = segment
        self._owner = owner
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

    def end(self) -> None:
        self._tasks.put(None)

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
        tables: dict[str, list[pa.Table]] = {}
        for bucket in buckets:
            if bucket.payload is not None:
                for source, table in decode(cast(bytes, bucket.payload)).items():
                    tables.setdefault(source, []).append(table)
        inputs = {source: pa.concat_tables(parts) for source, parts in tables.items()}
        before = self._segment.through
        self._bring_out(before, self._segment.advance(inputs, buckets[-1].number))
        self.stats.groups += 1
        self.stats.rows_in += sum(table.num_rows for table in inputs.values())
        self.stats.last_group_buckets = len(buckets)
        self.stats.last_group_ms = (time.monotonic() - began) * 1_000
        self._owner.processed()

    def _bring_out(self, before: BucketId, advanced: SegmentAdvanced) -> None:
        buckets = [
            Bucket(number, payload, len(payload))
            for number in sorted(advanced.buckets)
            for payload in [encode(advanced.buckets[number])]
        ]
        if advanced.through > (buckets[-1].number if buckets else before):
            # No more rows, but the boundary moved on.
            buckets.append(Bucket(advanced.through))
        self.stats.rows_out += sum(
            table.num_rows for tables in advanced.buckets.values() for table in tables.values()
        )
        if buckets:
            self._owner.produced(buckets)

    def _snapshot(self, into: Path) -> None:
        began = time.monotonic()
        snapshot = self._segment.snapshot(into)
        self._owner.snapshot_taken(snapshot, int((time.monotonic() - began) * 1e6))
