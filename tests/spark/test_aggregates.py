"""Whether the grouping of buckets shows in an aggregate, and that it does not in what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from spark_cases import END, ORIGIN, SCHEMA, WIDTH_US, cut, random_rows

from understudy.engine.query import Input
from understudy.engine.session import endpoint
from understudy.engine.spark import SparkEngine

#: Enough for histograms to be merged and for heaps to hold equals.
ROWS = random_rows(1, bursts=(60,))
Make = Callable[[Callable[[DataFrame], DataFrame]], SparkEngine]


@pytest.fixture
def make(spark: SparkSession, tmp_path: Path) -> Iterator[Make]:
    made: list[SparkEngine] = []

    def build(function: Callable[[DataFrame], DataFrame]) -> SparkEngine:
        made.append(
            SparkEngine(
                spark,
                endpoint(),
                name="aggregate",
                function=function,
                inputs={"a": Input(SCHEMA, "ts")},
                time="window.end",
                width_us=WIDTH_US,
                directory=tmp_path / str(len(made)),
            )
        )
        return made[-1]

    yield build
    for engine in made:
        engine.close()


def in_windows(a: DataFrame, function: str) -> DataFrame:
    rows = a.withColumn("b", F.col("k").cast("binary"))
    return rows.groupBy(F.window("ts", "3 seconds"), "k").agg(F.expr(function).alias("x"))


@pytest.mark.parametrize(
    "function",
    [
        "histogram_numeric(v, 4)", "percentile_approx(v, 0.5)", "mode(v)", "max_by(id, v, 3)",
        "min_by(id, v, 3)",
        "approx_top_k(v, 5)", "approx_top_k_accumulate(v)", "hll_sketch_agg(v)", "theta_sketch_agg(v)",
        "theta_union_agg(b)", "theta_intersection_agg(b)", "hll_union_agg(b)",
        "tuple_sketch_agg_integer(v, 1)",
        "tuple_sketch_agg_double(v, 1d)", "tuple_union_agg_double(b)", "tuple_intersection_agg_integer(b)",
    ],
)  # fmt: skip
def test_an_aggregate_that_shows_the_grouping_gets_every_bucket_by_itself(make: Make, function: str) -> None:
    assert make(lambda a: in_windows(a, function)).stepwise


@pytest.mark.parametrize(
    "function",
    [
        "count_min_sketch(v, 0.1d, 0.9d, 1)", "approx_count_distinct(v)", "median(v)",
        "bitmap_construct_agg(v)",
        "mode(v, true)", "mode() within group (order by v desc)", "max_by(id, v)", "collect_set(v)",
        "collect_list(v)", "first(v)", "any_value(v)", "listagg(k)",
    ],
)  # fmt: skip
def test_an_aggregate_that_does_not_show_the_grouping_of_one_input_takes_many_buckets_at_once(
    make: Make, function: str
) -> None:
    assert not make(lambda a: in_windows(a, function)).stepwise


@pytest.mark.parametrize(
    "function", ["collect_set(v)", "collect_union(array(v))", "max_by(id, v)", "first(v)"]
)
def test_an_aggregate_that_shows_the_order_gets_every_bucket_by_itself_where_inputs_meet(
    make: Make, function: str
) -> None:
    assert make(lambda a: in_windows(a.union(a), function)).stepwise


@pytest.mark.parametrize("function", ["histogram_numeric(v, 4)", "max_by(id, v % 20, 5)"])
def test_the_grouping_does_not_show_in_what_an_aggregate_gives(make: Make, function: str) -> None:
    def given(*throughs: int) -> list[Any]:
        engine = make(lambda a: in_windows(a, function))
        engine.start()
        came: list[Any] = []
        for through in throughs:
            rows = cut(ROWS, engine.through, through)
            came += [table.to_pylist() for table in engine.advance({"a": rows}, through).rows.values()]
        engine.close()
        return came

    at_once = given(END)
    assert at_once
    assert given(ORIGIN + 3, ORIGIN + 12, ORIGIN + 26, END) == at_once


def test_sums_of_floats_are_reported_because_their_last_digits_depend_on_the_grouping(make: Make) -> None:
    exact = make(lambda a: a.groupBy(F.window("ts", "1 second")).agg(F.sum("v"), F.avg("v")))
    rounded = make(lambda a: a.groupBy(F.window("ts", "1 second")).agg(F.sum(F.col("v") / 3).alias("x")))
    others = make(
        lambda a: a.groupBy(F.window("ts", "1 second")).agg(
            F.product("v").alias("p"),
            F.regr_sxx("v", "id").alias("s"),
            F.regr_avgx("v", F.col("id") / 3).alias("a"),
        ),
    )
    assert exact.rounding == ()
    assert rounded.rounding == ("sum as x",)
    assert others.rounding == ("product as p", "regr_sxx as s", "regr_avg_x as a")
