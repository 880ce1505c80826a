"""A mistake in a fragment is reported in a sentence, and a failing query never hangs."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from driving import Driven, engine_of, flow_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import (
    DataStreamWriter,
    StatefulProcessor,
    StatefulProcessorHandle,
    StreamingQuery,
)
from pyspark.sql.streaming.state import GroupStateTimeout
from spark_cases import END, ORIGIN, SCHEMA, WIDTH_US, cut, random_rows

from understudy.core.errors import BrokenInvariant
from understudy.engine.query import Input
from understudy.engine.session import endpoint
from understudy.engine.source import GroupSource
from understudy.engine.spark import SparkEngine
from understudy.flow.errors import ContractViolation, EnvironmentFailed, FlowError

ROWS = random_rows(5)
Make = Callable[..., SparkEngine]


class Counting(StatefulProcessor):
    """A processor with one value of state."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803 - Spark's names
        count = (self._count.get() or (0,))[0] + sum(1 for _ in rows)
        self._count.update((count,))
        yield from ()

    def close(self) -> None:
        pass


def with_state(a: DataFrame, timeout: str, mode: str = "append") -> DataFrame:
    def pass_on(key: Any, frames: Any, state: Any) -> Any:
        yield from frames

    return a.groupBy("k").applyInPandasWithState(pass_on, a.schema, "n long", mode, timeout)


@pytest.fixture
def make(spark: SparkSession, tmp_path: Path) -> Iterator[Make]:
    made: list[SparkEngine] = []

    def build(function: Callable[..., DataFrame], time: str = "ts") -> SparkEngine:
        inputs = {"a": Input(SCHEMA, "ts")}
        made.append(
            SparkEngine(
                spark,
                endpoint(),
                name="suspect",
                function=function,
                inputs=inputs,
                time=time,
                width_us=WIDTH_US,
                directory=tmp_path,
            )
        )
        return made[-1]

    yield build
    for engine in made:
        engine.close()


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda a: a.withColumn("x", F.rand()), r"rand\(\).*'x'"),
        (lambda a: a.withColumn("x", F.randn(7)), r"randn\(\)"),
        (lambda a: a.withColumn("x", F.expr("uuid()")), r"uuid\(\)"),
        (lambda a: a.withColumn("x", F.current_timestamp()), r"current_timestamp\(\)"),
        (lambda a: a.withColumn("x", F.expr("now()")), r"now\(\)"),
        (lambda a: a.withColumn("x", F.current_date()), r"current_date\(\)"),
        (lambda a: a.filter(F.col("ts") < F.expr("now() - interval 1 day")), r"now\(\)"),
        (lambda a: a.withColumn("x", F.monotonically_increasing_id()), r"monotonically_increasing_id"),
        (lambda a: a.withColumn("x", F.spark_partition_id()), r"spark_partition_id"),
        (lambda a: a.withColumn("x", F.shuffle(F.array("v", "id"))), r"shuffle\(\)"),
        (lambda a: a.sample(0.5, seed=1), r"sample\(\)"),
        (
            lambda a: a.groupBy(F.window("ts", "1 second")).agg(F.kll_sketch_agg_bigint("v").alias("x")),
            r"kll_sketch_agg_bigint\(\).*'x'.*by chance.*percentile_approx",
        ),
        (
            lambda a: a.groupBy(F.window("ts", "1 second")).agg(F.kll_merge_agg_float(F.lit(b""))),
            r"kll_merge_agg_float\(\)",
        ),
        (
            lambda a: a.withColumn("x", F.udf(lambda v: v, "long").asNondeterministic()("v")),
            "declared nondeterministic",
        ),
        (lambda a: a.withWatermark("ts", "1 second"), "withWatermark"),
        (lambda a: with_state(a, GroupStateTimeout.ProcessingTimeTimeout), "ProcessingTimeTimeout"),
    ],
)
def test_what_replicas_could_not_agree_on_is_refused_by_name(
    make: Make, function: Callable[[DataFrame], DataFrame], named: str
) -> None:
    with pytest.raises(FlowError, match=f"'suspect'.*{named}"):
        make(function)


