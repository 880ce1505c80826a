"""A state that older code made goes on under newer code, where it fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from driving import EVENTS, Driven, engine_of, flow_of
from fitting_cases import (
    JOINED,
    ROWS,
    STOP,
    Function,
    Stopped,
    ahead,
    batch,
    counted_down,
    fit_of,
    joined,
    stateful,
    stopped_run,
    sums,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from spark_cases import END, WIDTH_US, cut, visits_model
from spark_flow import per_second, spikes, totals
from test_against_batch import by_bucket, require_equal

import understudy as us
from understudy.core.shape.partition import Partition
from understudy.engine.fitting import fit
from understudy.engine.flow_engines import FlowEngines
from understudy.flow.dealing import partition_numbers
from understudy.flow.errors import FlowError


@pytest.fixture(scope="module")
def stopped(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Function, str, tuple[str, ...]], Stopped]:
    """Runs a function until the stop, once for all tests that go on from there."""
    known: dict[Any, Stopped] = {}

    def stop(function: Function, time: str, inputs: tuple[str, ...]) -> Stopped:
        if function not in known:
            folder = tmp_path_factory.mktemp("stopped")
            known[function] = stopped_run(spark, folder, function, time, inputs)
        return known[function]

    return stop


@pytest.fixture
def went_on(
    spark: SparkSession, tmp_path: Path, stopped: Callable[[Function, str, tuple[str, ...]], Stopped]
) -> Callable[..., dict[int, pa.Table]]:
    """What a new function puts out when it goes on from an old one's state."""

    def go_on(
        old: Function, new: Function, time: str = "window.end", inputs: tuple[str, ...] = ("a",)
    ) -> dict[int, pa.Table]:
        before = stopped(old, time, inputs)
        engine = engine_of(flow_of("f", new, time, inputs), spark, tmp_path / "new")
        with closing(engine):
            run = before.run.goes_on_in(engine, before.snapshot)
            run.advance({name: cut(ROWS[name], STOP, END) for name in inputs}, END)
        return before.after(run.rows_of("f"))

    return go_on


# What goes on

HIGH = 60


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (lambda a: sums(a).filter(f"s > {HIGH}"), ["filters, projections or functions"]),
        (
            lambda a: sums(a).withColumn("mean", F.col("s") / F.col("n")),
            ["filters, projections or functions", "the new column 'mean'"],
        ),
        (lambda a: sums(a).drop("k"), ["filters, projections or functions", "no longer has column 'k'"]),
        (
            lambda a: sums(a).withColumnRenamed("s", "total"),
            ["no longer has column 's'", "the new column 'total'"],
        ),
    ],
    ids=["filter", "new column", "column gone", "other name"],
)
def test_what_is_above_an_aggregation_may_change(
    new: Function,
    said: list[str],
    spark: SparkSession,
    went_on: Callable[..., dict[int, pa.Table]],
    compared: Counter[str],
) -> None:
    found = fit_of(spark, sums, new)
    assert found.refusals == ()
    assert len(found.accepted) == len(said)
    assert all(word in change.sentence for word, change in zip(said, found.accepted, strict=True))
    require_equal(went_on(sums, new), batch(spark, new), compared, "above")
    assert batch(spark, new) != batch(spark, sums)


def since_stop(keep: str) -> pa.Table:
    """Rows of before the stop as they were, and of those after it the ones that a new filter keeps."""
    rows = ROWS["a"]
    is_old = pc.less(rows.column("ts").cast(pa.int64()), (STOP + 1) * WIDTH_US)
    kept = {
        "v % 2 = 0": pc.equal(pc.bit_wise_and(rows.column("v"), 1), 0),
        "k <> 'k0'": pc.not_equal(rows.column("k"), "k0"),
    }[keep]
    return rows.filter(pc.or_(is_old, kept))


