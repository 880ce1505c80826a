"""The verdict on a run: what came out beside what should have, and how long it was silent.

Rows are compared as multisets. An expected row that did not come out is **lost**; a row that came out more
often than expected is **duplicated**; a row that was not expected at all is **wrong**. The order is judged by
the buckets as each sink was given them: each must have a higher number than all before it.

**Silence** is the time between two deliveries with rows. After a failure the longest of those that touch
the next WITHIN_S counts, to be read beside the normal ones: output comes in steps even when nothing fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from understudy.core.bucket import NOTHING, BucketId, end_of
from understudy.history.reading import records_of
from understudy.history.records import ArrivedRecord, DeliveredRecord

WITHIN_S = 10.0


@dataclass(frozen=True)
class DeliveredTogether:
    """Buckets with rows that one sink was given together: number and count of rows each."""

    at_us: int
    sink: str
    buckets: tuple[tuple[BucketId, int], ...]

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.buckets)

    def latency_ms(self, width_us: int) -> float:
        """How long after the end of its bucket a row came out, on average."""
        waited_us = sum(rows * (self.at_us - end_of(number, width_us)) for number, rows in self.buckets)
        return waited_us / self.rows / 1_000


@dataclass(frozen=True)
class Comparison:
    lost: int
    duplicated: int
    wrong: int


def deliveries(history: Path) -> list[DeliveredTogether]:
    """The deliveries with rows that a gateway recorded, in order."""
    return [
        DeliveredTogether(
            record.at_us, record.sink, tuple((number, rows) for number, rows, _ in record.buckets)
        )
        for record in records_of(history)
        if isinstance(record, DeliveredRecord) and record.buckets
    ]


def compare(expected: pa.Table, actual: pa.Table) -> Comparison:
    """Both tables have the same columns; the order of rows does not matter."""
    should, does = _counted(expected), _counted(actual)
    extra = does - should
    wrong = sum(count for row, count in extra.items() if row not in should)
    return Comparison((should - does).total(), extra.total() - wrong, wrong)


def _counted(table: pa.Table) -> Counter[tuple[object, ...]]:
    flat = table.flatten() if table.num_columns else table
    names = sorted(flat.column_names)
    return Counter(zip(*(_plain(flat.column(name)) for name in names), strict=True))


def _plain(column: pa.ChunkedArray) -> list[object]:
    # Times as numbers: a Python datetime for each of them would take longer than the job.
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values: list[object] = column.to_pylist()
    return values


def out_of_order(delivered: Iterable[DeliveredTogether]) -> int:
    """How many buckets came to a sink after one with the same or a higher number."""
    highest: dict[str, BucketId] = {}
    found = 0
    for delivery in delivered:
        for number, _ in delivery.buckets:
            before = highest.get(delivery.sink, NOTHING)
            found += number <= before
            highest[delivery.sink] = max(before, number)
    return found


def arrivals(history: Path) -> dict[str, list[int]]:
    """When output of each partition reached a gateway, by partition; empty if the flow has none."""
    found: dict[str, list[int]] = {}
    for record in records_of(history):
        if isinstance(record, ArrivedRecord):
            found.setdefault(record.partition, []).append(record.at_us)
    return dict(sorted(found.items()))


def silence_ms(at_us: Sequence[int], after_us: int, within_s: float = WITHIN_S) -> float:
    """Of the pauses between these times, the longest of which some part lies within so long after a time."""
    until_us = after_us + within_s * 1e6
    pauses = [b - a for a, b in pairwise(at_us) if after_us < b and a < until_us]
    return max(pauses, default=0) / 1_000


def normal_intervals_ms(
    at_us: Sequence[int], begin_us: int, end_us: int, failures_us: Sequence[int], within_s: float = WITHIN_S
) -> list[float]:
    """The pauses between these times that touch neither start, nor end, nor the while after a failure."""
    disturbed = [(at, at + within_s * 1e6) for at in failures_us]
    return [
        (b - a) / 1_000
        for a, b in pairwise(at_us)
        if begin_us <= a and b <= end_us and not any(a < until and since < b for since, until in disturbed)
    ]


def middle_and_p99(values: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th percentile; zeros when there is nothing."""
    if not values:
        return 0.0, 0.0
    return round(median(values), 1), round(float(np.percentile(values, 99)), 1)