def test_a_mistaken_name_is_reported_without_the_plan(make: Make) -> None:
    with pytest.raises(FlowError, match=r"'suspect'.*`kk` cannot be resolved") as caught:
        make(lambda a: a.select("kk"))
    assert "StreamingRelation" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_what_spark_refuses_when_it_starts_is_reported_without_the_plan(make: Make) -> None:
    engine = make(lambda a: a.orderBy("v"))
    with pytest.raises(FlowError, match=r"Spark does not run it: Sorting is not .* output mode$"):
        engine.start()


def test_a_state_function_in_update_mode_is_told_which_mode_it_needs(make: Make) -> None:
    engine = make(lambda a: with_state(a, GroupStateTimeout.NoTimeout, "update"))
    with pytest.raises(FlowError, match=r'Spark does not run it: .* in update mode .*output mode "append"'):
        engine.start()


def test_where_every_bucket_is_a_micro_batch_the_engine_says_so(make: Make) -> None:
    assert make(lambda a: with_state(a, GroupStateTimeout.NoTimeout)).stepwise
    assert not make(lambda a: a).stepwise


def test_a_fragment_finds_the_active_session_in_whatever_thread_it_is_built(make: Make) -> None:
    found: list[SparkSession | None] = []

    def looking(a: DataFrame) -> DataFrame:
        found.append(SparkSession.getActiveSession())
        return a

    thread = threading.Thread(target=lambda: make(looking))
    thread.start()
    thread.join()
    assert found[0] is not None
    assert found[0].range(3).count() == 3


@pytest.mark.parametrize("method", ["transformWithState", "transformWithStateInPandas"])
def test_an_operator_whose_workers_cannot_run_here_is_refused_with_what_to_use_instead(
    make: Make, method: str
) -> None:
    def counted(a: DataFrame) -> DataFrame:
        transform = getattr(a.groupBy("k"), method)
        return transform(Counting(), "k string, ts timestamp", "append", "none")  # type: ignore[no-any-return]

    with pytest.raises(FlowError, match=r"'suspect'.*transformWithState.*protobuf.*applyInPandasWithState"):
        make(counted)


def test_deduplication_within_a_watermark_is_refused_with_what_to_use_instead(make: Make) -> None:
    with pytest.raises(
        FlowError,
        match=r"'suspect' uses dropDuplicatesWithinWatermark\(\).*no delay.*dropDuplicates\(.*F\.window",
    ):
        make(lambda a: a.dropDuplicatesWithinWatermark(["k"]))


def test_deduplication_in_windows_remembers_rows_for_a_window_and_no_longer(
    make: Make, spark: SparkSession, tmp_path: Path
) -> None:
    def remembered() -> int:
        (state,) = tmp_path.glob("*/checkpoint/state")
        return spark.read.format("statestore").load(str(state.parent)).count()

    engine = make(
        lambda a: a.withColumn("w", F.window("ts", "1 second")).drop("ts").dropDuplicates(["k", "w"]), "w.end"
    )
    engine.start()
    engine.advance({"a": cut(ROWS, 0, ORIGIN + 8)}, ORIGIN + 8)
    # The window that is open began with the first bucket.
    assert engine.horizon() <= ORIGIN
    assert remembered() == len(set(cut(ROWS, 0, ORIGIN + 8).column("k").to_pylist())) > 0
    engine.advance({}, ORIGIN + 11)
    assert remembered() == 0


