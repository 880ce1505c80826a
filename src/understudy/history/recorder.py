"""Records what one process does. Callers report events; a thread of its own writes them down.

Only deliveries are written by the caller, at once: that thread has just waited for the disk anyway, and a
delivery that is not on record when its gateway is killed would look like a lost one.

A recorder is of one version of the flow, and names partitions and copies accordingly (`records`). A gateway
works for two versions while a flow is upgraded. It has a recorder of each (`Recorder.of_version`), and both
write into one history.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy as shallow_copy
from pathlib import Path
from typing import Protocol, Self

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.errors import require
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.view import View
from understudy.history.backlog import BYTES_MAX, NOTES_MAX, Backlog
from understudy.history.records import (
    ArrivedRecord,
    BegunRecord,
    DeliveredRecord,
    EndedRecord,
    HandedRecord,
    InstalledRecord,
    LeftOutRecord,
    ProducedRecord,
    Record,
    SealedRecord,
    SenderRecord,
    Shown,
    SnapshotRecord,
    SuspectedRecord,
    ViewRecord,
    versioned,
)
from understudy.history.writing import PartedFile

PART_BYTES = 16 * 2**20
TOTAL_BYTES = 512 * 2**20
#: How long a process that ends waits for its history.
END_TIMEOUT_S = 10.0


class Look(Protocol):
    """Looks into buckets. Called by the writing thread only."""

    def shown(self, bucket: Bucket) -> Shown: ...

    def rows(self, bucket: Bucket) -> int: ...

    def left_out(self) -> Mapping[str, tuple[str, ...]]:
        """Columns that digests do not cover, by stream: those that no earlier call returned."""
        ...


class StateTaken(Protocol):
    """A snapshot of a copy's state."""

    @property
    def through(self) -> BucketId: ...

    @property
    def size_bytes(self) -> int: ...


