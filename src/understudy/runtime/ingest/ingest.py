"""Ingress: rows in, sealed buckets out, nothing lost and nothing twice.

A push is checked first, then queued in the log, then applied. It may be acknowledged once it is committed
(`commit`), and a bucket goes out (`take`) only when every record that made it is committed: what the outside
has seen can always be made again. After a crash, `recover` replays the log through the same code and returns
the buckets that were not trimmed, byte for byte as before; a client that repeats what it had no answer for is
either recognised or taken in for the first time.

Any thread may call any method. `commit` waits for the disk and holds nobody else up while it does.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.errors import require
from understudy.flow.errors import FlowError, RowError
from understudy.flow.flow import Flow
from understudy.runtime.ingest.aligner import Aligned
from understudy.runtime.ingest.clients import LastPush
from understudy.runtime.ingest.frames import Record, RecordKind
from understudy.runtime.ingest.log import Log
from understudy.runtime.ingest.stamper import END, Stamper
from understudy.runtime.ingest.state import IngestState
from understudy.runtime.payload import encode


@dataclass(frozen=True, slots=True)
class Accepted:
    """A push was taken in, or had been before. Acknowledge it after `commit(position)`."""

    duplicate: bool
    late: int
    position: int


class Ingest:
    """The ingress of `flow`, with its log in `folder`. Call `recover` first."""

    def __init__(self, flow: Flow, folder: Path, *, sync: bool = True, segment_bytes: int = 64 << 20) -> None:
        self._flow = flow
        self._lock = Lock()
        self._state = IngestState(flow)
        self._ready: deque[tuple[int, Bucket]] = deque()
        self._segment_bytes_min = segment_bytes
        self._roll_at_bytes = segment_bytes
        # For each finished segment, the last bucket that went out before its end.
        self._segment_ends: dict[int, BucketId] = {}
        self._trim_position = 0
        self._awake_us: int | None = None
        self._recovered = False
        #: Rows of pushes that were new, since this object was made.
        self.rows_taken = 0
        self._log = Log(folder, sync=sync)

    def recover(self, now_us: int | None = None) -> list[Bucket]:
        """Read the log. Returns every bucket that was sealed and not trimmed, as it was before.

        Silence of an idle source counts from `now_us` on (by default from the first tick): while nobody
        listened, it was not silent.
        """
        require(not self._recovered, "an ingest was recovered twice")
        replayed: list[Aligned] = []

        def replay(segment: int, record: Record) -> None:
            if record.kind is RecordKind.STATE and segment - 1 in seen:
                # The replay of the last segment must have led to where this one begins.
                require(
                    record.head == self._state.head(), f"the log's segment {segment} does not follow the last"
                )
                self._segment_ends[segment - 1] = self._state.aligner.emitted
                seen.add(segment)
                return
            seen.add(segment)
            replayed.extend(self._state.apply(record))

        seen: set[int] = set()
        self._log.recover(replay)
        if not self._log.segment:
            self._log.roll(self._state.record())
        self._roll_at_bytes = max(self._segment_bytes_min, self._log.segment_bytes)
        self._awake_us = now_us
        self._recovered = True
        return [_bucket(aligned) for aligned in replayed if aligned[0] > self._state.trimmed]

    def push(
        self, source: str, table: pa.Table, client: str, sequence: int, note: Any = None, *, now_us: int
    ) -> Accepted:
        """Take in rows of the source's schema (see `rows.to_table`), or refuse them whole with a RowError.

        `note` is any JSON value; `last` gives it back, also after a crash.
        """
        with self._lock:
            stamper = self._stamper(source)
            if self._state.clients.is_repeat(source, client, sequence):
                return Accepted(duplicate=True, late=0, position=self._log.appended)
            if stamper.closed:
                raise RowError(f"source {source!r} was closed: it takes no more rows in this run.")
            expected = self._flow.sources[source].arrow_schema
            require(table.schema.equals(expected), f"rows for {source!r} were pushed without conversion")
            judged = stamper.judge(table)
            head = {
                "source": source,
                "client": client,
                "sequence": sequence,
                "note": note,
                "arrival_us": now_us,
            }
            position = self._log.append(Record(RecordKind.PUSH, head, encode({source: table})))
            self._queue(position, self._state.take_in(head, judged))
            self.rows_taken += table.num_rows
            return Accepted(duplicate=False, late=judged.late, position=position)

    def tick(self, now_us: int) -> None:
        """The wall clock has moved: sources that are silent for longer than their idle time go on."""
        with self._lock:
            if self._awake_us is None:
                self._awake_us = now_us
            boundaries = {
                name: boundary
                for name, stamper in self._state.stampers.items()
                if (boundary := self._idle_boundary(name, now_us, self._awake_us)) > stamper.through
            }
            if boundaries:
                self._seal({"through": boundaries})

    def seal_through(self, source: str, number: BucketId) -> None:
        """The outside promises that no more rows of `source` up to that bucket will come."""
        with self._lock:
            if number > self._stamper(source).through:
                self._seal({"through": {source: number}})

    def close_source(self, source: str) -> None:
        """The source has ended: seal all of it, the last bucket too."""
        with self._lock:
            if not self._stamper(source).closed:
                self._seal({"through": {source: END}})

    def flush(self, through: BucketId) -> None:
        """After every source has ended: one more empty bucket, whose boundary closes windows still open."""
        with self._lock:
            if through > self._state.aligner.emitted:
                self._seal({"flush": through})

    def commit(self, position: int | None = None) -> None:
        """Return once everything up to `position` (by default everything so far) survives a crash."""
        self._log.commit(position)
        with self._lock:
            if self._log.segment_bytes >= self._roll_at_bytes:
                self._roll()
            self._drop_trimmed()

    def take(self) -> list[Bucket]:
        """The buckets that were sealed since the last call, in order, as far as they are committed."""
        out: list[Bucket] = []
        with self._lock:
            while self._ready and self._ready[0][0] <= self._log.durable:
                out.append(self._ready.popleft()[1])
        return out

    def trim(self, through: BucketId) -> None:
        """Buckets up to that number are never needed again. The log forgets them with a later commit."""
        with self._lock:
            if through > self._state.trimmed:
                record = Record(RecordKind.TRIM, {"through": through})
                self._trim_position = self._log.append(record)
                self._state.apply(record)

    def last(self, source: str, client: str) -> LastPush | None:
        """The last push taken from a client; None if there was none."""
        with self._lock:
            return self._state.clients.last(source, client)

    def late(self, source: str) -> int:
        """How many late rows the source has had."""
        return self._stamper(source).late

    def closed(self, source: str) -> bool:
        return self._stamper(source).closed

    @property
    def ended(self) -> bool:
        """Every source is closed, so the last bucket with rows has been sealed."""
        return self._state.aligner.ended

    @property
    def sealed_through(self) -> BucketId:
        """The number of the last bucket that was sealed; NOTHING before the first."""
        return self._state.aligner.emitted

    @property
    def sealed_by_sources(self) -> BucketId:
        """Like `sealed_through`, but without what `flush` added: after the end, where the rows ended."""
        return self._state.aligner.sealed

    @property
    def log_bytes(self) -> int:
        """The size of the log on disk."""
        return self._log.disk_bytes

    def close(self) -> None:
        """Let go of the log. What was not committed is lost, as in a crash."""
        self._log.close()

    def _stamper(self, source: str) -> Stamper:
        require(self._recovered, "an ingest was used before it was recovered")
        stamper = self._state.stampers.get(source)
        if stamper is None:
            known = ", ".join(self._state.stampers)
            raise FlowError(f"flow {self._flow.name!r} has no source {source!r}. It has {known}.")
        return stamper

    def _idle_boundary(self, name: str, now_us: int, awake_us: int) -> BucketId:
        source, stamper = self._flow.sources[name], self._state.stampers[name]
        if source.idle_us is None or stamper.closed:
            return NOTHING
        if stamper.newest_us is not None:
            return stamper.idle_boundary(now_us, awake_us)
        # A source that never had a row has no time of its own to go on from: it follows the others.
        if now_us - awake_us < source.idle_us:
            return NOTHING
        others = [
            other.through
            for key, other in self._state.stampers.items()
            if key != name and not (other.newest_us is None and self._flow.sources[key].idle_us is not None)
        ]
        slowest = min(others, default=NOTHING)
        return slowest if slowest != END else self._state.aligner.last_held

    def _seal(self, head: dict[str, Any]) -> None:
        require(self._recovered, "an ingest was used before it was recovered")
        record = Record(RecordKind.SEAL, head)
        position = self._log.append(record)
        self._queue(position, self._state.apply(record))

    def _queue(self, position: int, buckets: list[Aligned]) -> None:
        self._ready.extend((position, _bucket(aligned)) for aligned in buckets)

    def _roll(self) -> None:
        self._log.commit()
        state = self._state.record()
        self._segment_ends[self._log.segment] = self._state.aligner.emitted
        self._log.roll(state)
        # A segment holds at least as much news as state, or a large state would be written again and again.
        self._roll_at_bytes = max(self._segment_bytes_min, 2 * self._log.segment_bytes)

    def _drop_trimmed(self) -> None:
        # Only once the trim itself is on disk: a bucket must not be asked for after its segment is gone.
        if self._log.durable < self._trim_position:
            return
        done = [segment for segment, end in self._segment_ends.items() if end <= self._state.trimmed]
        if done:
            self._log.drop_through(max(done))
            for segment in done:
                del self._segment_ends[segment]


def _bucket(aligned: Aligned) -> Bucket:
    number, parts = aligned
    if not parts:
        return Bucket(number)
    payload = encode(parts)
    return Bucket(number, payload, len(payload))
