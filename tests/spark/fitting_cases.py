"""Old and new versions of a fragment, and runs of the old one that were stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from driving import Driven, engine_of, flow_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.state import GroupState
from spark_cases import ORIGIN, _visits, cut, random_rows
from test_against_batch import by_bucket

from understudy.core.shape.partition import Partition
from understudy.engine.fitting import Fit, fit
from understudy.engine.flow_engines import FlowEngines
from understudy.engine.interface import Snapshot

STOP = ORIGIN + 20
ROWS = {"a": random_rows(3), "b": random_rows(4)}
Function = Callable[..., DataFrame]


def window(length: str = "700 milliseconds", slide: str | None = None) -> Any:
    return F.window("ts", length, slide)


def sums(a: DataFrame) -> DataFrame:
    return a.groupBy(window(), "k").agg(F.sum("v").alias("s"), F.count("*").alias("n"))


def joined(
    within: str = "420 milliseconds", how: str = "inner", more: str = "", columns: tuple[str, ...] = ("l.v",)
) -> Function:
    near = f"l.k = r.k and r.ts >= l.ts and r.ts <= l.ts + interval {within} {more}"

    def join(a: DataFrame, b: DataFrame) -> DataFrame:
        pairs = a.alias("l").join(b.alias("r"), F.expr(near), how)
        return pairs.selectExpr("l.k", *columns, "r.v as other", "greatest(l.ts, r.ts) as at")

    return join


def counted_down(
    key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """As `_visits`, with all numbers negative."""
    for frame in _visits(key, frames, state):
        yield frame.assign(n=-frame["n"])


def stateful(
    function: Any = _visits, state: str = "n long, last long", timeout: str = "EventTimeTimeout"
) -> Function:
    return lambda a: a.groupBy("k").applyInPandasWithState(
        function, "k string, n long, at timestamp", state, "append", timeout
    )


JOINED = joined()


def ahead(*columns: str) -> Function:
    """Rows that are known before their time: they wait for it in the engine, and in a snapshot."""
    return lambda a: a.select(
        "k", (F.col("ts") + F.expr("interval 300 milliseconds")).alias("at"), *map(F.expr, columns)
    )


@dataclass(frozen=True)
class Stopped:
    """A run of one fragment `f`, stopped after the bucket `STOP`."""

    run: Driven
    snapshot: Snapshot

    def after(self, rows: dict[int, pa.Table]) -> dict[int, pa.Table]:
        """The buckets that were not complete at the stop."""
        through = self.run.through[Partition("sink:f")]
        return {number: table for number, table in rows.items() if number > through}


def stopped_run(
    spark: SparkSession, folder: Path, function: Function, time: str, inputs: tuple[str, ...]
) -> Stopped:
    run = Driven(engine_of(flow_of("f", function, time, inputs), spark, folder / "work"))
    with closing(run.engine):
        run.engine.start()
        run.advance({name: cut(ROWS[name], 0, STOP) for name in inputs}, STOP)
        return Stopped(run, run.engine.snapshot(folder / "snapshot"))


def fit_of(
    spark: SparkSession,
    old: Function,
    new: Function,
    time: str = "window.end",
    inputs: tuple[str, ...] = ("a",),
) -> Fit:
    before, after = (
        FlowEngines(flow_of("f", each, time, inputs), "flow", 1, spark=spark).shape for each in (old, new)
    )
    return fit(json.loads(json.dumps(before, sort_keys=True)), after)


def batch(
    spark: SparkSession, function: Function, time: str = "window.end", **rows: pa.Table
) -> dict[int, pa.Table]:
    """What a batch job gives for the buckets after the stop."""
    given = rows or {"a": ROWS["a"]}
    found = by_bucket(function(*(spark.createDataFrame(table) for table in given.values())).toArrow(), time)
    return {number: table for number, table in found.items() if number > STOP}
