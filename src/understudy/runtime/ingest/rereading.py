"""Reading the log again: the sealed buckets of one source, as they were the first time.

After all copies of a partition were lost, the partition begins with a saved snapshot, which stands at an
older bucket than the gateway's memory. A reader gives it what was sealed since, while the gateway goes on.

A segment opens with the rows of all buckets that were open then, and records change a stamper in one way
only. So a reader begins with any segment and makes the same buckets as the first time. It goes straight to
the segments in which rows of its source were sealed; of the buckets without rows that it passes it gives the
last, which the state of the next segment has. It reads one frame at a time, only what is on disk, and decodes
no push of another source. What it keeps in memory is one frame and the open rows of its source.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from understudy.core.bucket import BucketId
from understudy.core.errors import require
from understudy.flow.errors import EnvironmentFailed
from understudy.flow.flow import Flow
from understudy.runtime.ingest.buckets import SealedBucket
from understudy.runtime.ingest.frames import Record, RecordKind
from understudy.runtime.ingest.log import Log
from understudy.runtime.ingest.retention import Retention
from understudy.runtime.ingest.rows import read_stream
from understudy.runtime.ingest.stamper import Stamper
from understudy.runtime.ingest.state import require_readable, restore_stamper
from understudy.runtime.payload import decode

#: What a bucket takes without its rows: many boundaries together are not nothing.
_BUCKET_BYTES = 100


class LogReader:
    """The buckets of `source` after `after`. For one thread at a time; any other may push, trim and forget.

    Numbers up to the last one that `read` gave may be forgotten meanwhile.
    """

    def __init__(self, flow: Flow, source: str, after: BucketId, log: Log, retention: Retention) -> None:
        self._flow = flow
        self._source = source
        self._log = log
        self._retention = retention
        #: All buckets up to this one were given, or were not asked for.
        self._through = after
        self._ready: deque[SealedBucket] = deque()
        self._failure: EnvironmentFailed | None = None
        self._records: Iterator[Record] = iter(())
        self._stamper = Stamper(flow.sources[source], flow.bucket_us)
        self._segment = retention.open_after(source, after)

    def read(self, bytes_max: int) -> list[SealedBucket]:
        """The next buckets, in order: as many as fit into `bytes_max`, but at least one if there is one.

        An empty list: everything that is sealed and on disk was given. There may be more later.
        EnvironmentFailed: the log is damaged, or what comes next was forgotten; all that comes before was
        given, and the reader stays failed. It waits for the disk only.
        """
        if self._failure is not None:
            raise self._failure
        out: list[SealedBucket] = []
        try:
            self._read_into(out, bytes_max)
        except EnvironmentFailed as problem:
            self._failure = problem
            if not out:
                raise
        return out

    def _read_into(self, out: list[SealedBucket], bytes_max: int) -> None:
        size_bytes = 0
        # A source may have no other bucket in all of a long log: what is full is given at once.
        while (not out or size_bytes < bytes_max) and (self._ready or self._replay_next()):
            while self._ready:
                size_bytes += _size_bytes(self._ready[0])
                if out and size_bytes > bytes_max:
                    return
                out.append(self._ready.popleft())
                self._through = out[-1].number

    def close(self) -> None:
        """Let go of the file."""
        self._segment.file.close()

    def _replay_next(self) -> bool:
        """Replay one more record; False at the end of what is on disk."""
        record = next(self._records, None)
        while record is None:
            if not self._next_frame():
                return False
            record = next(self._records, None)
        self._ready.extend(bucket for bucket in self._apply(record) if bucket.number > self._through)
        return True

    def _next_frame(self) -> bool:
        """Go on to the next frame or the next segment; False at the end of what is on disk."""
        number, file, _ = self._segment
        current, synced_bytes = self._log.end
        if number != current:
            end = self._retention.end_of(number)
            # A segment that was dropped is complete, too, and never changes again.
            synced_bytes = file.size_bytes if end is None else end.size_bytes
        frame = file.next_frame(synced_bytes)
        if frame is not None:
            self._records = frame
        elif number != current:
            self._next_segment()
        else:
            return False
        return True

    def _next_segment(self) -> None:
        number, file, _ = self._segment
        end = self._retention.end_of(number)
        rows = self._stamper.last_rows
        require(
            end is None or rows == end.last_rows[self._source],
            f"{file.path} has rows of {self._source!r} through {rows}, and then through {end}",
        )
        self._through = max(self._through, self._stamper.through)
        opened = self._retention.open_after(self._source, self._through)
        file.close()
        self._segment = opened

    def _apply(self, record: Record) -> list[SealedBucket]:
        """What the ingest did with this record, as far as it concerns the source."""
        head, name = record.head, self._source
        match record.kind:
            case RecordKind.STATE:
                require_readable(self._flow, head)
                facts = head["sources"][name]
                path, rows = self._segment.file.path, self._segment.last_rows
                require(facts["last_rows"] == rows, f"{path} begins after {facts['last_rows']}, not {rows}")
                self._stamper = Stamper(self._flow.sources[name], self._flow.bucket_us)
                # A copy: a table must not keep a whole frame in memory, and it is aligned.
                restore_stamper(self._stamper, facts, decode(bytes(record.body))[name])
                return self._stamper.boundary
            case RecordKind.PUSH if head["source"] == name:
                table = read_stream(self._flow.sources[name], bytes(record.body))
                return self._stamper.push(self._stamper.judge(table, head["arrival_us"]))
            case RecordKind.SEAL if name in head["through"]:
                return self._stamper.seal_through(head["through"][name])
        return []


def _size_bytes(bucket: SealedBucket) -> int:
    return _BUCKET_BYTES + (0 if bucket.table is None else int(bucket.table.nbytes))
