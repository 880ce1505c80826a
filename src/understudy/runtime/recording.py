"""Writes a process's part of the run's history (`core.history`), one line per record, each in one write.

A line is handed to the kernel whole, so a process that is killed leaves whole lines. A process that is
started again under the same name, as the gateway is, goes on with its file: it knows from it which buckets
and views are on record.

The digest of a bucket covers its rows in canonical order. Floating-point columns are left out of it: how
additions are grouped shows in their last digits, and two replicas may group differently without
disagreeing.

A process of a partitioned flow says of which copy it speaks; every copy has its own place in its input. A
bucket that came from several partitions is shown part by part, each with the digest that its producer noted
down, so that who judges needs no rows to compare them.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Sequence
from typing import cast

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.flux_view import FluxView
from understudy.core.history import (
    ArrivedRecord,
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
    parts_text,
    read,
)
from understudy.core.messages import Installed
from understudy.core.partition import Copy, Partition
from understudy.core.view import Slot, View
from understudy.engine.digest import digest_of
from understudy.engine.interface import Snapshot
from understudy.runtime.payload import Part, decode
from understudy.runtime.settings import RunSettings


class Recorder:
    """What one process notes down. Any thread may call it. It does nothing if the run keeps no history."""

    def __init__(self, settings: RunSettings, flow: str, process: str) -> None:
        self._process = process
        self._lock = threading.Lock()
        self._handed_through = NOTHING
        self._copy_handed_through: dict[Copy, BucketId] = {}
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

    def flux_view(self, view: FluxView) -> None:
        if view.epoch > self._epoch:
            self._epoch = view.epoch
            seats = tuple(
                (str(Copy(partition, slot)), seat.node, seat.epoch, seat.status.value)
                for partition, own in view.partitions.items()
                for slot, seat in own.seats.items()
            )
            self._write(ViewRecord(*self._now(), view.epoch, seats))

    def arrived(self, partition: Partition, buckets: Sequence[Bucket]) -> None:
        """Output of a partition reached egress."""
        if self._writer is not None and buckets:
            rows = sum(rows_in(cast(bytes, bucket.payload)) for bucket in buckets if not bucket.empty)
            self._write(ArrivedRecord(*self._now(), str(partition), buckets[-1].number, rows))

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

    # --- a copy of a partition; the ingress of a partitioned flow ------------------------------------------

    def handed_to(self, copy: Copy, buckets: Sequence[Bucket]) -> None:
        after = self._copy_handed_through.get(copy, NOTHING)
        through = self._copy_handed_through[copy] = buckets[-1].number
        numbers = tuple(bucket.number for bucket in buckets if not bucket.empty)
        self._write(HandedRecord(*self._now(), after, through, numbers, str(copy)))

    def produced_for(self, copy: Copy, to: Partition, buckets: Sequence[Bucket]) -> None:
        """The copy put out these buckets for one consumer, each payload as `payload.encode` makes it."""
        for bucket in buckets:
            if not bucket.empty:
                number, rows, digest = self._shown(bucket)
                self._write(ProducedRecord(*self._now(), number, rows, digest, str(copy), str(to)))

    def snapshot_of(self, copy: Copy, version: int, snapshot: Snapshot, pause_us: int) -> None:
        facts = version, snapshot.through, pause_us, snapshot.size_bytes
        self._write(SnapshotRecord(*self._now(), *facts, str(copy)))

    def installed_in(self, copy: Copy, version: int, through: BucketId) -> None:
        self._copy_handed_through[copy] = through
        self._write(InstalledRecord(*self._now(), version, through, str(copy)))

    # --- any process -------------------------------------------------------------------------------------

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
    """A bucket as histories show it: number, rows, digest. Of a bucket made of parts, those with rows."""
    if bucket.payload is None:
        return bucket.number, 0, ""
    if not isinstance(bucket.payload, tuple):
        return bucket.number, *_rows_and_digest(cast(bytes, bucket.payload))
    total, digests = 0, {}
    for partition, payload in sorted(cast(tuple[Part, ...], bucket.payload), key=lambda part: part[0]):
        rows, digest = _rows_and_digest(payload)
        if rows:
            total += rows
            digests[str(partition)] = digest
    return bucket.number, total, parts_text(digests)


def rows_in(payload: bytes) -> int:
    return sum(table.num_rows for table in decode(payload).values())


def _rows_and_digest(payload: bytes) -> tuple[int, str]:
    tables = decode(payload)
    rows = sum(table.num_rows for table in tables.values())
    # No comma: that is what stands between the parts of a bucket.
    return rows, "+".join(f"{name}:{digest_of(tables[name], floats=False)}" for name in sorted(tables))