@pytest.mark.parametrize(
    ("function", "time", "said"),
    [
        (lambda a: a.select("k", "v"), "ts", r"'ts' is not in its output.*k:string,v:bigint"),
        (lambda a: a, "v", r"'v' must be a timestamp, but is bigint"),
        (lambda a: a.select("nope"), "ts", "nope"),
        (
            lambda a: a.groupBy(F.session_window("ts", "1 second")).count(),
            "session_window.start",
            "without bound",
        ),
        (lambda a: a.groupBy("k").agg(F.max("ts").alias("ts")), "ts", "without a window"),
        (lambda a: None, "ts", "returned NoneType"),
        (lambda a: 1 / 0, "ts", rf"raised ZeroDivisionError: .* \({__file__}:\d+\)"),
    ],
)
def test_a_fragment_that_cannot_work_is_refused_before_it_runs(
    make: Make, function: Callable[[DataFrame], DataFrame], time: str, said: str
) -> None:
    with pytest.raises(FlowError, match=said):
        make(function, time)


def test_a_row_for_a_sealed_bucket_names_fragment_time_and_bucket(make: Make) -> None:
    engine = make(
        lambda a: a.withColumn("early", F.expr("timestamp_micros(unix_micros(ts) - 3000000)")), "early"
    )
    engine.start()
    engine.advance({}, ORIGIN - 1)
    with pytest.raises(
        ContractViolation, match=rf"'suspect'.*'early'.*2023-11-14T22:13:17.*bucket {ORIGIN - 30}"
    ):
        engine.advance({"a": cut(ROWS, 0, END)}, END)


def test_a_row_without_a_time_is_a_broken_contract(make: Make) -> None:
    engine = make(lambda a: a.withColumn("at", F.when(F.col("v") < 1000, None).otherwise(F.col("ts"))), "at")
    engine.start()
    with pytest.raises(ContractViolation, match="no value"):
        engine.advance({"a": ROWS}, END)


def test_after_a_query_failed_with_sparks_message_another_goes_on_from_a_snapshot(
    spark: SparkSession, tmp_path: Path
) -> None:
    def boom(a: DataFrame) -> DataFrame:
        return a.withColumn("x", F.expr("if(v < 0, raise_error('boom ' || v), 1)"))

    flow = flow_of("suspect", boom, "ts")
    failing = Driven(engine_of(flow, spark, tmp_path / "one"))
    failing.engine.start()
    failing.advance({"a": cut(ROWS, 0, ORIGIN + 5)}, ORIGIN + 5)
    snapshot = failing.engine.snapshot(tmp_path / "snapshot")
    poison = pa.table(
        [["k"], [-1], [0], pa.array([(ORIGIN + 6) * WIDTH_US], pa.int64()).cast(SCHEMA.field("ts").type)],
        schema=SCHEMA,
    )
    with pytest.raises(FlowError, match=r"'suspect'.*boom -1"):
        failing.advance({"a": poison}, ORIGIN + 6)
    with pytest.raises(BrokenInvariant, match="start another from a snapshot"):
        failing.advance({}, ORIGIN + 7)
    failing.engine.close()
    again = failing.goes_on_in(engine_of(flow, spark, tmp_path / "two"), snapshot)
    again.advance({"a": cut(ROWS, ORIGIN + 5, END)}, END)
    assert sum(table.num_rows for table in again.rows_of("suspect").values()) == ROWS.num_rows
    again.engine.close()


def test_a_function_that_raises_is_the_flows_fault_whatever_it_raises(make: Make) -> None:
    read = F.udf(lambda _: len(Path("no such file").read_text()), "int")
    engine = make(lambda a: a.withColumn("x", read("v")))
    engine.start()
    with pytest.raises(FlowError, match="FileNotFoundError"):
        engine.advance({"a": ROWS}, END)


def test_a_function_that_does_not_load_on_this_java_is_the_flows_fault(make: Make) -> None:
    engine = make(lambda a: a.groupBy(F.window("ts", "1 second")).agg(F.hll_sketch_agg("v")), "window.end")
    engine.start()
    with pytest.raises(
        FlowError, match=r"'suspect' cannot run .*this Java: hll_sketch_agg: .*Error.*use another function$"
    ) as caught:
        engine.advance({"a": ROWS}, END)
    assert "\n" not in str(caught.value)


