"""One source's rows, cut into buckets and sealed.

A stamper reads no clock and keeps no file: tables and times go in, sealed buckets come out, and equal calls
give equal buckets. So the log need only hold what arrived.

Bucket k is sealed by the first of these:
- a row arrives whose time is at or past the end of k plus the source's lateness;
- an explicit boundary (`seal_through`), such as one after enough silence;
- the source is closed: then everything is sealed through `end_bucket`.

Sealed buckets come out in rising numbers. Where the last of them has no rows, a bucket without a table
carries the boundary, so that no consumer waits for rows that do not exist.

A row that belongs to a sealed bucket is late. Rows are judged against what was sealed before their push, so
disorder inside one push is never late. A row far in the future would seal everything before it, so there is a
bound to how far ahead of the source's newest row and of the wall clock it may lie.

A bucket travels in one frame and is one Arrow table, and both have their limits. So a push that would make an
open bucket too large is refused, before anything is promised.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.errors import require
from understudy.flow.durations import duration_text
from understudy.flow.errors import RowError
from understudy.flow.model import Source
from understudy.flow.schema import TIMESTAMP
from understudy.runtime.ingest.buckets import SealedBucket, Times, canonical, end_bucket, split, times_us
from understudy.runtime.transport.pieces import FRAME_BYTES_MAX

#: Half of the largest frame, so that there is room for what surrounds the rows.
BUCKET_BYTES_MAX = FRAME_BYTES_MAX // 2


@dataclass(slots=True)
class _Open:
    """An open bucket: its rows, in the parts in which they came."""

    parts: list[pa.Table] = field(default_factory=list)
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Judged:
    """Rows ready to be taken in, after late ones were treated as the source says."""

    table: pa.Table
    times: Times
    late: int


class Stamper:
    """Holds the open rows of `source`.

    `through` is the number of the last sealed bucket, `last_rows` that of the last one with rows.
    """

    def __init__(self, source: Source, width_us: int) -> None:
        self._source = source
        self._width_us = width_us
        self._open: dict[BucketId, _Open] = {}
        self._end = end_bucket(width_us)
        self.through: BucketId = NOTHING
        self.last_rows: BucketId = NOTHING
        self.newest_us: int | None = None
        self.late = 0

    @property
    def closed(self) -> bool:
        return self.through >= self._end

    @property
    def open_rows(self) -> pa.Table:
        """The rows of open buckets, in an order from which `hold` makes the same buckets again."""
        tables = [table for number in sorted(self._open) for table in self._open[number].parts]
        return pa.concat_tables(tables) if tables else self._source.arrow_schema.empty_table()

    def hold(self, table: pa.Table) -> None:
        """Take in rows of open buckets without sealing anything: how `open_rows` come back from the log."""
        self._add(table, times_us(table, self._source.time))

    def judge(self, table: pa.Table, wall_us: int) -> Judged:
        """What would become of these rows, arriving at `wall_us` by the wall clock.

        Changes nothing; a RowError refuses them all.
        """
        judged = self._in_time(table, wall_us)
        largest = max((each.size_bytes for each in self._open.values()), default=0)
        if judged.table.nbytes + largest > BUCKET_BYTES_MAX:
            for number, rows in split(judged.table, judged.times, self._width_us):
                self._require_room(number, rows.nbytes)
        return judged

    def _require_room(self, number: BucketId, more_bytes: int) -> None:
        size = more_bytes + (self._open[number].size_bytes if number in self._open else 0)
        if size > BUCKET_BYTES_MAX:
            raise RowError(
                f"source {self._source.name!r}: its bucket that starts at "
                f"{pa.scalar(number * self._width_us, TIMESTAMP)} would have {size:,} bytes, and "
                f"{BUCKET_BYTES_MAX:,} are the most. Nothing of this push was taken. Give the flow narrower "
                "buckets."
            )

    def _in_time(self, table: pa.Table, wall_us: int) -> Judged:
        """The rows, after late and early ones were treated as the source says."""
        source = self._source
        require(not self.closed, f"rows for the closed source {source.name!r}")
        times = times_us(table, source.time)
        if not len(times):
            return Judged(table, times, 0)
        table, times, left_out = self._without_future(table, times, wall_us)
        oldest_open_us = (self.through + 1) * self._width_us if self.through != NOTHING else None
        if oldest_open_us is None or not len(times) or int(times.min()) >= oldest_open_us:
            return Judged(table, times, left_out)
        late = times < oldest_open_us
        count = int(np.count_nonzero(late))
        if source.late == "refuse":
            oldest = int(times.argmin())
            raise RowError(
                f"source {source.name!r} refuses late rows, and {count} of the {len(times)} rows are late. "
                f"The oldest is row {oldest}, {table.slice(oldest, 1).to_pylist()[0]}; the oldest open "
                f"bucket starts at {pa.scalar(oldest_open_us, TIMESTAMP)}. Nothing of this push was taken."
            )
        if source.late == "drop":
            kept = ~late
            return Judged(table.filter(pa.array(kept)), times[kept], left_out + count)
        times = np.where(late, oldest_open_us, times)
        at = table.schema.get_field_index(source.time)
        return Judged(
            table.set_column(at, table.schema.field(at), pa.array(times).cast(TIMESTAMP)), times, count
        )

    def _without_future(self, table: pa.Table, times: Times, wall_us: int) -> tuple[pa.Table, Times, int]:
        """The rows that are not too far ahead, and how many were left out."""
        source = self._source
        known_us = wall_us if self.newest_us is None else max(wall_us, self.newest_us)
        newest = int(times.argmax())
        if source.ahead_us is None or int(times[newest]) <= known_us + source.ahead_us:
            return table, times, 0
        kept = times <= known_us + source.ahead_us
        if source.late == "drop":
            return table.filter(pa.array(kept)), times[kept], int(np.count_nonzero(~kept))
        raise RowError(
            f"source {source.name!r}, row {newest}, {table.slice(newest, 1).to_pylist()[0]}, lies more than "
            f"{duration_text(source.ahead_us)} ahead of the source's newest row and of the gateway's clock, "
            f"{pa.scalar(wall_us, TIMESTAMP)}. Nothing of this push was taken. Correct the clock that is "
            "wrong, or allow more with the source's option `ahead`."
        )

    def push(self, judged: Judged) -> list[SealedBucket]:
        """Take the rows in. Returns the buckets that they sealed."""
        self.late += judged.late
        if not len(judged.times):
            return []
        self._add(judged.table, judged.times)
        newest_us = int(judged.times.max())
        self.newest_us = newest_us if self.newest_us is None else max(self.newest_us, newest_us)
        return self.seal_through(self.sealed_by(self.newest_us))

    def seal_through(self, number: BucketId) -> list[SealedBucket]:
        """Seal every bucket up to `number`. Nothing is ever sealed twice."""
        if number <= self.through:
            return []
        self.through = number
        name, time = self._source.name, self._source.time
        ripe = sorted(each for each in self._open if each <= number)
        sealed = [SealedBucket(name, each, canonical(self._open.pop(each).parts, time)) for each in ripe]
        if ripe:
            self.last_rows = ripe[-1]
        return [*sealed, *self.boundary]

    @property
    def boundary(self) -> list[SealedBucket]:
        """The last sealed bucket, if it has no rows and only carries the boundary on."""
        if self.last_rows == self.through:
            return []
        return [SealedBucket(self._source.name, self.through, None)]

    def close(self) -> list[SealedBucket]:
        """The source has ended: seal everything."""
        return self.seal_through(self._end)

    @property
    def reached_us(self) -> int | None:
        """The event time that rows or a boundary have reached; None before the first row."""
        if self.newest_us is None:
            return None
        return max(self.newest_us, (self.through + 1) * self._width_us + self._source.lateness_us)

    def sealed_by(self, time_us: int) -> BucketId:
        """The last bucket that is sealed once event time has reached `time_us`."""
        # Only closing a source seals its end.
        return min((time_us - self._source.lateness_us) // self._width_us, self._end) - 1

    def _add(self, table: pa.Table, times: Times) -> None:
        for number, rows in split(table, times, self._width_us):
            bucket = self._open.setdefault(number, _Open())
            bucket.parts.append(rows)
            bucket.size_bytes += rows.nbytes