@pytest.mark.parametrize(
    ("new", "keep"),
    [
        (lambda a: sums(a.filter("v % 2 = 0")), "v % 2 = 0"),
        # Spark moves a filter on a key below the aggregation, so groups that the state has still come out.
        (lambda a: sums(a).filter("k <> 'k0'"), "k <> 'k0'"),
    ],
    ids=["below", "on a key"],
)
def test_a_filter_below_an_aggregation_is_for_the_rows_after_the_stop(
    new: Function,
    keep: str,
    spark: SparkSession,
    went_on: Callable[..., dict[int, pa.Table]],
    compared: Counter[str],
) -> None:
    expected = batch(spark, sums, a=since_stop(keep))
    assert expected not in (batch(spark, sums), batch(spark, new))
    require_equal(went_on(sums, new), expected, compared, keep)
    (change,) = fit_of(spark, sums, new).accepted
    assert "windows, joins and keys that are open in it are of both" in change.sentence


def test_the_condition_of_an_inner_join_may_change_beside_its_times(
    spark: SparkSession, went_on: Callable[..., dict[int, pa.Table]], compared: Counter[str]
) -> None:
    new = joined(more="and l.v < r.v")
    assert fit_of(spark, JOINED, new, "at", ("a", "b")).refusals == ()
    expected = batch(spark, new, "at", **ROWS)
    require_equal(went_on(JOINED, new, "at", ("a", "b")), expected, compared, "join")
    assert sum(table.num_rows for table in expected.values()) > 20


def scaled(by: int) -> Function:
    @F.udf("long")
    def scale(value: int) -> int:
        return value * by

    return lambda a: sums(a).withColumn("scaled", scale("s"))


def test_the_body_of_a_function_is_not_seen_and_goes_on(
    spark: SparkSession, went_on: Callable[..., dict[int, pa.Table]]
) -> None:
    old, new = scaled(10), scaled(1000)
    found = fit_of(spark, old, new)
    assert (found.refusals, found.accepted) == ((), ())
    rows = [row for table in went_on(old, new).values() for row in table.to_pylist()]
    assert rows
    assert all(row["scaled"] == row["s"] * 1000 for row in rows)


def test_the_body_of_a_state_function_may_change(
    spark: SparkSession, went_on: Callable[..., dict[int, pa.Table]]
) -> None:
    old, new = stateful(), stateful(counted_down)
    assert fit_of(spark, old, new, "at").refusals == ()
    got = went_on(old, new, "at")
    expected = {n: t for n, t in by_bucket(visits_model({"a": ROWS["a"]}), "at").items() if n > STOP}
    assert {n: [-row["n"] for row in t.to_pylist()] for n, t in got.items()} == {
        n: [row["n"] for row in t.to_pylist()] for n, t in expected.items()
    }
    assert any(abs(row["n"]) > 5 for t in got.values() for row in t.to_pylist()), "it counts on"


# Rows that wait


def test_rows_that_wait_for_their_bucket_get_the_new_columns(
    spark: SparkSession, went_on: Callable[..., dict[int, pa.Table]]
) -> None:
    got = went_on(ahead("id", "v"), ahead("v * 2 as double", "v"), "at")
    rows = [row for _, table in sorted(got.items()) for row in table.to_pylist()]
    waited = [row for row in rows if row["double"] is None]
    assert waited
    assert waited == rows[: len(waited)], "those that waited come first"
    assert all(row["double"] == row["v"] * 2 for row in rows[len(waited) :])
    assert all("id" not in row for row in rows)
    late = ROWS["a"].filter(pc.greater_equal(ROWS["a"].column("ts").cast(pa.int64()), (STOP - 2) * WIDTH_US))
    assert [row["v"] for row in rows] == [row["v"] for row in _in_order(late)]


def _in_order(rows: pa.Table) -> list[dict[str, Any]]:
    return [row for _, table in sorted(by_bucket(rows, "ts").items()) for row in _sorted(table)]


def _sorted(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: (row["ts"], row["k"], row["v"]))