def test_a_python_worker_that_dies_is_the_machines_fault(make: Make) -> None:
    die = F.udf(lambda _: os.kill(os.getpid(), signal.SIGKILL), "int")
    engine = make(lambda a: a.withColumn("x", die("v")))
    engine.start()
    with pytest.raises(EnvironmentFailed, match=r"'suspect'.*Python worker exited unexpectedly"):
        engine.advance({"a": ROWS}, END)


def test_python_that_starts_too_slowly_once_is_started_again(
    make: Make, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context, slow = spark.sparkContext, tmp_path / "python"
    mark, real = tmp_path / "slept", context.pythonExec
    # Longer than the limit, which is a constant of Spark's.
    slow.write_text(
        f'#!/bin/sh\ncase "$*" in *python_streaming_source_runner*)\n'
        f"  [ -e '{mark}' ] || {{ touch '{mark}'; sleep 12; }};;\nesac\nexec '{real}' \"$@\"\n"
    )
    slow.chmod(0o755)
    context.pythonExec = str(slow)
    try:
        spark.dataSource.register(GroupSource)
        engine = make(lambda a: a)
        engine.start()
        engine.advance({"a": ROWS}, END)
    finally:
        context.pythonExec = real
        spark.dataSource.register(GroupSource)
    assert mark.exists()
    assert "starting it again" in caplog.text


def test_state_that_cannot_be_written_is_the_machines_fault(make: Make, tmp_path: Path) -> None:
    engine = make(lambda a: a.groupBy(F.window("ts", "1 second")).agg(F.sum("v")), "window.end")
    engine.start()
    engine.advance({"a": cut(ROWS, 0, ORIGIN + 5)}, ORIGIN + 5)
    for state in tmp_path.rglob("state"):
        shutil.rmtree(state)
        state.write_text("not a folder")
    with pytest.raises(EnvironmentFailed, match=r"'suspect'.*Spark could not go on here \(.*state"):
        engine.advance({"a": cut(ROWS, ORIGIN + 5, END)}, END)


def test_a_bucket_that_was_taken_cannot_come_again(make: Make) -> None:
    engine = make(lambda a: a)
    engine.start()
    engine.advance({}, ORIGIN)
    with pytest.raises(BrokenInvariant, match="is not after"):
        engine.advance({}, ORIGIN)


@pytest.mark.parametrize("moment", ["before it starts", "before Spark starts it", "after Spark started it"])
def test_an_engine_that_is_closed_while_it_starts_leaves_nothing_behind(
    make: Make, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    engine = make(lambda a: a.groupBy(F.window("ts", "1 second")).count(), "window.end")
    real = DataStreamWriter.start

    def close() -> None:
        closing = threading.Thread(target=engine.close, daemon=True)
        closing.start()
        closing.join(60)
        assert not closing.is_alive(), "close waits for the start"

    def start(writer: DataStreamWriter) -> StreamingQuery:
        if moment == "before Spark starts it":
            close()
        query = real(writer)
        if moment == "after Spark started it":
            close()
        return query

    monkeypatch.setattr(DataStreamWriter, "start", start)
    if moment == "before it starts":
        close()
    with pytest.raises(EnvironmentFailed, match="'suspect' was closed"):
        engine.start()
    assert spark.streams.active == []
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_is_closed_while_it_advances_says_so(make: Make, tmp_path: Path) -> None:
    def slow(frames: Iterator[Any]) -> Iterator[Any]:
        for frame in frames:
            (tmp_path / "begun").touch()
            time.sleep(1)
            yield frame

    engine = make(lambda a: a.mapInPandas(slow, a.schema))
    engine.start()
    said: list[BaseException] = []

    def advance() -> None:
        try:
            engine.advance({"a": ROWS}, END)
        except BaseException as problem:
            said.append(problem)

    advancing = threading.Thread(target=advance, daemon=True)
    advancing.start()
    while not (tmp_path / "begun").exists():
        assert advancing.is_alive()
        time.sleep(0.01)
    engine.close()
    advancing.join(60)
    assert not advancing.is_alive()
    assert [(type(problem), str(problem)) for problem in said] == [
        (EnvironmentFailed, "fragment 'suspect' was closed")
    ]
