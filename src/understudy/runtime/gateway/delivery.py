"""Delivery: output that reached the gateway, to the writers of the sinks, once and in order.

Every sink has a thread, a position and a journal of its own, so no sink waits for another. The thread takes
all buckets that wait and delivers them as one range. A range that was delivered but not reported when the
process died is reported when the gateway starts again, and never delivered again.

A range goes through four steps, and the process may die between any two: the journal notes it, the writer
takes it, the journal moves the position and keeps the range, the range is reported. A report before the
position is on disk would let the copies forget rows that a writer without a position has to be given again.
A position without its range would leave a delivery that no history ever shows: it would look like a loss.

A bucket comes in parts, one from each partition that has rows. A sink gets one bucket with all rows in the
canonical order, so an output file does not show how a flow was split.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast

import pyarrow as pa

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.errors import require
from understudy.flow.errors import EnvironmentFailed, blamed
from understudy.flow.flow import Flow
from understudy.flow.model import Sink
from understudy.history.records import parts_text
from understudy.runtime.gateway.journal import DeliveredRange, Journal, journal_file
from understudy.runtime.payload import Part, decode, merged_tables, rows_and_digest

__all__ = ["DeliveredRange", "Delivery"]

log = logging.getLogger(__name__)

#: A range is cut here, so that one file never holds more.
RANGE_BYTES_MAX = 64 * 2**20
END_S = 30.0


class Delivery:
    """Delivers buckets to the sinks of a flow, each on its own.

    `on_delivered` is called with the sink's name after each range, from that sink's thread.
    """

    def __init__(
        self,
        flow: Flow,
        folder: Path,
        on_delivered: Callable[[str, DeliveredRange], None],
        on_failure: Callable[[BaseException], None],
        *,
        digests: bool = True,
    ) -> None:
        """Without `digests` the reported ranges have none: they cost time, and only a history needs them."""
        time_of = {name: fragment.time for name, fragment in flow.fragments.items()}
        self._sinks = {
            sink.name: SinkDelivery(sink, folder, time_of, on_delivered, on_failure, digests=digests)
            for sink in flow.sinks.values()
        }

    def recover(self, *, begun: bool = False) -> tuple[dict[str, BucketId], list[tuple[str, DeliveredRange]]]:
        """How far each sink is delivered, and the ranges that were delivered and perhaps not reported.

        `begun` says that this run has taken rows in, so that every sink has its journal.
        """
        unreported = [(name, done) for name, sink in self._sinks.items() for done in sink.recover(begun)]
        return {name: sink.position for name, sink in self._sinks.items()}, unreported

    @property
    def goes_on(self) -> bool:
        """Whether there was a gateway of this run before this one."""
        return any(sink.goes_on for sink in self._sinks.values())

    def start(self) -> None:
        """Begin to deliver, once what `recover` returned is reported."""
        for sink in self._sinks.values():
            sink.start()

    def put(self, sink: str, buckets: Sequence[Bucket], version: int = 1) -> None:
        """Deliver these buckets to a sink, after all that were put for it before. Never blocks.

        A payload is a tuple of parts, (partition, encoded tables); None if there are no rows. Buckets of
        another version of the flow come only when all those before are delivered.
        """
        self._sinks[sink].put(buckets, version)

    def end(self) -> None:
        """Finish what was put before, then stop."""
        deadline = time.monotonic() + END_S
        for sink in self._sinks.values():
            sink.stop()
        for sink in self._sinks.values():
            sink.join(max(0.0, deadline - time.monotonic()))


class SinkDelivery:
    """Delivers the buckets of one sink in a thread of its own."""

    def __init__(
        self,
        sink: Sink,
        folder: Path,
        time_of: Mapping[str, str],
        on_delivered: Callable[[str, DeliveredRange], None],
        on_failure: Callable[[BaseException], None],
        *,
        digests: bool,
    ) -> None:
        self._name = sink.name
        self._input = sink.input
        self._time_of = time_of
        self._on_delivered = on_delivered
        self._on_failure = on_failure
        self._digests = digests
        self._journal = Journal(journal_file(folder, sink.name))
        self._who = f"sink {sink.name!r} ({sink.kind.describe()})"
        with blamed(f"{self._who} could not be opened"):
            self._writer = sink.kind.open(sink.name, folder)
        self._waiting: queue.SimpleQueue[Bucket | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"deliver {sink.name}", daemon=True)
        #: Everything through this bucket is delivered.
        self.position = NOTHING
        self._version = 1
        #: Whether there was a gateway of this run before this one.
        self.goes_on = self._journal.exists
        self._found_unreported = False

    def recover(self, begun: bool = False) -> list[DeliveredRange]:
        """Find the position. Returns the range that was delivered and perhaps not reported, if any."""
        if begun and not self.goes_on:
            raise EnvironmentFailed(
                f"The delivery journal {self._journal.file} is missing, although the run's log has taken "
                "rows in: it was removed. Without it the gateway cannot know what was delivered to sink "
                f"{self._name!r}. Put the file back, or start a new run in a new folder."
            )
        with blamed(f"{self._who} could not be recovered"):
            found = self._writer.recover()
        at_sink = NOTHING if found is None else found
        if not self.goes_on:
            self._require_fresh(at_sink)
            self._journal.write(NOTHING, None)
        before, intent = self._journal.read()
        if intent is not None and intent.through <= before:
            self.position = max(before, at_sink)
            self._found_unreported = True
            return [intent]
        if intent is not None and intent.buckets and at_sink >= intent.buckets[-1][0]:
            self.position = intent.through
            self._journal.write(self.position, intent)
            self._found_unreported = True
            return [intent]
        self.position = max(before, at_sink)
        return []

    def _require_fresh(self, at_sink: BucketId) -> None:
        """A new run must not take another run's output for its own."""
        if at_sink > NOTHING:
            raise EnvironmentFailed(
                f"The output of sink {self._name!r} already holds results of another run. Give this run "
                "another output folder, or move the old one away."
            )

    def start(self) -> None:
        self._thread.start()

    def put(self, buckets: Sequence[Bucket], version: int = 1) -> None:
        self._version = version
        for bucket in buckets:
            self._waiting.put(bucket)

    def stop(self) -> None:
        self._waiting.put(None)

    def join(self, timeout_s: float) -> None:
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            if self._found_unreported:
                self._journal.write(self.position, None)
            while buckets := self._next_range():
                self._deliver(buckets)
            with blamed(f"{self._who} could not be closed"):
                self._writer.close()
        except BaseException as error:
            log.exception("delivery to sink %s failed", self._name)
            self._on_failure(error)

    def _next_range(self) -> list[Bucket]:
        """Everything that waits, at least one bucket; nothing once it is over."""
        buckets: list[Bucket] = []
        size_bytes = 0
        while True:
            if not buckets:
                bucket = self._waiting.get()
            else:
                try:
                    bucket = self._waiting.get_nowait()
                except queue.Empty:
                    return buckets
            if bucket is None:
                # Also for the next call, after the buckets that are in hand.
                self._waiting.put(None)
                return buckets
            buckets.append(bucket)
            size_bytes += bucket.size_bytes
            if size_bytes >= RANGE_BYTES_MAX:
                return buckets

    def _deliver(self, buckets: Sequence[Bucket]) -> None:
        numbers = [bucket.number for bucket in buckets]
        require(all(a < b for a, b in pairwise(numbers)), f"buckets {numbers} were put out of order")
        through = max(self.position, numbers[-1])
        tables: list[tuple[BucketId, pa.Table]] = []
        summary: list[tuple[BucketId, int, str]] = []
        for bucket in buckets:
            if not bucket.empty and bucket.number > self.position:
                table, rows, digest = self._decoded(cast("tuple[Part, ...]", bucket.payload))
                if table is not None and rows:
                    tables.append((bucket.number, table))
                summary.append((bucket.number, rows, digest))
        done = DeliveredRange(self.position, through, tuple(summary), self._version)
        if tables:
            self._journal.write(self.position, done)
            self._hand_over(tables, through)
        self.position = through
        # Kept with the position until it is reported: see above what a crash would do otherwise.
        self._journal.write(through, done)
        self._on_delivered(self._name, done)
        if self._waiting.empty():
            # The next range would replace it. In a long pause its record may get too old to be found.
            self._journal.write(through, None)

    def _hand_over(self, tables: Sequence[tuple[BucketId, pa.Table]], through: BucketId) -> None:
        first = tables[0][0]
        rows = pa.concat_tables([table for _, table in tables]).combine_chunks()
        what = f"buckets {first} to {through} ({rows.num_rows} rows), which count as not delivered"
        with blamed(f"{self._who} failed on {what}"):
            self._writer.deliver(rows, first, through)

    def _decoded(self, parts: Sequence[Part]) -> tuple[pa.Table | None, int, str]:
        """A bucket's rows for this sink, how many there are, and the digests of its parts."""
        pieces: list[pa.Table] = []
        digests: dict[str, str] = {}
        total = 0
        for partition, payload in sorted(parts, key=lambda part: part[0]):
            tables = decode(payload)
            if self._input in tables:
                pieces.append(tables[self._input])
                total += tables[self._input].num_rows
            if self._digests:
                rows, digest = rows_and_digest(tables)
                if rows:
                    digests[str(partition)] = digest
        table = merged_tables(self._input, pieces, self._time_of) if pieces else None
        return table, total, parts_text(digests)
