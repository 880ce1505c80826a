"""Delivery: what egress received, to the sinks, once and in order.

A thread takes everything that waits and delivers it as one range. Before a range is written, a small
journal says which range it is; the sinks' own positions say afterwards whether it got there. So after a
crash it is known exactly what was delivered, also for a range whose files were in place when the process
died: it is recorded as delivered on the way up, and never delivered again.

The buckets of a partitioned flow come in parts, one of each partition that has rows. What the sinks get is
one bucket with all of them in the canonical order, so an output file does not tell how a flow was split.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pyarrow as pa

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.flow.errors import EnvironmentFailed
from understudy.flow.flow import Flow
from understudy.runtime.payload import Part, decode, merged
from understudy.runtime.recording import shown
from understudy.runtime.sinks.opening import open_writer

log = logging.getLogger(__name__)

#: A range is cut here, so that one file never holds more.
RANGE_BYTES_MAX = 64 * 2**20


@dataclass(frozen=True)
class DeliveredRange:
    """Buckets (after, through], of which these had rows: number, rows, digest."""

    after: BucketId
    through: BucketId
    buckets: tuple[tuple[BucketId, int, str], ...]


class Delivery:
    """Delivers buckets to every sink of a flow; calls `on_delivered`, from its thread, after each range."""

    def __init__(
        self,
        flow: Flow,
        folder: Path,
        on_delivered: Callable[[DeliveredRange], None],
        on_failure: Callable[[BaseException], None],
        *,
        digests: bool = True,
    ) -> None:
        """Without `digests` what is reported has none: they cost time, and only a history needs them."""
        self._on_delivered = on_delivered
        self._on_failure = on_failure
        self._journal = folder / "delivery.json"
        self._sinks = {sink.name: (sink.input, open_writer(sink, folder)) for sink in flow.sinks.values()}
        self._time = {name: fragment.time for name, fragment in flow.fragments.items()}
        self._digests = digests
        self._position = NOTHING
        self._waiting: queue.SimpleQueue[Bucket | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="delivery", daemon=True)

    def recover(self) -> tuple[BucketId, DeliveredRange | None]:
        """How far everything is delivered, and the range that was delivered but not yet reported, if any."""
        positions = {name: writer.recover() for name, (_, writer) in self._sinks.items()}
        at_sinks = min(positions.values())
        if not self._journal.exists():
            self._require_fresh(positions)
            self._write_journal(None)
        before, intent = self._read_journal()
        if intent is not None and intent.buckets and at_sinks >= intent.buckets[-1][0]:
            self._position = intent.through
            self._write_journal(None)
            return self._position, intent
        self._position = max(before, at_sinks)
        return self._position, None

    def _require_fresh(self, positions: Mapping[str, BucketId]) -> None:
        """A new run must not take another run's output for its own."""
        used = [name for name, position in positions.items() if position > NOTHING]
        if used:
            raise EnvironmentFailed(
                f"The output of sink {used[0]!r} already holds results of another run. Give this run another "
                "output folder, or move the old one away."
            )

    def start(self) -> None:
        self._thread.start()

    def put(self, bucket: Bucket) -> None:
        """Deliver this bucket after all that were put before."""
        self._waiting.put(bucket)

    def end(self) -> None:
        """Finish what was put before, then stop."""
        self._waiting.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    def _run(self) -> None:
        try:
            while buckets := self._next_range():
                self._deliver(buckets)
        except BaseException as error:
            log.exception("delivery failed")
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
        through = buckets[-1].number
        tables: dict[str, list[tuple[BucketId, pa.Table]]] = {name: [] for name in self._sinks}
        summary: list[tuple[BucketId, int, str]] = []
        for bucket in buckets:
            if bucket.empty:
                continue
            streams = self._streams(bucket)
            for name, (fragment, _) in self._sinks.items():
                if fragment in streams:
                    tables[name].append((bucket.number, streams[fragment]))
            rows = sum(table.num_rows for table in streams.values())
            summary.append(shown(bucket) if self._digests else (bucket.number, rows, ""))
        done = DeliveredRange(self._position, through, tuple(summary))
        if summary:
            self._write_journal(done)
            for name, (_, writer) in self._sinks.items():
                writer.deliver(tables[name], through)
        self._position = through
        self._write_journal(None)
        self._on_delivered(done)

    def _streams(self, bucket: Bucket) -> dict[str, pa.Table]:
        """The rows of a bucket by the fragment that made them."""
        if isinstance(bucket.payload, tuple):
            return merged(cast(tuple[Part, ...], bucket.payload), self._time)
        return decode(cast(bytes, bucket.payload))

    # --- the journal -------------------------------------------------------------------------------------

    def _write_journal(self, intent: DeliveredRange | None) -> None:
        whole = {
            "position": self._position,
            "intent": None
            if intent is None
            else {"after": intent.after, "through": intent.through, "buckets": intent.buckets},
        }
        half = self._journal.with_suffix(".half")
        with half.open("w") as file:
            json.dump(whole, file)
            file.flush()
            os.fdatasync(file.fileno())
        half.replace(self._journal)

    def _read_journal(self) -> tuple[BucketId, DeliveredRange | None]:
        if not self._journal.exists():
            return NOTHING, None
        whole = json.loads(self._journal.read_text())
        intent = whole["intent"]
        if intent is None:
            return whole["position"], None
        buckets = tuple((number, rows, text) for number, rows, text in intent["buckets"])
        return whole["position"], DeliveredRange(intent["after"], intent["through"], buckets)
