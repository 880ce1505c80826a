"""The fragments that the engine is held to, and random streams to feed them.

Each case is a fragment's function with its time column. The same function, run by Spark as a batch job over
the same rows, says what must come out. Where Spark has no batch form of an operator, `model` says it in
plain Python.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

WIDTH_US = 100_000
ORIGIN = 1_700_000_000_000_000 // WIDTH_US
BUCKETS = 40
#: Far enough for every window, session and join to be closed.
END = ORIGIN + BUCKETS + 25

SCHEMA = pa.schema(
    [("k", pa.string()), ("v", pa.int64()), ("id", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))]
)


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable[..., DataFrame]
    time: str
    inputs: tuple[str, ...] = ("a",)
    model: Callable[[Mapping[str, pa.Table]], pa.Table] | None = None


def stateless(a: DataFrame) -> DataFrame:
    return a.filter("v % 3 != 0").select(
        "k", (F.col("v") * 2).alias("w"), "ts", F.array("v", "id").alias("both")
    )


def tumbling(a: DataFrame) -> DataFrame:
    return a.groupBy(F.window("ts", "700 milliseconds"), "k").agg(
        F.sum("v").alias("s"), F.count("*").alias("n")
    )


def window_start(a: DataFrame) -> DataFrame:
    return a.groupBy(F.window("ts", "400 milliseconds"), "k").agg(F.max("ts").alias("newest"))


def named_in_sql(a: DataFrame) -> DataFrame:
    a.createOrReplaceTempView("named_in_sql_a")
    return a.sparkSession.sql(
        """WITH few AS (SELECT k, v, ts AS at FROM named_in_sql_a WHERE v % 5 <> 0)
           SELECT window, k, sum(v) AS total FROM few GROUP BY window(at, '1 second'), k"""
    )


def unpivoted(a: DataFrame) -> DataFrame:
    return (
        a.unpivot(["k", "ts"], ["v", "id"], "which", "value")
        .groupBy(F.window("ts", "500 milliseconds"), "k", "which")
        .agg(F.sum("value").alias("total"))
    )


def sliding(a: DataFrame) -> DataFrame:
    return a.groupBy(F.window("ts", "1 second", "300 milliseconds"), "k").agg(F.sum("v"), F.avg("v"))


def sessions(a: DataFrame) -> DataFrame:
    return a.groupBy(F.session_window("ts", "180 milliseconds"), "k").agg(F.count("*"), F.max("v"))


def interval_join(a: DataFrame, b: DataFrame) -> DataFrame:
    near = F.expr(
        "l.k = r.k and r.ts between l.ts - interval 150 milliseconds and l.ts + interval 420 milliseconds"
    )
    return (
        a.alias("l")
        .join(b.alias("r"), near)
        .select("l.k", "l.id", F.col("r.id").alias("other"), F.greatest("l.ts", "r.ts").alias("at"))
    )


def left_join(a: DataFrame, b: DataFrame) -> DataFrame:
    near = F.expr("l.k = r.k and r.ts >= l.ts and r.ts <= l.ts + interval 230 milliseconds")
    return (
        a.alias("l")
        .join(b.alias("r"), near, "left")
        .select("l.k", "l.id", F.col("r.id").alias("other"), F.col("l.ts").alias("at"))
    )


def union(a: DataFrame, b: DataFrame) -> DataFrame:
    return a.union(b).filter("v > 2")


def union_window(a: DataFrame, b: DataFrame) -> DataFrame:
    return (
        a.union(b)
        .groupBy(F.window("ts", "500 milliseconds"), "k")
        .agg(F.sum("v"), F.approx_count_distinct("v"))
    )


def distinct_times(a: DataFrame) -> DataFrame:
    return a.select("k", F.date_trunc("second", "ts").alias("second"), "ts").dropDuplicates(["k", "ts"])


def once_per_window(a: DataFrame) -> DataFrame:
    named = a.withColumn("w", F.window("ts", "1 second")).drop("ts")
    return named.dropDuplicates(["k", "w"]).select("k", "w")


def chained(a: DataFrame) -> DataFrame:
    small = a.groupBy(F.window("ts", "200 milliseconds"), "k").agg(F.sum("v").alias("s"))
    return small.groupBy(F.window("window", "1 second")).agg(F.max("s"), F.count("*"))


def join_then_window(a: DataFrame, b: DataFrame) -> DataFrame:
    near = F.expr("l.k = r.k and r.ts between l.ts and l.ts + interval 200 milliseconds")
    pairs = a.alias("l").join(b.alias("r"), near).select(F.col("l.ts").alias("ts"), F.col("r.v").alias("v"))
    return pairs.groupBy(F.window("ts", "600 milliseconds")).agg(F.sum("v"), F.count("*"))


def _visits(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Counts rows of a key; after 250 ms without one says how many there were."""
    if state.hasTimedOut:
        count, last_us = state.get
        state.remove()
        yield pd.DataFrame(
            {"k": [key[0]], "n": [count], "at": [pd.Timestamp(last_us + 250_000, unit="us", tz="UTC")]}
        )
        return
    count, last_us = state.get if state.exists else (0, 0)
    for frame in frames:
        count += len(frame)
        last_us = max(last_us, int(frame["ts"].max().timestamp() * 1_000_000 + 0.5))
    state.update((count, last_us))
    state.setTimeoutTimestamp(last_us // 1000 + 250)


def visits(a: DataFrame) -> DataFrame:
    return a.groupBy("k").applyInPandasWithState(
        _visits,
        "k string, n long, at timestamp",
        "n long, last long",
        "append",
        GroupStateTimeout.EventTimeTimeout,
    )


def _tally(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Says at every call how often it was called for a key and what came to it so far: no timers."""
    calls, total = state.get if state.exists else (0, 0)
    newest = pd.Timestamp(0)
    for frame in frames:
        total += int(frame["v"].sum())
        newest = max(newest, frame["ts"].max())
    state.update((calls + 1, total))
    yield pd.DataFrame({"k": [key[0]], "calls": [calls + 1], "total": [total], "at": [newest]})


def tallies(a: DataFrame) -> DataFrame:
    return a.groupBy("k").applyInPandasWithState(
        _tally,
        "k string, calls long, total long, at timestamp",
        "calls long, total long",
        "append",
        GroupStateTimeout.NoTimeout,
    )


def _frame_sums(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.groupby("k", as_index=False).agg(total=("v", "sum"), at=("ts", "max"))


def frame_sums(a: DataFrame) -> DataFrame:
    return a.mapInPandas(_frame_sums, "k string, total long, at timestamp")


def _side_by_side(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    both = pd.concat([left, right])
    return both.groupby("k", as_index=False).agg(total=("v", "sum"), at=("ts", "max"))


def cogrouped(a: DataFrame, b: DataFrame) -> DataFrame:
    pairs = a.groupBy("k").cogroup(b.groupBy("k"))
    return pairs.applyInPandas(_side_by_side, "k string, total long, at timestamp")


def bucket_sums_model(tables: Mapping[str, pa.Table]) -> pa.Table:
    """One row for each key and bucket that has rows, whichever inputs they came from."""
    said: dict[tuple[int, str], dict[str, Any]] = {}
    for table in tables.values():
        for row in table.to_pylist():
            time_us = _us(row["ts"])
            sums = said.setdefault(
                (time_us // WIDTH_US, row["k"]), {"k": row["k"], "total": 0, "at": time_us}
            )
            sums["total"] += row["v"]
            sums["at"] = max(sums["at"], time_us)
    schema = pa.schema([("k", pa.string()), ("total", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    return pa.Table.from_pylist(list(said.values()), schema)


def visits_model(tables: Mapping[str, pa.Table]) -> pa.Table:
    """Rows of a key are one visit until a boundary passes 250 ms after its newest row."""
    open_visits: dict[str, tuple[int, int]] = {}
    out = []
    rows = tables["a"].to_pylist()
    for number in range(ORIGIN, END + 1):
        for row in (row for row in rows if _us(row["ts"]) // WIDTH_US == number):
            count, last_us = open_visits.get(row["k"], (0, 0))
            open_visits[row["k"]] = (count + 1, max(last_us, _us(row["ts"])))
        fresh = {row["k"] for row in rows if _us(row["ts"]) // WIDTH_US == number}
        for key, (count, last_us) in list(open_visits.items()):
            if key not in fresh and last_us // 1000 + 250 < ((number + 1) * WIDTH_US - 1) // 1000:
                out.append({"k": key, "n": count, "at": last_us + 250_000})
                del open_visits[key]
    schema = pa.schema([("k", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    return pa.Table.from_pylist(out, schema)


def tallies_model(tables: Mapping[str, pa.Table]) -> pa.Table:
    """One call for each key and bucket that has rows."""
    calls: dict[str, int] = {}
    totals: dict[str, int] = {}
    said: dict[tuple[int, str], dict[str, Any]] = {}
    for row in tables["a"].to_pylist():
        key, time_us = row["k"], _us(row["ts"])
        call = (time_us // WIDTH_US, key)
        calls[key] = calls.get(key, 0) + (call not in said)
        totals[key] = totals.get(key, 0) + row["v"]
        # The stream is in order of time: the last row of a call is its newest.
        said[call] = {"k": key, "calls": calls[key], "total": totals[key], "at": time_us}
    columns = [("k", pa.string()), ("calls", pa.int64()), ("total", pa.int64())]
    schema = pa.schema([*columns, ("at", pa.timestamp("us", tz="UTC"))])
    return pa.Table.from_pylist(list(said.values()), schema)


def _us(time: Any) -> int:
    return pa.scalar(time, pa.timestamp("us", tz="UTC")).value


CASES = {
    case.name: case
    for case in (
        Case("stateless", stateless, "ts"),
        Case("tumbling", tumbling, "window.end"),
        Case("window_start", window_start, "window.start"),
        Case("named_in_sql", named_in_sql, "window.start"),
        Case("unpivoted", unpivoted, "window.end"),
        Case("sliding", sliding, "window.end"),
        Case("sessions", sessions, "session_window.end"),
        Case("interval_join", interval_join, "at", ("a", "b")),
        Case("left_join", left_join, "at", ("a", "b")),
        Case("union", union, "ts", ("a", "b")),
        Case("union_window", union_window, "window.end", ("a", "b")),
        Case("distinct_times", distinct_times, "ts"),
        Case("once_per_window", once_per_window, "w.end"),
        Case("visits", visits, "at", model=visits_model),
        Case("tallies", tallies, "at", model=tallies_model),
        Case("frame_sums", frame_sums, "at", model=bucket_sums_model),
        Case("cogrouped", cogrouped, "at", ("a", "b"), model=bucket_sums_model),
        Case("chained", chained, "window.end"),
        Case("join_then_window", join_then_window, "window.end", ("a", "b")),
    )
}


def random_rows(seed: int, buckets: int = BUCKETS, bursts: tuple[int, ...] = (1, 2, 5, 12)) -> pa.Table:
    """A stream in bucket order: bursts, silent stretches, times on the very edges of buckets, equal times."""
    chance = random.Random(seed)
    rows: list[tuple[str, int, int, int]] = []
    for number in range(ORIGIN, ORIGIN + buckets):
        if chance.random() < 0.35:
            continue
        for _ in range(chance.choice(bursts)):
            offset = chance.choice(
                [0, WIDTH_US - 1, chance.randrange(WIDTH_US), chance.randrange(100) * 1000]
            )
            rows.append(
                (f"k{chance.randrange(3)}", chance.randrange(50), len(rows), number * WIDTH_US + offset)
            )
    rows.sort(key=lambda row: row[3])
    times = pa.array([row[3] for row in rows], pa.int64()).cast(SCHEMA.field("ts").type)
    columns = [pa.array([row[i] for row in rows], SCHEMA.field(i).type) for i in range(3)]
    return pa.table([*columns, times], schema=SCHEMA)


def random_cuts(seed: int, buckets: int = BUCKETS) -> list[int]:
    """Through-numbers of successive groups; the last one closes everything."""
    chance = random.Random(seed)
    count = chance.choice([0, 3, 8, 12])
    return [*sorted(ORIGIN + n for n in chance.sample(range(buckets), count)), END]


def cut(table: pa.Table, after: int, through: int) -> pa.Table:
    """The rows of buckets in (after, through]."""
    numbers = [value // WIDTH_US for value in table.column("ts").cast(pa.int64()).to_pylist()]
    first = sum(1 for number in numbers if number <= after)
    last = sum(1 for number in numbers if number <= through)
    return table.slice(first, last - first)