class Recorder:
    """What one process notes down. Any thread may call it. It does nothing if there is no file.

    `version` is that of the flow whose copies this is about, and `ends` are the names of its sources and
    sinks, the latter as the topology has them ("sink:stats"). The versions of a flow share these, so their
    names have no version in a history.
    """

    def __init__(
        self,
        file: Path | None,
        flow: str,
        process: str,
        look: Look,
        *,
        version: int = 1,
        ends: Collection[str] = (),
        part_bytes: int = PART_BYTES,
        total_bytes: int = TOTAL_BYTES,
        notes_max: int = NOTES_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._process = process
        self._look = look
        self._first = True
        self._be_of(version, ends)
        #: By version of the flow: what is on record of the others counts when their recorders come.
        self._epochs: dict[int, int] = {}
        self._delivered_before: dict[str, BucketId] = {}
        self._backlog: Backlog | None = None
        if file is None:
            return
        parts = PartedFile(file, flow, process, part_bytes=part_bytes, total_bytes=total_bytes)
        self._epochs = dict(parts.on_record.epochs)
        self._delivered_before = dict(parts.on_record.delivered)
        self._backlog = Backlog(parts, process, notes_max=notes_max, bytes_max=bytes_max)

    def of_version(self, version: int, ends: Collection[str] | None = None) -> Self:
        """A recorder of another version of the flow for this process, which writes into the same history.

        Its sources and sinks are the same unless `ends` says otherwise. The history is this recorder's to end
        and to close: a version may be over long before the process is.
        """
        other = shallow_copy(self)
        other._first = False
        other._be_of(version, self._ends if ends is None else ends)
        return other

    def begun(self) -> None:
        self._put(BegunRecord(*self._now()))

    def ended(self) -> None:
        """Nothing is left to do in this process. Returns when everything is written."""
        if self._first:
            self._put(EndedRecord(*self._now()))
            self.close()

    def close(self) -> None:
        """Write what waits to be written. Nothing is recorded afterwards, of any version."""
        if self._first and self._backlog is not None:
            self._backlog.close(END_TIMEOUT_S)

    # --- the gateway -------------------------------------------------------------------------------------

    def sealed(self, source: str, number: BucketId, rows: int) -> None:
        """A source sealed a bucket."""
        if rows:
            self._put(SealedRecord(*self._now(), source, number, rows))

    def delivered(
        self,
        sink: str,
        after: BucketId,
        through: BucketId,
        buckets: Sequence[tuple[BucketId, int, str]],
        version: int = 1,
    ) -> None:
        """A sink holds these. It is on record when this returns.

        `version` says whose output they are, whatever this recorder's is: a sink is of no version. Digests
        name parts without it.
        """
        if self._backlog is not None:
            record = DeliveredRecord(*self._now(), sink, after, through, tuple(buckets), version)
            self._backlog.write_now(record)

    def delivered_before(
        self,
        sink: str,
        after: BucketId,
        through: BucketId,
        buckets: Sequence[tuple[BucketId, int, str]],
        version: int = 1,
    ) -> None:
        """A sink was found to hold these when the gateway began; they may be on record."""
        if through > self._delivered_before.get(sink, NOTHING):
            self.delivered(sink, after, through, buckets, version)

    def view(self, view: View) -> None:
        if view.epoch > self._epochs.get(self._version, 0):
            self._epochs[self._version] = view.epoch
            seats = tuple(
                (self._copy(copy), seat.node, seat.epoch, seat.status.value)
                for copy, seat in view.seats.items()
            )
            self._put(ViewRecord(*self._now(), view.epoch, seats, self._version))

    def arrived(self, partition: Partition, buckets: Sequence[Bucket]) -> None:
        """Output of a partition reached a sink."""
        if self._backlog is not None and buckets:
            now, kept = self._now(), tuple(bucket for bucket in buckets if not bucket.empty)
            through = buckets[-1].number

            def note() -> Iterator[Record]:
                rows = sum(self._look.rows(bucket) for bucket in kept)
                yield ArrivedRecord(*now, self._partition(partition), through, rows)

            self._backlog.put(note, sum(bucket.size_bytes for bucket in kept))

    def sender(self, copy: Copy) -> None:
        """This copy is the one whose output the sinks take from now on."""
        self._put(SenderRecord(*self._now(), self._copy(copy)))

    def suspected(self, node: str) -> None:
        self._put(SuspectedRecord(*self._now(), node))

    # --- a copy of a partition, or a source --------------------------------------------------------------

    def handed_to(self, copy: Copy, buckets: Sequence[Bucket]) -> None:
        after = self._copy_handed_through.get(copy, NOTHING)
        through = self._copy_handed_through[copy] = buckets[-1].number
        self._put(HandedRecord(*self._now(), after, through, _with_rows(buckets), self._copy(copy)))

    def produced_for(self, copy: Copy, to: Partition, buckets: Sequence[Bucket]) -> None:
        """The copy put out these buckets for one consumer, each payload as `payload.encode` makes it."""
        self._produced(buckets, self._copy(copy), self._partition(to))

    def snapshot_of(self, copy: Copy, version: int, snapshot: StateTaken, pause_us: int) -> None:
        facts = version, snapshot.through, pause_us, snapshot.size_bytes
        self._put(SnapshotRecord(*self._now(), *facts, self._copy(copy)))

    def installed_in(self, copy: Copy, version: int, through: BucketId) -> None:
        self._copy_handed_through[copy] = through
        self._put(InstalledRecord(*self._now(), version, through, self._copy(copy)))

    # --- inside ------------------------------------------------------------------------------------------

    def _be_of(self, version: int, ends: Collection[str]) -> None:
        require(version >= 1, f"versions of a flow count from 1, not {version}")
        self._version = version
        self._ends = frozenset(ends)
        # Copies of two versions may have one name, and each has its own place in its input.
        self._copy_handed_through: dict[Copy, BucketId] = {}

    def _partition(self, partition: Partition) -> str:
        """The partition's name in the history."""
        return str(partition) if partition.name in self._ends else versioned(str(partition), self._version)

    def _copy(self, copy: Copy) -> str:
        return f"{self._partition(copy.partition)}:{copy.replica}"

    def _now(self) -> tuple[int, str]:
        return time.time_ns() // 1_000, self._process

    def _produced(self, buckets: Iterable[Bucket], of: str, to: str) -> None:
        for bucket in buckets:
            if not bucket.empty:
                self._produced_one(bucket, *self._now(), of, to)

    def _produced_one(self, bucket: Bucket, at_us: int, by: str, of: str, to: str) -> None:
        def made() -> Record:
            number, rows, digest = self._look.shown(bucket)
            return ProducedRecord(at_us, by, number, rows, digest, of, to)

        self._note(bucket, made)

    def _note(self, bucket: Bucket, made: Callable[[], Record]) -> None:
        """Have a record made that needs a look into the bucket."""

        def note() -> Iterator[Record]:
            record = made()
            for stream, columns in self._look.left_out().items():
                yield LeftOutRecord(*self._now(), stream, columns)
            yield record

        if self._backlog is not None:
            self._backlog.put(note, bucket.size_bytes)

    def _put(self, record: Record) -> None:
        if self._backlog is not None:
            self._backlog.put(lambda: (record,))


def _with_rows(buckets: Iterable[Bucket]) -> tuple[BucketId, ...]:
    return tuple(bucket.number for bucket in buckets if not bucket.empty)
