"""Ingest: rows in, sealed buckets out, nothing lost and nothing twice.

Every source has a rising sequence of sealed buckets of its own and is trimmed on its own; no source waits for
another. They share one log, so that a commit syncs the disk once for all of them.

Two positions of a source say what is over. `trim`: every live copy has these buckets, so a restart does not
put them in again. `forget`: no saved snapshot needs them, either, so the log need not hold them. A segment of
the log goes when every source is forgotten past the rows that the segment holds (see `retention`). Until then
a `reader` gives its buckets again.

A push is checked first, then queued in the log, then applied. It may be acknowledged once it is committed
(`commit`), and a bucket goes out (`take`) only when every record that made it is committed: every bucket that
was seen outside can be made again. After a crash, `recover` replays the log through the same code and returns
the buckets with rows that were not trimmed, byte for byte as before, and how far each source was sealed. A
push that a client repeats because it was not acknowledged is either recognised or taken in for the first
time.

Any thread may call any method. `commit` waits for the disk without holding up other threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.errors import BrokenInvariant, require
from understudy.flow.errors import EnvironmentFailed, FlowError, RowError
from understudy.flow.flow import Flow
from understudy.runtime.ingest.buckets import SealedBucket, end_bucket
from understudy.runtime.ingest.clients import LastPush
from understudy.runtime.ingest.frames import Record, RecordKind
from understudy.runtime.ingest.log import Log
from understudy.runtime.ingest.rereading import LogReader
from understudy.runtime.ingest.retention import PUT_BACK, Retention
from understudy.runtime.ingest.rows import to_stream
from understudy.runtime.ingest.silence import Silence
from understudy.runtime.ingest.stamper import Stamper
from understudy.runtime.ingest.state import IngestState, require_readable


@dataclass(frozen=True, slots=True)
class PushAccepted:
    """A push was taken in, or had been before. Acknowledge it after `commit(position)`."""

    duplicate: bool
    late: int
    position: int


class Ingest:
    """The ingest of `flow`, with its log in `folder`. Call `recover` first."""

    def __init__(self, flow: Flow, folder: Path, *, sync: bool = True, segment_bytes: int = 64 << 20) -> None:
        self._flow = flow
        self._lock = Lock()
        self._state = IngestState(flow)
        self._ready: deque[tuple[int, SealedBucket]] = deque()
        self._segment_bytes_min = segment_bytes
        self._roll_at_bytes = segment_bytes
        self._silences = {
            name: Silence(self._state.stampers[name], source.idle_us)
            for name, source in flow.sources.items()
            if source.idle_us is not None
        }
        self._recovered = False
        #: Whether the log had taken in anything before this object was made; known after `recover`.
        self.goes_on = False
        #: Rows of pushes that were new, since this object was made.
        self.rows_taken = 0
        self._folder = folder
        self._log = Log(folder, sync=sync)
        self._retention = Retention(self._log, flow.sources)

    def recover(self, *, begun: str | None = None) -> list[SealedBucket]:
        """Read the log. Returns every bucket with rows that was sealed and not trimmed, as it was before, and
        of each source at least the last of those without rows.

        `begun` names what shows that this run has had a log; without it a folder without one is a new run's.
        """
        require(not self._recovered, "an ingest was recovered twice")
        try:
            replayed = self._replay(begun)
        except BaseException:
            self._log.close()
            raise
        if not self._log.segment:
            self._log.roll(self._state.record(self._retention.facts()))
        self._roll_at_bytes = max(self._segment_bytes_min, self._log.segment_bytes)
        self._recovered = True
        return [bucket for bucket in replayed if bucket.number > self._state.trimmed[bucket.source]]

    def _replay(self, begun: str | None) -> list[SealedBucket]:
        """Replay the log from the first segment that memory needs. Returns what was sealed since,
        without what was trimmed when the newest segment began.
        """
        opening = self._log.opening()
        if opening is None:
            self._require_new(begun)
            self._log.recover(lambda _segment, _record: None)
            return []
        require_readable(self._flow, opening.head)
        self._retention.restore(opening.head["segments"])
        self._retention.require_sizes()
        # More may have been trimmed since the newest segment began: that only means to read a little more.
        trimmed = {name: facts["trimmed"] for name, facts in opening.head["sources"].items()}
        replayed: list[SealedBucket] = []
        replaying = 0

        def replay(segment: int, record: Record) -> None:
            nonlocal replaying
            follows = record.kind is RecordKind.STATE and bool(replaying)
            self.goes_on = self.goes_on or bool(replaying) or segment > 1
            replaying = segment
            if follows:
                # The replay of the last segment must have led to where this one begins.
                reached = self._state.head(record.head["segments"])
                require(record.head == reached, f"the log's segment {segment} does not follow the last")
            else:
                # One source may be trimmed much further than another: what is over must not fill memory.
                replayed.extend(
                    each for each in self._state.apply(record) if each.number > trimmed[each.source]
                )

        self._log.recover(replay, self._retention.first_after(trimmed))
        self._retention.resume(self._state.forgotten)
        return replayed

    def require_through(self, delivered: Mapping[str, BucketId]) -> None:
        """Refuse a log that ends before what sinks have received: that was sealed here first."""
        end = max(self._state.through.values())
        for sink, through in delivered.items():
            if through > end:
                raise EnvironmentFailed(
                    f"The log {self._folder} ends with bucket {end}, although sink {sink!r} has received all "
                    f"through bucket {through}: the log's newest part was removed, or it is an older copy. "
                    f"Rows that were acknowledged cannot be recovered without it. {PUT_BACK}"
                )

    def push(
        self,
        source: str,
        table: pa.Table,
        client: str,
        sequence: int,
        note: Any = None,
        *,
        now_us: int,
        stream: bytes | memoryview | None = None,
    ) -> PushAccepted:
        """Take in rows of the source's schema (see `rows.to_table`), or refuse all of them with a RowError.

        `now_us` is the wall clock's time. `note` is any JSON value; `last` gives it back, also after a crash.
        `stream` is the table as an Arrow IPC stream, if there is one already: the log keeps its bytes.
        """
        with self._lock:
            stamper = self._stamper(source)
            if source in self._silences:
                self._silences[source].heard()
            if self._state.clients.is_repeat(source, client, sequence):
                return PushAccepted(duplicate=True, late=0, position=self._log.appended)
            if stamper.closed:
                raise RowError(f"source {source!r} was closed: it takes no more rows in this run.")
            expected = self._flow.sources[source].arrow_schema
            require(table.schema.equals(expected), f"rows for {source!r} were pushed without conversion")
            judged = stamper.judge(table, now_us)
            head = {
                "source": source,
                "client": client,
                "sequence": sequence,
                "note": note,
                "arrival_us": now_us,
            }
            body = to_stream(table) if stream is None else stream
            position = self._log.append(Record(RecordKind.PUSH, head, body))
            try:
                self._queue(position, self._state.take_in(head, judged))
            except Exception as problem:
                # Neither taken nor refused: only a new beginning from the log can tell.
                raise BrokenInvariant(f"rows of {source!r} are in the log, and then: {problem}") from problem
            self.rows_taken += table.num_rows
            return PushAccepted(duplicate=False, late=judged.late, position=position)

    def tick(
        self, now_us: int, deaf: Collection[str] = (), asked_us: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """The monotonic clock shows `now_us`: sources that are silent for their idle time go on.

        `deaf` names the sources of which rows may have come unheard since the last tick; `asked_us` tells
        when each reader was last asked. Call it often: a gap between two ticks counts as if the process had
        been stopped.
        """
        with self._lock:
            require(self._recovered, "an ingest was used before it was recovered")
            boundaries: dict[str, BucketId] = {}
            for name, silence in self._silences.items():
                silence.tick(now_us, deaf=name in deaf, asked_us=asked_us.get(name))
                stamper = self._state.stampers[name]
                if silence.long_enough and not stamper.closed:
                    boundary = self._others(name) if stamper.newest_us is None else silence.boundary
                    if boundary > stamper.through:
                        boundaries[name] = boundary
            if boundaries:
                self._seal(boundaries)

    def seal_through(self, source: str, number: BucketId) -> None:
        """The outside promises that no more rows of `source` up to that bucket will come."""
        with self._lock:
            stamper = self._stamper(source)
            require(number < end_bucket(self._flow.bucket_us), f"only closing {source!r} seals its end")
            if number > stamper.through:
                self._seal({source: number})

    def close_source(self, source: str) -> None:
        """The source has ended: seal all of it, through `end_bucket`."""
        with self._lock:
            if not self._stamper(source).closed:
                self._seal({source: end_bucket(self._flow.bucket_us)})

    def commit(self, position: int | None = None) -> None:
        """Return once everything up to `position` (by default everything so far) survives a crash."""
        self._log.commit(position)
        with self._lock:
            if self._log.segment_bytes >= self._roll_at_bytes:
                self._roll()
            self._retention.drop_forgotten()

    def take(self) -> list[SealedBucket]:
        """The buckets that were sealed since the last call, of each source in order, as far as committed."""
        out: list[SealedBucket] = []
        with self._lock:
            while self._ready and self._ready[0][0] <= self._log.durable:
                out.append(self._ready.popleft()[1])
        return out

    def trim(self, source: str, through: BucketId) -> None:
        """Every live copy has the buckets of `source` up to that number: `recover` does not return them."""
        with self._lock:
            self._stamper(source)
            if through > self._state.trimmed[source]:
                self._note(RecordKind.TRIM, source, through)

    def forget(self, source: str, through: BucketId) -> None:
        """No saved snapshot needs the buckets of `source` up to that number: no reader will ask for them.

        The log drops them with a later commit. What is not trimmed is not forgotten: a snapshot of the
        quickest copy may be saved before the slowest has acknowledged as much. So this may have to be called
        again, as it is for the next snapshot; `forgotten` says how far it went.
        """
        with self._lock:
            self._stamper(source)
            through = min(through, self._state.trimmed[source])
            if through > self._state.forgotten[source]:
                self._retention.forget(self._note(RecordKind.FORGET, source, through), source, through)

    def reader(self, source: str, after: BucketId) -> LogReader:
        """Reads the sealed buckets of `source` after that number again, as far as they are committed.

        EnvironmentFailed if the log does not hold all of them any more. The caller closes the reader, and
        forgets no bucket that the reader is still to give.
        """
        self._stamper(source)
        return LogReader(self._flow, source, after, self._log, self._retention)

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
        return all(stamper.closed for stamper in self._state.stampers.values())

    @property
    def sealed_through(self) -> dict[str, BucketId]:
        """The number of the last sealed bucket of each source; NOTHING before the first."""
        return self._state.through

    @property
    def trimmed(self) -> dict[str, BucketId]:
        """How far each source is trimmed; NOTHING before the first time."""
        return dict(self._state.trimmed)

    @property
    def forgotten(self) -> dict[str, BucketId]:
        """How far each source is forgotten, which is never further than it is trimmed."""
        return dict(self._state.forgotten)

    @property
    def last_rows(self) -> BucketId:
        """The greatest number of a sealed bucket with rows, of any source; NOTHING before the first."""
        return max(self._state.last_rows.values())

    @property
    def log_bytes(self) -> int:
        """The size of the log on disk."""
        return self._retention.size_bytes

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

    def _require_new(self, begun: str | None) -> None:
        """A log without any segment must not be taken for a new one."""
        if begun is not None:
            raise EnvironmentFailed(
                f"The log folder {self._folder} has no segment (*.wal), although {begun}: the log was "
                f"removed. Rows that were acknowledged cannot be recovered without it. {PUT_BACK}"
            )

    def _others(self, name: str) -> BucketId:
        """How far the others are: a source that never had a row has no time of its own to go on from."""
        others = [
            other.through
            for key, other in self._state.stampers.items()
            if key != name and not (other.newest_us is None and self._flow.sources[key].idle_us is not None)
        ]
        slowest = min(others, default=NOTHING)
        # The others have ended, this source has not: it seals all their rows and not its own end.
        return slowest if slowest < end_bucket(self._flow.bucket_us) else self.last_rows

    def _seal(self, through: dict[str, BucketId]) -> None:
        require(self._recovered, "an ingest was used before it was recovered")
        record = Record(RecordKind.SEAL, {"through": through})
        position = self._log.append(record)
        self._queue(position, self._state.apply(record))

    def _queue(self, position: int, buckets: list[SealedBucket]) -> None:
        self._ready.extend((position, bucket) for bucket in buckets)

    def _note(self, kind: RecordKind, source: str, through: BucketId) -> int:
        """Trim or forget. Returns the position of the record that says so."""
        record = Record(kind, {"source": source, "through": through})
        position = self._log.append(record)
        self._state.apply(record)
        return position

    def _roll(self) -> None:
        self._log.commit()
        self._retention.finish(self._state.last_rows)
        self._log.roll(self._state.record(self._retention.facts()))
        # A segment holds at least as much news as state, or a large state would be written again and again.
        self._roll_at_bytes = max(self._segment_bytes_min, 2 * self._log.segment_bytes)
