"""Dealing rows out to partitions inside a query: Spark's half of the hash that `flow/dealing.py` defines.

A query whose output is dealt out has a hidden column for each consuming fragment, behind the user's own: the
number of the consumer's partition that a row goes to. It is computed from the row alone, so it changes
neither the state below it nor the canonical order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program calls it
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from understudy.flow.errors import FlowError
from understudy.flow.keys import key_kind

#: By which columns, and over how many partitions, a consuming fragment's input is dealt out.
Dealt = tuple[tuple[str, ...], int]


def hidden_column(consumer: str) -> str:
    """The column that holds the number of the consumer's partition."""
    return f"__understudy_partition_{consumer}"


def require_free_names(fragment: str, columns: Iterable[str], consumers: Iterable[str]) -> None:
    """Raise a FlowError if a fragment's output has a column by the name of a hidden one."""
    hidden = {hidden_column(consumer).lower() for consumer in consumers}
    for name in columns:
        # Spark takes names that differ only in case for the same.
        if name.lower() in hidden:
            raise FlowError(
                f"fragment {fragment!r} has an output column {name!r}. Understudy uses that name itself, to "
                "deal the rows out to partitions: give the column another one"
            )


def with_partition_numbers(fragment: str, frame: DataFrame, dealt_to: Mapping[str, Dealt]) -> DataFrame:
    """A fragment's output with the hidden column of every consumer at its end."""
    if not dealt_to:
        return frame
    schema = frame.schema
    require_free_names(fragment, schema.fieldNames(), dealt_to)
    numbers = [
        partition_column(keys, schema, count).alias(hidden_column(consumer))
        for consumer, (keys, count) in dealt_to.items()
    ]
    return frame.select("*", *numbers)


def partition_column(keys: Sequence[str], schema: StructType, count: int) -> Column:
    """For each row of this schema the partition, from 0 to `count` - 1, that it belongs to."""
    if count == 1:
        return F.lit(0)
    hashes = [F.xxhash64(_plain(key, schema)) for key in keys]
    return F.pmod(F.xxhash64(*hashes), F.lit(count)).cast("int")


def _plain(key: str, schema: StructType) -> Column:
    """A key column as what is hashed: bytes or a 64-bit integer."""
    kind = schema[key].dataType
    column = F.col(f"`{key.replace('`', '``')}`")
    match key_kind(to_arrow_type(kind, timezone="UTC")):
        case "string":
            # A collation would hash what it takes for equal alike; the consumer's rows have none.
            return column.cast("string")
        case "binary":
            return column
        case "boolean" | "integer":
            return column.cast("bigint")
        case "date":
            return F.unix_date(column).cast("bigint")
        case "timestamp":
            return F.unix_micros(column)
        case _:
            raise FlowError(f"Rows cannot be dealt out by the column {key!r} of type {kind.simpleString()}.")
