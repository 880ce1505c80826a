"""A state that newer code cannot go on from is refused, by the plan alone and by the engine."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from driving import engine_of, flow_of
from fitting_cases import (
    JOINED,
    ROWS,
    STOP,
    Function,
    Stopped,
    batch,
    fit_of,
    joined,
    stateful,
    stopped_run,
    sums,
    window,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from spark_cases import END, cut

from understudy.engine.changed_flow import fit_of_file
from understudy.engine.flow_engines import FlowEngines
from understudy.flow.errors import FlowError
from understudy.flow.loading import load


def stateless(a: DataFrame) -> DataFrame:
    return a.withColumn("window", window())


def sessions(gap: str) -> Function:
    return lambda a: a.groupBy(F.session_window("ts", gap), "k").agg(F.count("*").alias("n"))


def sliding(slide: str) -> Function:
    return lambda a: a.groupBy(window("1 second", slide), "k").agg(F.sum("v").alias("s"))


def distinct(*keys: str) -> Function:
    return lambda a: a.dropDuplicates([*keys, "ts"])


def grouped(*keys: str, of: str = "v", length: str = "700 milliseconds") -> Function:
    return lambda a: a.groupBy(window(length), *map(F.expr, keys)).agg(
        F.sum(F.expr(of)).alias("s"), F.count("*").alias("n")
    )


def deduplicated(a: DataFrame) -> DataFrame:
    return a.withColumn("window", window()).drop("ts").dropDuplicates(["k", "window"])


BOTH = ("a", "b")
AT, SESSION = "at", "session_window.end"
REFUSED: dict[str, tuple[Any, ...]] = {
    "window": (
        sums,
        grouped("k", length="1 second"),
        r"keys window\(ts, 1 s\), k and had window\(ts, 700 ms\)",
    ),
    "slide": (
        *(sliding("500 milliseconds"), sliding("250 milliseconds")),
        r"keys window\(ts, 1 s, every 250 ms\), k and had window\(ts, 1 s, every 500 ms\), k\.",
    ),
    "gap": (
        *(sessions("180 milliseconds"), sessions("600 milliseconds")),
        r"keys session_window\(ts, 0\.6 seconds\), k and had session_window\(ts, 0\.18 seconds\)",
        SESSION,
    ),
    "more aggregates": (
        sums,
        lambda a: a.groupBy(window(), "k").agg(F.sum("v"), F.count("*"), F.max("v")),
        r"aggregates sum\(v\), count\(1\), max\(v\) and had sum\(v\), count\(1\)",
    ),
    "fewer columns": (sums, lambda a: sums(a).drop("n"), r"aggregates sum\(v\) and had sum\(v\), count\(1\)"),
    "other order": (
        sums,
        lambda a: sums(a).select("n", "s", "k", "window"),
        r"aggregates count\(1\), sum\(v\) and had sum\(v\), count\(1\).*leave the output's columns",
    ),
    "argument": (sums, grouped("k", of="v * 2"), r"aggregates sum\(v \* 2\), count\(1\) and had"),
    "more keys": (
        sums,
        grouped("k", "id"),
        r"keys window\(ts, 700 ms\), k, id and had window\(ts, 700 ms\), k\.",
    ),
    "computed key": (
        sums,
        grouped("upper(k) as k"),
        r"keys window\(ts, 700 ms\), upper\(k\) and had",
    ),
    "dedup instead": (sums, deduplicated, "it has dropDuplicates and had groupBy"),
    "state begins": (stateless, sums, r"it keeps a state now \(groupBy\) and had none.*all earlier rows"),
    "state ends": (sums, stateless, "it no longer keeps a state and had groupBy.*never come out"),
    "one more": (
        sums,
        lambda a: sums(a).groupBy(F.window("window", "1400 milliseconds")).count(),
        "it has groupBy, then groupBy and had groupBy",
    ),
    "wider join": (
        *(JOINED, joined("900 milliseconds")),
        r"bounds on time .*b\.ts <= a\.ts \+ 900 ms.* and had .*a\.ts \+ 420 ms",
        *(AT, BOTH),
    ),
    "narrower join": (JOINED, joined("100 milliseconds"), r"bounds on time .*a\.ts \+ 100 ms", AT, BOTH),
    "joined column": (
        *(JOINED, joined(columns=("l.id as v",))),
        r"left columns a\.k, a\.id, a\.ts and had a\.k, a\.v, a\.ts",
        *(AT, BOTH),
    ),
    "outer join": (JOINED, joined(how="left"), "type LeftOuter and had Inner", AT, BOTH),
    "outer condition": (
        *(joined(how="left"), joined(how="left", more="and l.v < r.v")),
        r"condition a\.v < b\.v and had none",
        *(AT, BOTH),
    ),
    "dedup key": (distinct("id"), distinct("v"), "dropDuplicates has the keys v, ts and had id, ts", "ts"),
    "limit": (
        lambda a: a.limit(30),
        lambda a: a.limit(60),
        "limit has the number of rows 60 and had 30",
        "ts",
    ),
    "state schema": (
        *(stateful(), stateful(state="n long, last long, first long")),
        "state schema n long, last long, first long and had n long, last long",
        AT,
    ),
    "timeout": (stateful(), stateful(timeout="NoTimeout"), "timeout NoTimeout and had EventTimeTimeout", AT),
    "read twice": (
        stateless,
        lambda a: stateless(a.union(a)),
        "reads its inputs in 2 places and did so in 1",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_state_does_not_fit_is_refused_before_anything_starts(
    name: str, spark: SparkSession
) -> None:
    old, new, said, *rest = REFUSED[name]
    found = fit_of(spark, old, new, *rest)
    assert {refusal.fragment for refusal in found.refusals} == {"f"}
    with pytest.raises(FlowError, match=f"fragment 'f': .*{said}"):
        found.require()
    # Each is refused for its change alone: the old code goes on.
    assert fit_of(spark, old, old, *rest).refusals == ()


@pytest.fixture(scope="module")
def stopped_sums(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    return stopped_run(spark, tmp_path_factory.mktemp("stopped"), sums, "window.end", ("a",))


@pytest.mark.parametrize("name", ["window", "fewer columns", "other order"])
def test_an_engine_refuses_such_a_state_as_well(
    name: str, spark: SparkSession, tmp_path: Path, stopped_sums: Stopped
) -> None:
    _, new, said = REFUSED[name]
    with (
        closing(engine_of(flow_of("f", new, "window.end"), spark, tmp_path)) as engine,
        pytest.raises(FlowError, match=said),
    ):
        engine.start(stopped_sums.snapshot)


def test_columns_in_another_order_would_swap_sums_and_counts_in_spark(
    spark: SparkSession, tmp_path: Path, stopped_sums: Stopped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why we refuse what Spark takes: were this to change in Spark, we could accept it."""
    monkeypatch.setattr("understudy.engine.identity.refusals", lambda *_: [])
    new = REFUSED["other order"][1]
    with closing(engine_of(flow_of("f", new, "window.end"), spark, tmp_path)) as engine:
        run = stopped_sums.run.goes_on_in(engine, stopped_sums.snapshot)
        run.advance({"a": cut(ROWS["a"], STOP, END)}, END)
    got, expected = stopped_sums.after(run.rows_of("f")), batch(spark, new)
    first = min(expected)
    assert [row["n"] for row in got[first].to_pylist()] != [row["n"] for row in expected[first].to_pylist()]


