"""Spark and plain Arrow deal the same row out to the same partition."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from understudy.engine.dealing import partition_column
from understudy.flow.dealing import partition_numbers
from understudy.flow.errors import FlowError
from understudy.flow.schema import TIMESTAMP

ROWS = 400
LETTERS = "aZ09 .\0éßЖ漢🙂"


def _text(chance: random.Random) -> str:
    return "".join(
        chance.choice(LETTERS) for _ in range(chance.choice([0, 1, 3, 4, 7, 8, 9, 31, 32, 33, 100]))
    )


def _whole(bits: int) -> Callable[[random.Random], int]:
    edges = [-(2 ** (bits - 1)), -1, 0, 1, 2 ** (bits - 1) - 1]
    return lambda chance: chance.choice([*edges, chance.randrange(edges[0], edges[-1])])


def _date(chance: random.Random) -> datetime.date:
    return datetime.date(1, 1, 1) + datetime.timedelta(days=chance.randrange(3_600_000))


TYPES: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "string": (pa.string(), _text),
    "binary": (pa.binary(), lambda chance: chance.randbytes(chance.choice([0, 1, 4, 8, 31, 32, 33, 90]))),
    "boolean": (pa.bool_(), lambda chance: chance.random() < 0.5),
    "byte": (pa.int8(), _whole(8)),
    "short": (pa.int16(), _whole(16)),
    "int": (pa.int32(), _whole(32)),
    "long": (pa.int64(), _whole(64)),
    "date": (pa.date32(), _date),
    # Microseconds from before the year 1600 to after 2300, so that both signs appear.
    "timestamp": (TIMESTAMP, lambda chance: chance.randrange(-(10**16), 10**16)),
}


def _rows(seed: int) -> pa.Table:
    chance = random.Random(seed)
    columns = {
        name: pa.array([None if chance.random() < 0.1 else make(chance) for _ in range(ROWS)], kind)
        for name, (kind, make) in TYPES.items()
    }
    return pa.table(columns)


@pytest.mark.parametrize("seed", [1, 2])
def test_spark_and_arrow_agree_on_every_type_and_on_all_together(seed: int, spark: SparkSession) -> None:
    rows = _rows(seed)
    chance = random.Random(seed)
    some = [chance.sample(list(TYPES), size) for size in (2, 3, 4)]
    asked = [([name], count) for name in TYPES for count in (2, 1000)]
    asked += [(keys, count) for keys in [*some, list(TYPES)] for count in (1, 3, 4, 1 << 20)]
    frame = spark.createDataFrame(rows)
    assert frame.schema.fieldNames() == rows.column_names
    columns = [
        partition_column(keys, frame.schema, count).alias(str(at)) for at, (keys, count) in enumerate(asked)
    ]
    by_spark = frame.select(*columns).toArrow()
    for at, (keys, count) in enumerate(asked):
        by_arrow = partition_numbers(rows, keys, count).tolist()
        assert by_spark.column(at).to_pylist() == by_arrow, f"{keys} over {count}"
        assert len(set(by_arrow)) == count or count > 4, f"{keys} over {count}: a share without rows"


def test_a_collation_does_not_show_because_it_ends_with_the_fragment(spark: SparkSession) -> None:
    frame = spark.sql("select collate(v, 'UTF8_LCASE') as `a.b` from values ('a'), ('A'), ('Bc') as t(v)")
    numbers = frame.select(partition_column(["a.b"], frame.schema, 1000)).toArrow().column(0).to_pylist()
    table = pa.table({"k": ["a", "A", "Bc"]})
    assert numbers == partition_numbers(table, ["k"], 1000).tolist()


def test_spark_refuses_what_arrow_refuses(spark: SparkSession) -> None:
    schema = spark.sql("select 1.5d as k").schema
    with pytest.raises(FlowError, match="'k' of type double"):
        partition_column(["k"], schema, 2)