def waiting_flow(columns: str, shown: str, *, with_tail: bool = False) -> us.Flow:
    """A union of a fragment that lags and one that does not, whose rows wait in a queue meanwhile."""
    flow = us.Flow("waiting", bucket=f"{WIDTH_US // 1000} ms")
    events = flow.source("events", EVENTS, time="ts")

    @flow.fragment(events, time="at")
    def lagging(events: DataFrame) -> DataFrame:
        return events.filter("id % 2 = 0").select("k", F.expr("ts - interval 500 milliseconds as at"), "id")

    @flow.fragment(events, time="at")
    def prompt(events: DataFrame) -> DataFrame:
        return events.filter("id % 2 = 1").selectExpr("k", "ts as at", "id", *columns.split(";"))

    @flow.fragment(lagging, prompt, time="at")
    def both(lagging: DataFrame, prompt: DataFrame) -> DataFrame:
        one = lagging.selectExpr("at", "id", "0L as shown")
        return one.union(prompt.selectExpr("at", "id", f"{shown} as shown"))

    def tail(lagging: DataFrame, events: DataFrame) -> DataFrame:
        return lagging.select("at", "id").union(events.select("ts", "id"))

    flow.sink(both, us.Console())
    if with_tail:
        flow.sink(flow.fragment(lagging, events, time="at")(tail), us.Console())
    return flow


