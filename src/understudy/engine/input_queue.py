"""The queue of one input of a fragment: rows of complete buckets, from a source or from another fragment.

Rows wait in it while another input of the fragment is behind.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from understudy.core.bucket import NOTHING, BucketId
from understudy.engine.conforming import together
from understudy.engine.query import Input


class InputQueue:
    """Rows in bucket order. `through`: how far the stream is complete here."""

    def __init__(self, given: Input, width_us: int) -> None:
        self._given = given
        self._width_us = width_us
        self.rows: pa.Table = given.schema.empty_table()
        self.through = NOTHING
        self._begins_after = NOTHING

    def begin_after(self, through: BucketId) -> None:
        """Leave out rows of buckets at or below `through`: its fragment does not take them."""
        self._begins_after = through

    def add(self, tables: Iterable[pa.Table], through: BucketId) -> None:
        waiting = [table for table in (self.rows, *map(self._wanted, tables)) if table.num_rows]
        if waiting:
            self.rows = together(waiting).combine_chunks()
        self.through = through

    def take(self, through: BucketId) -> pa.Table:
        """Remove and return the rows of buckets at or below `through`."""
        count = self.rows.num_rows
        if count and through < self.through:
            count = int(np.searchsorted(self._given.numbers(self.rows, self._width_us), through + 1))
        taken, self.rows = self.rows.slice(0, count), self.rows.slice(count)
        return taken

    def _wanted(self, table: pa.Table) -> pa.Table:
        if self._begins_after == NOTHING or not table.num_rows:
            return table
        numbers = self._given.numbers(table, self._width_us)
        return table.slice(int(np.searchsorted(numbers, self._begins_after + 1)))
