"""The time of rows: where a table has it, and what it is. Without Spark, so that a gateway can ask too."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc


def path_of(time: str, columns: Collection[str]) -> tuple[str, ...]:
    """A time column's path: one column of that name, or fields by dots."""
    return (time,) if time in columns else tuple(time.split("."))


def times_of(table: pa.Table, path: tuple[str, ...]) -> pa.Array:
    """The time of every row, in microseconds; null where a row has none."""
    array = table.column(path[0]).combine_chunks()
    for part in path[1:]:
        array = pc.struct_field(array, part)
    return array.cast(pa.int64())
