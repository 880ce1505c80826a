"""Cutting tables into buckets, giving a bucket its one canonical form, and the end of all buckets.

Rows of a bucket are in arrival order, stable-sorted by time. Sorting stably twice changes nothing, so rows
may be cut push by push, held, written to the log and read again: the bucket comes out the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from understudy.core.bucket import BucketId

Times = npt.NDArray[np.int64]

#: The year 9999 begins. Rows happen before it; the year that is left lets windows that end after it close.
END_US = 253_370_764_800_000_000


@dataclass(frozen=True, slots=True)
class SealedBucket:
    """A sealed bucket of one source. Without a table it has no rows and only carries the boundary on."""

    source: str
    number: BucketId
    table: pa.Table | None


def end_bucket(width_us: int) -> BucketId:
    """The bucket through which a source is sealed when it is closed: the same for all, after every row."""
    return -(-END_US // width_us)


def times_us(table: pa.Table, column: str) -> Times:
    """The time column as microseconds. It has no nulls: rows were checked when they came in."""
    times: Times = table.column(column).cast(pa.int64()).to_numpy()
    return times


def split(table: pa.Table, times: Times, width_us: int) -> list[tuple[BucketId, pa.Table]]:
    """The rows by bucket, buckets ascending, rows of equal time in the order they had."""
    if not len(times):
        return []
    numbers = times // width_us
    if np.any(numbers[1:] < numbers[:-1]):
        # Small numbers are sorted by digits, ten times as fast as by comparisons.
        near = numbers - numbers.min()
        small = int(near.max()) < 2**16
        order = np.argsort(near.astype(np.uint16) if small else near, kind="stable")
        table, numbers = table.take(pa.array(order)), numbers[order]
    starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
    ends = np.r_[starts[1:], len(numbers)]
    return [
        (int(numbers[start]), table.slice(start, end - start))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


def canonical(parts: Sequence[pa.Table], column: str) -> pa.Table:
    """A bucket's rows, from its parts in arrival order.

    Rows are always gathered anew, even if they are sorted already: a slice keeps its parent's buffers, whose
    unused bits would make equal rows unequal bytes.
    """
    table = pa.concat_tables(parts).combine_chunks()
    return table.take(pa.array(np.argsort(times_us(table, column), kind="stable")))
