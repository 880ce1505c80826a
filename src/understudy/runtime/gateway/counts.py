"""What a gateway counts for its status: rows put out, and how late they came.

**Latency** is how long after the end of its bucket output reached a sink. Of several sinks the one furthest
behind counts, because the others would hide it. It is said of output that came lately: a sink that has had
nothing to take since, of windows that stay open for example, is not behind. Nor is it said of rows that were
dated back by more than a day: that is the age of the rows, and no figure for how the flow does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from understudy.core.bucket import end_of
from understudy.runtime.gateway.delivery import DeliveredRange

#: For so long a sink's latency is said after its last output.
LATENCY_STANDS_S = 30.0
LATENCY_S_MAX = 24 * 3_600.0


class Counts:
    """Written by several threads, each its own fields, read by any. `clock` tells the wall time."""

    def __init__(self, bucket_us: int, clock: Callable[[], float] = time.time) -> None:
        self._bucket_us = bucket_us
        self._clock = clock
        self._lock = threading.Lock()
        self._rows_out = 0
        #: By sink: when it last had rows, and how late they were.
        self._latest: dict[str, tuple[float, float]] = {}

    def delivered(self, sink: str, done: DeliveredRange) -> None:
        rows = sum(rows for _, rows, _ in done.buckets)
        with self._lock:
            self._rows_out += rows
            if done.buckets:
                now_s = self._clock()
                late_s = now_s - end_of(done.buckets[-1][0], self._bucket_us) / 1e6
                self._latest[sink] = now_s, max(0.0, late_s)

    def summary(self) -> dict[str, Any]:
        with self._lock:
            now_s = self._clock()
            lately = [
                late_s
                for at_s, late_s in self._latest.values()
                if now_s - at_s <= LATENCY_STANDS_S and late_s <= LATENCY_S_MAX
            ]
            last_s = max((at_s for at_s, _ in self._latest.values()), default=None)
            return {
                "rows_out": self._rows_out,
                "latency_ms": round(1e3 * max(lately), 1) if lately else None,
                "last_output_s": None if last_s is None else round(now_s - last_s, 3),
            }
