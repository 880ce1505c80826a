"""A fragment's partitions together put out what a batch job over all rows gives, however each is grouped,
restored or replaced; and declarations that would part what belongs together are refused.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from partitioned_run import PartitionedRun, digests
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from spark_cases import END, ORIGIN, WIDTH_US, random_rows
from test_against_batch import by_bucket, require_equal

import understudy as us
from understudy.core.errors import BrokenInvariant
from understudy.core.shape.partition import Partition
from understudy.demo.packets import SCHEMA, lanes_for, packets
from understudy.demo.sessions import sessions, stats
from understudy.demo.truth import generated
from understudy.engine.flow_engines import FlowEngines
from understudy.flow.errors import EnvironmentFailed, FlowError

RATE, ROWS = 300, 900
EVENTS = us.Push("k string, v bigint, id bigint, ts timestamp")


def sessions_flow() -> us.Flow:
    flow = us.Flow("sessions", bucket=f"{WIDTH_US // 1000} ms")
    made = partial(packets, lanes=lanes_for(RATE))
    source = flow.source("packets", us.Generator(SCHEMA, made, RATE, seed=5, rows=ROWS), time="ts")
    by_pair = flow.fragment(source, partition_by=["src", "dst"], partitions=3, time="closed")(sessions)
    by_source = flow.fragment(by_pair, partition_by=["app", "src"], time="window.end")(stats)
    flow.sink(by_source, us.Console())
    return flow


def test_partitions_of_a_chain_put_out_what_the_batch_job_does(
    spark: SparkSession, tmp_path: Path, compared: Counter[str]
) -> None:
    flow = sessions_flow()
    rows = generated(flow, "packets", ORIGIN * WIDTH_US)
    last = ORIGIN + ROWS * 10 // RATE + 15
    with PartitionedRun(flow, 2, spark, tmp_path, seed=1, counts=compared) as run:
        assert run.topology.counts == {"sessions": 3, "stats": 2}
        run.feed("packets", rows, last)
        moved, rolled_back = Partition("sessions", 1), Partition("stats", 0)

        # Another engine goes on from a partition's snapshot, and the first one is gone.
        run.run(ORIGIN + 14, stop=moved)
        through = run.engines[moved].through + 4
        newcomer = run.engine(moved)
        newcomer.start(run.engines[moved].snapshot(tmp_path / "moved"))
        alone = run.advanced(newcomer, moved, through)
        leaving = run.engines[moved]
        assert digests(run.step(moved, through)) == digests(alone)
        run.engines[moved] = newcomer
        leaving.close()

        # What a partition did after its snapshot is done again by another engine.
        run.run(ORIGIN + 25)
        snapshot = run.engines[rolled_back].snapshot(tmp_path / "rolled-back")
        before, through = snapshot.through, run.engines[rolled_back].through + 5
        run.run(before)
        for other in run.partitions:
            if other.name == "sessions":
                run.step(other, last)
        undone = run.advanced(run.engines[rolled_back], rolled_back, through)
        run.start_again(rolled_back, snapshot)
        assert run.engines[rolled_back].through == before
        assert digests(run.step(rolled_back, through)) == digests(undone)
        assert undone[0].shares[Partition("sink:stats")]

        run.run(last)
        compared["restores"] += 2
        for partition in run.partitions:
            assert run.engines[partition].through == run.ready(partition) >= last - 1
            stream = "packets" if partition.name == "sessions" else "sessions"
            assert run.sent[stream, partition] > 0, f"{partition} had nothing to do"
        batch = stats(sessions(spark.createDataFrame(rows))).toArrow()
        require_equal(run.rows_of("stats"), by_bucket(batch, "window.end"), compared, "stats")
        compared["groupings"] += len(run.partitions)


def due(events: DataFrame) -> DataFrame:
    """Known long before it is due, so rows are held; and a key of another width than the source's."""
    return events.filter("id % 3 = 0").select(
        F.col("v").cast("int").alias("v"),
        "id",
        "k",
        (F.col("ts") + F.expr("interval 300 milliseconds")).alias("due"),
    )


def matched(events: DataFrame, due: DataFrame) -> DataFrame:
    near = F.expr("e.k = d.k and e.v = d.v and e.ts between d.due - interval 250 milliseconds and d.due")
    return (
        events.alias("e")
        .join(due.alias("d"), near)
        .select("e.k", "e.v", "e.id", F.col("d.id").alias("other"), F.greatest("e.ts", "d.due").alias("at"))
    )


def per_second(due: DataFrame) -> DataFrame:
    return due.groupBy(F.window("due", "1 second")).agg(F.count("*").alias("n"), F.sum("id").alias("ids"))


def joined_flow(*, matched_in: int = 3) -> us.Flow:
    flow = us.Flow("joined", bucket=f"{WIDTH_US // 1000} ms")
    events = flow.source("events", EVENTS, time="ts")
    early = flow.fragment(events, time="due", partition_by=["id"])(due)
    flow.sink(early, us.Console())
    flow.sink(early, us.Console(), name="again")
    by_both = flow.fragment(events, early, time="at", partition_by=["k", "v"], partitions=matched_in)
    flow.sink(by_both(matched), us.Console())
    flow.sink(flow.fragment(early, time="window.end")(per_second), us.Console())
    return flow


