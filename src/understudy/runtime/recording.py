"""Writes a process's part of the run's history (`core.history`), one line per record, each in one write.

A line is handed to the kernel whole, so a process that is killed leaves whole lines. A process that is
started again under the same name, as the gateway is, goes on with its file: it knows from it which buckets
and views are on record.

The digest of a bucket covers its rows in canonical order. Floating-point columns are left out of it: how
additions are grouped shows in their last digits, and two replicas may group differently without
disagreeing.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Sequence
from typing import Any, cast

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.history import (
    AttachedRecord,
    BegunRecord,
    DeliveredRecord,
    DetachedRecord,
    EndedRecord,
    FencedRecord,
    HandedRecord,
    HistoryWriter,
    InstalledRecord,
    ProducedRecord,
    Record,
    SealedRecord,
    SenderRecord,
    SnapshotRecord,
    SuspectedRecord,
    ViewRecord,
    read,
)
from understudy.core.messages import Installed
from understudy.core.view import Slot, View
from understudy.engine.digest import digest_of
from understudy.engine.interface import Snapshot
from understudy.runtime.payload import decode
from understudy.runtime.settings import RunSettings


class Recorder:
    """What one process notes down. Any thread may call it. It does nothing if the run keeps no history."""

    def __init__(self, settings: RunSettings, flow: str, process: str) -> None:
        self._process = process
        self._lock = threading.Lock()
        self._handed_through = NOTHING
        self._sealed_through = NOTHING
        self._epoch = 0
        self._writer: HistoryWriter | None = None
        if not settings.history:
            return
        file = settings.history_file(process)
        file.parent.mkdir(parents=True, exist_ok=True)
        stream = io.TextIOWrapper(file.open("a+b", buffering=0), encoding="utf-8", write_through=True)
        self._writer = HistoryWriter(stream, flow)
        with file.open(encoding="utf-8") as lines:
            for record in read(lines, str(file)):
                if isinstance(record, SealedRecord):
                    self._sealed_through = record.number
                elif isinstance(record, ViewRecord):
                    self._epoch = record.epoch

    def begun(self) -> None:
        self._write(BegunRecord(*self._now()))

    def ended(self) -> None:
        self._write(EndedRecord(*self._now()))

    # --- the gateway -------------------------------------------------------------------------------------

    def sealed(self, buckets: Sequence[Bucket]) -> None:
        """These buckets are sealed. Those on record already, before a restart, are passed over."""
        for bucket in buckets:
            if bucket.number > self._sealed_through:
                self._sealed_through = bucket.number
                number, rows, digest = self._shown(bucket)
                self._write(SealedRecord(*self._now(), number, rows, digest))

    def delivered(
        self, after: BucketId, through: BucketId, buckets: Sequence[tuple[BucketId, int, str]]
    ) -> None:
        self._write(DeliveredRecord(*self._now(), after, through, tuple(buckets)))

    def view(self, view: View) -> None:
        if view.epoch > self._epoch:
            self._epoch = view.epoch
            seats = tuple(
                (slot.value, seat.node, seat.epoch, seat.status.value) for slot, seat in view.seats.items()
            )
            self._write(ViewRecord(*self._now(), view.epoch, seats))

    def attached(self, slot: Slot, end: str) -> None:
        self._write(AttachedRecord(*self._now(), slot.value, end))

    def detached(self, slot: Slot, end: str) -> None:
        self._write(DetachedRecord(*self._now(), slot.value, end))

    def sender(self, slot: Slot, through: BucketId) -> None:
        self._write(SenderRecord(*self._now(), slot.value, through))

    def suspected(self, node: str) -> None:
        self._write(SuspectedRecord(*self._now(), node))

    # --- a node ------------------------------------------------------------------------------------------

    def handed(self, buckets: Sequence[Bucket]) -> None:
        after, self._handed_through = self._handed_through, buckets[-1].number
        numbers = tuple(bucket.number for bucket in buckets if not bucket.empty)
        self._write(HandedRecord(*self._now(), after, buckets[-1].number, numbers))

    def produced(self, buckets: Sequence[Bucket]) -> None:
        for bucket in buckets:
            if not bucket.empty:
                number, rows, digest = self._shown(bucket)
                self._write(ProducedRecord(*self._now(), number, rows, digest))

    def snapshot(self, version: int, snapshot: Snapshot, pause_us: int) -> None:
        self._write(SnapshotRecord(*self._now(), version, snapshot.through, pause_us, snapshot.size_bytes))

    def installed(self, state: Installed) -> None:
        self._handed_through = state.through
        self._write(InstalledRecord(*self._now(), state.version, state.through))

    def fenced(self) -> None:
        self._write(FencedRecord(*self._now()))

    # --- inside ------------------------------------------------------------------------------------------

    def _now(self) -> tuple[int, str]:
        return time.time_ns() // 1_000, self._process

    def _shown(self, bucket: Bucket) -> tuple[BucketId, int, str]:
        return (bucket.number, 0, "") if self._writer is None else shown(bucket)

    def _write(self, record: Record) -> None:
        if self._writer is not None:
            with self._lock:
                self._writer.write(record)


def shown(bucket: Bucket) -> tuple[BucketId, int, str]:
    """A bucket as histories show it: number, rows, digest."""
    if bucket.payload is None:
        return bucket.number, 0, ""
    tables: dict[str, Any] = decode(cast(bytes, bucket.payload))
    rows = sum(table.num_rows for table in tables.values())
    digests = ",".join(f"{name}:{digest_of(table, floats=False)}" for name, table in sorted(tables.items()))
    return bucket.number, rows, digests
