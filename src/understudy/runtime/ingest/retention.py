"""Which segments the log keeps, and which buckets lie in them.

Two positions of every source decide about a segment. Every live copy has what is *trimmed*: a gateway that
starts again does not put it in. No saved snapshot needs what is *forgotten*, either. So a recovery reads the
log from the first segment with rows that are not trimmed, and a segment is dropped once all rows that were
sealed before its end are forgotten. Between the two lies what only a reader reads again.

Only buckets with rows count. A bucket without rows carries a boundary on, and the state that the next segment
opens with has that boundary. It must not count: consumers acknowledge all sources through what the slowest
one has reached. The end of a source, or a boundary far ahead, would hold the log up as long as another source
goes on.

For every finished segment there is an entry: its size, and the last bucket with rows of each source that was
sealed before its end. The table is small, and every STATE record holds all of it. So neither a recovery nor a
reader opens a segment that it does not need, and a segment that was cut off is noticed without being read.

Any thread may call any method. The lock is held for a look at the table, to open a file and to delete files,
never to read them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Any, NamedTuple

from understudy.core.bucket import NOTHING, BucketId
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.ingest.frames import FrameFile
from understudy.runtime.ingest.log import Log

PUT_BACK = "Put the files back, or start a new run in a new folder."


class SegmentEnd(NamedTuple):
    size_bytes: int
    #: The last bucket with rows of each source that was sealed before the segment's end.
    last_rows: dict[str, BucketId]


class OpenedSegment(NamedTuple):
    number: int
    file: FrameFile
    #: The last bucket with rows of the source that was sealed before the segment's beginning.
    last_rows: BucketId


class Retention:
    """The table of the segments of `log`."""

    def __init__(self, log: Log, sources: Iterable[str]) -> None:
        self._log = log
        self._lock = Lock()
        # Ascending and without a gap, from the last segment that was dropped to the last that is finished.
        self._ends = {0: SegmentEnd(0, dict.fromkeys(sources, NOTHING))}
        # What was forgotten by records that may not be on disk yet, and by those that are.
        self._forgets: deque[tuple[int, str, BucketId]] = deque()
        self._forgotten = dict(self._ends[0].last_rows)

    def facts(self) -> list[list[Any]]:
        """The table, for the head of a STATE record."""
        with self._lock:
            return [[number, end.size_bytes, end.last_rows] for number, end in self._ends.items()]

    def restore(self, facts: list[list[Any]]) -> None:
        """Take over the table that the newest segment opens with."""
        newest = self._log.segments[-1]
        if facts[-1][0] != newest - 1:
            raise EnvironmentFailed(
                f"The log {self._log.folder} has the segment {newest:08d}.wal, which was begun as "
                f"{facts[-1][0] + 1:08d}.wal: files were renamed. {PUT_BACK}"
            )
        self._ends = {number: SegmentEnd(size_bytes, last_rows) for number, size_bytes, last_rows in facts}
        # A loss of power may bring back files that were deleted.
        self._log.drop_through(facts[0][0])

    def first_after(self, positions: Mapping[str, BucketId]) -> int:
        """The first segment in which rows after their source's position may have been sealed."""
        for number, end in self._ends.items():
            if any(rows > positions[source] for source, rows in end.last_rows.items()):
                return number
        return self._last + 1

    def require_sizes(self) -> None:
        """Refuse a finished segment that is shorter or longer than it was."""
        for number in self._log.segments[:-1]:
            self._log.require_size(number, self._ends[number].size_bytes)

    def resume(self, forgotten: Mapping[str, BucketId]) -> None:
        """Go on from a log that was read to its end. Refuses one whose first segments were not dropped."""
        first = self._log.segments[0]
        for source, last_rows in self._ends[first - 1].last_rows.items():
            if last_rows > forgotten[source]:
                raise EnvironmentFailed(
                    f"The log {self._log.folder} lacks the segments before {first:08d}.wal: they were "
                    f"removed. Acknowledged rows of source {source!r}, up to bucket {last_rows}, cannot be "
                    f"recovered without them. {PUT_BACK}"
                )
        self._forget_before(first - 1)
        self._forgotten = dict(forgotten)

    def finish(self, last_rows: dict[str, BucketId]) -> None:
        """The current segment is complete: all of it is on disk, and the next one is about to begin."""
        with self._lock:
            number, size_bytes = self._log.end
            self._ends[number] = SegmentEnd(size_bytes, last_rows)

    def forget(self, position: int, source: str, through: BucketId) -> None:
        """Buckets of `source` up to that number are not needed, once the record at `position` is on disk."""
        with self._lock:
            self._forgets.append((position, source, through))

    def drop_forgotten(self) -> None:
        """Delete the segments that hold nothing that is needed."""
        with self._lock:
            # Only once it is on disk: a bucket must not be missed after its segment is gone.
            while self._forgets and self._forgets[0][0] <= self._log.durable:
                _, source, through = self._forgets.popleft()
                self._forgotten[source] = through
            done = first = self._first
            for number, end in self._ends.items():
                if any(rows > self._forgotten[source] for source, rows in end.last_rows.items()):
                    break
                done = number
            if done > first:
                self._log.drop_through(done)
                self._forget_before(done)

    def open_after(self, source: str, after: BucketId) -> OpenedSegment:
        """The first segment in which rows of `source` after that number were sealed, or may still be.

        Opened at once, so that it can be read to its end whatever is forgotten meanwhile.
        """
        with self._lock:
            held_after = self._ends[self._first].last_rows[source]
            if after < held_after:
                raise EnvironmentFailed(
                    f"The log {self._log.folder} holds no bucket of source {source!r} up to {held_after} any "
                    f"more, and those {_after(after)} are asked for. They were dropped when no saved "
                    "snapshot needed them. Begin with a newer snapshot, or start a new run in a new folder."
                )
            kept = (
                number
                for number, end in self._ends.items()
                if number > self._first and end.last_rows[source] > after
            )
            number = next(kept, self._log.segment)
            return OpenedSegment(
                number, self._log.open_segment(number), self._ends[number - 1].last_rows[source]
            )

    def end_of(self, number: int) -> SegmentEnd | None:
        """How a finished segment ends; None if it was dropped."""
        with self._lock:
            return self._ends.get(number)

    @property
    def size_bytes(self) -> int:
        """What all segments take on disk."""
        with self._lock:
            current, size_bytes = self._log.end
            kept = (end for number, end in self._ends.items() if self._first < number < current)
            return sum(end.size_bytes for end in kept) + size_bytes

    @property
    def _first(self) -> int:
        return next(iter(self._ends))

    @property
    def _last(self) -> int:
        return next(reversed(self._ends))

    def _forget_before(self, first: int) -> None:
        self._ends = {number: end for number, end in self._ends.items() if number >= first}


def _after(number: BucketId) -> str:
    return "from the first on" if number == NOTHING else f"after {number}"