FILE = """
import understudy as us
from pyspark.sql import functions as F

flow = us.Flow("shop", bucket="100 ms")
events = flow.source("events", us.Push("k string, v bigint, ts timestamp"), time="ts")


@flow.fragment(events, time="window.end")
def counts(events):
    return events.groupBy(F.window("ts", "{length}"), "k").count(){more}


flow.sink(counts, us.Console())
{end}
"""


def test_a_flow_file_is_held_against_the_shape_from_then(spark: SparkSession, tmp_path: Path) -> None:
    file, stored = tmp_path / "shop.py", tmp_path / "shape.json"
    file.write_text(FILE.format(length="1 second", more="", end=""))
    first = fit_of_file(file, {"format": 0}, unit="flow", partitions=1, spark=spark)
    assert "another version" in first.refusals[0].sentence
    stored.write_text(json.dumps(FlowEngines(load(file), "flow", 1, spark=spark).shape))
    before = json.loads(stored.read_text())
    file.write_text(
        FILE.format(
            length="1 second",
            more='.filter("count > 2")',
            end='flow.sink(counts, us.Console(), name="again")',
        )
    )
    accepted = fit_of_file(file, before, unit="flow", partitions=1, spark=spark)
    assert accepted.refusals == ()
    assert [change.fragment for change in accepted.accepted] == ["counts", None]
    file.write_text(FILE.format(length="2 seconds", more="", end=""))
    refused = fit_of_file(file, before, unit="flow", partitions=1, spark=spark)
    assert [each.fragment for each in refused.refusals] == ["counts"]
    assert "window(ts, 2 s), k and had window(ts, 1 s), k" in refused.refusals[0].sentence