def test_rows_that_wait_between_fragments_get_the_new_columns(spark: SparkSession, tmp_path: Path) -> None:
    old = waiting_flow("v as was", "was")
    new = waiting_flow("v + 1000 as becomes", "becomes", with_tail=True)
    shapes = [FlowEngines(flow, "flow", 1, spark=spark).shape for flow in (old, new)]
    assert fit(*shapes).refusals == ()
    run = Driven(engine_of(old, spark, tmp_path / "old"))
    with closing(run.engine):
        run.engine.start()
        run.advance({"events": cut(ROWS["a"], 0, STOP)}, STOP)
        snapshot = run.engine.snapshot(tmp_path / "snapshot")
    assert (tmp_path / "snapshot" / "edge-both-prompt.arrow").exists()
    with closing(engine_of(new, spark, tmp_path / "new")) as engine:
        run = run.goes_on_in(engine, snapshot)
        run.advance({"events": cut(ROWS["a"], STOP, END)}, END)
    shown = {row["id"]: row["shown"] for t in run.rows_of("both").values() for row in t.to_pylist()}
    source = {row["id"]: row for row in ROWS["a"].to_pylist()}
    assert shown.keys() == source.keys()
    numbers = dict(zip(source, ROWS["a"].column("ts").cast(pa.int64()).to_numpy() // WIDTH_US, strict=True))
    for number, value in shown.items():
        v = source[number]["v"]
        if number % 2 == 0:
            assert value == 0
        elif numbers[number] <= STOP - 6:
            assert value == v
        else:
            assert value == (None if numbers[number] <= STOP else v + 1000)
    # What has come begins after the stop with both of its inputs, though one of them lags.
    begun = Counter(row["id"] for t in run.rows_of("tail").values() for row in t.to_pylist())
    prompt = {number for number, bucket in numbers.items() if bucket > STOP}
    lagged = {number for number, bucket in numbers.items() if bucket > STOP + 5 and number % 2 == 0}
    assert begun == Counter([*prompt, *lagged])
    assert lagged


# Fragments, sinks and consumers that come and go


def chain(*names: str, sinks: tuple[str, ...] = ()) -> us.Flow:
    flow = us.Flow("chain", bucket=f"{WIDTH_US // 1000} ms")
    events = flow.source("events", EVENTS, time="ts")
    small = flow.fragment(events, time="window.end")(totals)

    def big(totals: DataFrame) -> DataFrame:
        return totals.filter("total > 40")

    def few(totals: DataFrame) -> DataFrame:
        return totals.groupBy(F.window("window", "2 seconds")).count()

    known = {
        "per_second": lambda: flow.fragment(small, time="window.end")(per_second),
        "spikes": lambda: flow.fragment(small, events, time="at")(spikes),
        "big": lambda: flow.fragment(small, time="window.end")(big),
        "few": lambda: flow.fragment(small, time="window.end")(few),
    }
    for name in names:
        flow.sink(known[name](), us.Console())
    for name in sinks:
        flow.sink("per_second", us.Console(), name=name)
    return flow


def test_fragments_and_sinks_of_a_segment_may_come_and_go(
    spark: SparkSession, tmp_path: Path, compared: Counter[str]
) -> None:
    rows, batch_rows = ROWS["a"], spark.createDataFrame(ROWS["a"])
    old, new = chain("per_second", "spikes"), chain("per_second", "big", sinks=("again",))
    answer = fit(*(FlowEngines(flow, "flow", 1, spark=spark).shape for flow in (old, new)))
    assert answer.refusals == ()
    assert answer.snapshots == {"totals+per_second+big": "totals+per_second+spikes"}
    assert {change.sentence.split(" is ")[0] for change in answer.accepted} == {
        *("fragment 'big'", "fragment 'spikes'", "sink 'big'", "sink 'spikes'", "sink 'again'")
    }
    run = Driven(engine_of(old, spark, tmp_path / "old"))
    with closing(run.engine):
        run.engine.start()
        run.advance({"events": cut(rows, 0, STOP)}, STOP)
        snapshot = run.engine.snapshot(tmp_path / "snapshot")
    with closing(engine_of(new, spark, tmp_path / "new")) as engine:
        run = run.goes_on_in(engine, snapshot)
        run.advance({"events": cut(rows, STOP, STOP + 7)}, STOP + 7)
        run.advance({"events": cut(rows, STOP + 7, END)}, END)
    small = totals(batch_rows)
    expected = by_bucket(per_second(small).toArrow(), "window.end")
    require_equal(run.rows_of("per_second"), expected, compared, "per_second")
    late = {n: t for n, t in expected.items() if n > STOP}
    require_equal(run.rows_of("again"), late, compared, "again")
    high = by_bucket(small.filter("total > 40").toArrow(), "window.end")
    require_equal(run.rows_of("big"), {n: t for n, t in high.items() if n > STOP}, compared, "big")

    with (
        closing(engine_of(chain("per_second", "few"), spark, tmp_path / "few")) as engine,
        pytest.raises(FlowError, match=r"'few' is new and keeps a state \(groupBy\)"),
    ):
        engine.start(snapshot)


def dealt_flow(*, with_tail: bool) -> us.Flow:
    flow = us.Flow("dealt", bucket=f"{WIDTH_US // 1000} ms")

    def early(a: DataFrame) -> DataFrame:
        return ahead("id")(a)

    def tail(early: DataFrame) -> DataFrame:
        return early

    source = flow.source("a", EVENTS, time="ts")
    first = flow.fragment(source, time="at")(early)
    flow.sink(first, us.Console())
    if with_tail:
        flow.sink(flow.fragment(first, time="at", partition_by=["k"], partitions=2)(tail), us.Console())
    return flow


def test_rows_that_wait_are_dealt_out_to_a_consumer_that_has_come(
    spark: SparkSession, tmp_path: Path
) -> None:
    old, new = (FlowEngines(dealt_flow(with_tail=tail), "fragment", 2, spark=spark) for tail in (False, True))
    assert fit(old.shape, new.shape).refusals == ()
    run = Driven(old.engine(Partition("early"), tmp_path / "old"))
    with closing(run.engine):
        run.engine.start()
        run.advance({"a": cut(ROWS["a"], 0, STOP)}, STOP)
        snapshot = run.engine.snapshot(tmp_path / "snapshot")
    assert list(snapshot.directory.rglob("held-*.arrow"))
    with closing(new.engine(Partition("early"), tmp_path / "new")) as engine:
        run = run.goes_on_in(engine, snapshot)
        run.advance({"a": cut(ROWS["a"], STOP, STOP + 8)}, STOP + 8)
    dealt = 0
    for number, table in run.rows_of("early").items():
        if number > STOP:
            where = partition_numbers(table, ["k"], 2)
            for index in range(2):
                share = run.rows.get(Partition("tail", index), {}).get(number)
                own = [row["id"] for row, at in zip(table.to_pylist(), where, strict=True) if at == index]
                assert sorted(own) == sorted(share.column("id").to_pylist() if share is not None else [])
                dealt += len(own)
    assert dealt > 20
