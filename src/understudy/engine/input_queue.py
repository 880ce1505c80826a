"""The queue of one input of a fragment: rows of complete buckets, from a source or from another fragment.

Rows wait in it while another input of the fragment is behind.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from understudy.core.bucket import NOTHING, BucketId
from understudy.engine.query import Input


class InputQueue:
    """Rows in bucket order. `through`: how far the stream is complete here."""

    def __init__(self, given: Input, width_us: int) -> None:
        self._given = given
        self._width_us = width_us
        self.rows: pa.Table = given.schema.empty_table()
        self.through = NOTHING

    def add(self, tables: Iterable[pa.Table], through: BucketId) -> None:
        waiting = [table for table in (self.rows, *tables) if table.num_rows]
        if waiting:
            self.rows = pa.concat_tables(waiting).combine_chunks()
        self.through = through

    def take(self, through: BucketId) -> pa.Table:
        """Remove and return the rows of buckets at or below `through`."""
        count = self.rows.num_rows
        if count and through < self.through:
            count = int(np.searchsorted(self._given.numbers(self.rows, self._width_us), through + 1))
        taken, self.rows = self.rows.slice(0, count), self.rows.slice(count)
        return taken
