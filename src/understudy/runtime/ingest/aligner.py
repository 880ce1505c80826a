"""The sealed buckets of several sources as the flow's one sequence of buckets.

Number k goes out when every source has sealed it, with the rows of all of them. Numbers without rows are
skipped; when the common boundary passes the last bucket with rows, one empty bucket carries it on, so that
nothing downstream waits for rows that do not exist. The sequence begins with the first bucket that has rows.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.errors import require
from understudy.runtime.ingest.stamper import END, Sealed

#: A bucket of the flow: its number and the rows of each source that has any.
Aligned = tuple[BucketId, dict[str, pa.Table]]


class Aligner:
    """`emitted` is the number of the last bucket that went out; `sealed` leaves those of `flush` out."""

    def __init__(self, sources: Iterable[str]) -> None:
        self._through: dict[str, BucketId] = dict.fromkeys(sources, NOTHING)
        self._held: dict[BucketId, dict[str, pa.Table]] = {}
        self.emitted: BucketId = NOTHING
        self.sealed: BucketId = NOTHING

    @property
    def ended(self) -> bool:
        """Every source is closed, so every bucket with rows has gone out."""
        return min(self._through.values()) == END

    @property
    def last_held(self) -> BucketId:
        """The greatest number that waits for other sources; NOTHING if none does."""
        return max(self._held, default=NOTHING)

    def held_rows(self, source: str) -> pa.Table | None:
        """The rows of one source that wait for others, bucket by bucket."""
        tables = [self._held[number][source] for number in sorted(self._held) if source in self._held[number]]
        return pa.concat_tables(tables) if tables else None

    def through(self, source: str) -> BucketId:
        return self._through[source]

    def hold(self, source: str, buckets: Sealed, through: BucketId) -> None:
        """Set a source's sealed buckets and boundary without emitting: how they come back from the log."""
        for number, table in buckets:
            require(number > self.emitted, f"bucket {number} of {source!r} was sealed after it went out")
            self._held.setdefault(number, {})[source] = table
        self._through[source] = through

    def add(self, source: str, buckets: Sealed, through: BucketId) -> list[Aligned]:
        """A source has sealed these buckets, and everything up to `through`. Returns what can go out."""
        self.hold(source, buckets, through)
        boundary = min(self._through.values())
        ripe = sorted(number for number in self._held if number <= boundary)
        out: list[Aligned] = []
        for number in ripe:
            parts = self._held.pop(number)
            out.append((number, {name: parts[name] for name in sorted(parts)}))
        if ripe:
            self.emitted = ripe[-1]
        # After the end there is no boundary that a number could carry.
        if boundary != END and self.emitted != NOTHING and boundary > self.emitted:
            out.append((boundary, {}))
            self.emitted = boundary
        if out:
            self.sealed = self.emitted
        return out

    def flush(self, number: BucketId) -> list[Aligned]:
        """Carry the boundary on past the end of all sources."""
        require(self.ended, "flushed before every source was closed")
        if self.emitted == NOTHING or number <= self.emitted:
            return []
        self.emitted = number
        return [(number, {})]
