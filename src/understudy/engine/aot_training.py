"""The training run of the ahead-of-time cache: `python -m understudy.engine.aot_training CACHE JAVA_HOME`.

The JVM writes the cache when it ends, so this process ends it in an orderly way and waits.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program calls it

from understudy.engine.query import Input
from understudy.engine.session import endpoint, session, stop_session
from understudy.engine.spark import SparkEngine

_WIDTH_US = 100_000
_ORIGIN = 17_000_000_000
_STEPS = 12
_SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))])


def _filtered(rows: DataFrame) -> DataFrame:
    return rows.filter("value % 7 != 0").select("key", (F.col("value") + 1).alias("value"), "ts")


def _windowed(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.window("ts", "1 second"), "key").agg(
        F.sum("value"), F.avg("value"), F.max("ts"), F.count("*")
    )


def _joined(left: DataFrame, right: DataFrame) -> DataFrame:
    near = F.expr("l.key = r.key and r.ts between l.ts and l.ts + interval 300 milliseconds")
    pairs = left.alias("l").join(right.alias("r"), near, "left")
    return pairs.select("l.key", F.col("l.ts").alias("at"), F.col("r.value").alias("value"))


def _rows(step: int) -> pa.Table:
    start_us = (_ORIGIN + step) * _WIDTH_US
    times = pa.array([start_us + i * 1000 for i in range(100)], pa.int64()).cast(_SCHEMA.field("ts").type)
    return pa.table([[f"k{i % 9}" for i in range(100)], list(range(100)), times], schema=_SCHEMA)


def main() -> None:
    cache, java_home = Path(sys.argv[1]), sys.argv[2]
    spark = session(java_home=java_home, jvm_options=(f"-XX:AOTCacheOutput={cache}",))
    with tempfile.TemporaryDirectory(prefix="understudy-training-") as name:
        for function, time, inputs in (
            (_filtered, "ts", ("a",)),
            (_windowed, "window.end", ("a",)),
            (_joined, "at", ("a", "b")),
        ):
            make = partial(
                SparkEngine,
                spark,
                endpoint(),
                name=function.__name__.strip("_"),
                function=function,
                inputs={given: Input(_SCHEMA, "ts") for given in inputs},
                time=time,
                width_us=_WIDTH_US,
                directory=Path(name),
            )
            engine = make()
            engine.start()
            for step in range(_STEPS):
                engine.advance(dict.fromkeys(inputs, _rows(step)), _ORIGIN + step)
            saved = Path(name) / f"saved-{engine.name}"
            facts = engine.save(saved)
            engine.close()
            again = make()
            again.start((saved, facts))
            again.advance({}, _ORIGIN + 2 * _STEPS)
            again.close()
    stop_session(wait_s=600.0)


if __name__ == "__main__":
    main()