def few_values(rows: pa.Table) -> pa.Table:
    """With so few that many rows have a match, and with some that have no key."""
    values = rows.column("v").to_numpy() % 3
    keys = [None if number % 11 == 0 else key for number, key in enumerate(rows.column("k").to_pylist())]
    return rows.set_column(0, "k", pa.array(keys, pa.string())).set_column(1, "v", pa.array(values))


def test_rows_dealt_by_arrow_meet_rows_dealt_by_spark_in_a_join(
    spark: SparkSession, tmp_path: Path, compared: Counter[str]
) -> None:
    flow, rows = joined_flow(), few_values(random_rows(11))
    with PartitionedRun(flow, 2, spark, tmp_path, seed=3, counts=compared) as run:
        assert run.topology.counts == {"due": 2, "matched": 3, "per_second": 1}
        run.feed("events", rows, END)
        # Rows that are held say where they go, before and after a restore.
        early = Partition("due", 1)
        run.step(early, ORIGIN + 20)
        snapshot = run.engines[early].snapshot(tmp_path / "early")
        assert list(snapshot.directory.rglob("held-*.arrow"))
        undone = run.advanced(run.engines[early], early, ORIGIN + 30)
        run.start_again(early, snapshot)
        assert digests(run.step(early, ORIGIN + 30)) == digests(undone)
        # Those that take every row get one table, not one copy each.
        (shares,) = [output.shares for output in undone]
        for bucket, table in shares[Partition("sink:due")].items():
            assert shares[Partition("per_second")][bucket] is table
            assert shares[Partition("sink:again")][bucket] is table
        compared["restores"] += 1

        for through in (ORIGIN + 12, ORIGIN + 26, END):
            run.run(through)
        batch = spark.createDataFrame(rows)
        expected = {
            "due": by_bucket(due(batch).toArrow(), "due"),
            "matched": by_bucket(matched(batch, due(batch)).toArrow(), "at"),
            "per_second": by_bucket(per_second(due(batch)).toArrow(), "window.end"),
        }
        for name, buckets in expected.items():
            require_equal(run.rows_of(name), buckets, compared, name)
        assert sum(table.num_rows for table in expected["matched"].values()) > 20
        compared["groupings"] += len(run.partitions)

        # With other consumers the held rows would go astray.
        other = FlowEngines(joined_flow(matched_in=2), "fragment", 2, spark=spark)
        with pytest.raises(
            EnvironmentFailed, match=r"matched \(by k, v into 3\), not to matched \(by k, v into 2\)"
        ):
            other.engine(early, tmp_path / "other").start(snapshot)

        # In another partition the state would be that of other keys.
        with pytest.raises(
            EnvironmentFailed, match=r"'due' is of partition 1 of 2 by id, not of partition 0 of 2 by id"
        ):
            run.engine(Partition("due", 0)).start(snapshot)
        with pytest.raises(BrokenInvariant, match="joined has no partition due/2"):
            run.engine(Partition("due", 2))


def chain_of_two(output: Any, key: str, *, beside_source: bool = False) -> us.Flow:
    """A fragment `first` with these output columns, read by `second`, which is partitioned by `key`."""
    flow = us.Flow("wrong", bucket="100 ms")
    events = flow.source("events", EVENTS, time="ts")

    def first(events: DataFrame) -> DataFrame:
        return events.select("ts", *output)

    def second(*inputs: DataFrame) -> DataFrame:
        return inputs[-1]

    made = flow.fragment(events, time="ts")(first)
    inputs = (events, made) if beside_source else (made,)
    flow.sink(flow.fragment(*inputs, time="ts", partition_by=[key])(second), us.Console())
    flow.validate()
    return flow


def test_an_output_without_the_key_is_refused(spark: SparkSession) -> None:
    flow = chain_of_two(["v", "id"], "k")
    with pytest.raises(
        FlowError, match=r"'second' is partitioned by 'k', .*'first' does not have.*ts, v, id.*add 'k'"
    ):
        FlowEngines(flow, "fragment", 2, spark=spark)


def test_an_output_with_a_key_that_cannot_be_hashed_is_refused(spark: SparkSession) -> None:
    flow = chain_of_two([(F.col("v") / 2).alias("half")], "half")
    with pytest.raises(
        FlowError, match=r"'second' is partitioned by 'half', which is double.*'first'.*cast this"
    ):
        FlowEngines(flow, "fragment", 2, spark=spark)


def test_a_key_of_another_kind_than_in_the_source_is_refused(spark: SparkSession) -> None:
    flow = chain_of_two([F.col("v").cast("string").alias("v")], "v", beside_source=True)
    with pytest.raises(FlowError, match=r"'v', which is integer .*'events' but string .*'first'.*Cast one"):
        FlowEngines(flow, "fragment", 2, spark=spark)


def test_a_column_by_the_name_of_a_hidden_one_is_refused(spark: SparkSession) -> None:
    flow = chain_of_two(["k", F.col("v").alias("__understudy_Partition_second")], "k")
    with pytest.raises(
        FlowError, match=r"'first' has an output column '__understudy_Partition_second'.*another"
    ):
        FlowEngines(flow, "fragment", 2, spark=spark)
