"""A table that does not stream is the same for all replicas, or the difference is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driving import Driven, engine_of, flow_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader
from spark_cases import END, ORIGIN, cut, random_rows
from test_against_batch import by_bucket

import understudy as us
from understudy.engine.flow_engines import FlowEngines
from understudy.engine.identity import require_same_tables
from understudy.flow.errors import EnvironmentFailed, FlowError

ROWS = random_rows(5)


def write_names(folder: Path, *, first: str = "one") -> Path:
    """A table of two files, whose sizes do not depend on the rows."""
    table = folder / "names.parquet"
    table.mkdir(parents=True, exist_ok=True)
    for number, names in enumerate(({"k0": first}, {"k1": "two", "k2": "three"})):
        rows = pa.table({"k": list(names), "name": list(names.values())})
        pq.write_table(rows, table / f"part-{number}.parquet", compression="none")
    return table


def joined(table: Path) -> Callable[[DataFrame], DataFrame]:
    return lambda a: a.join(a.sparkSession.read.parquet(str(table)), "k", "left")


def in_subquery(table: Path) -> Callable[[DataFrame], DataFrame]:
    def function(a: DataFrame) -> DataFrame:
        names = a.sparkSession.read.parquet(str(table))
        return a.sparkSession.sql("select * from {a} where k in (select k from {names})", a=a, names=names)

    return function


def named_flow(table: Path) -> us.Flow:
    return flow_of("named", joined(table), "ts")


@pytest.fixture
def started(spark: SparkSession, tmp_path: Path) -> Iterator[Driven]:
    """An engine with a table, after its first rows."""
    run = Driven(engine_of(named_flow(write_names(tmp_path)), spark, tmp_path / "work"))
    with closing(run.engine):
        run.engine.start()
        run.advance({"a": cut(ROWS, 0, ORIGIN + 20)}, ORIGIN + 20)
        yield run


def test_a_replica_with_the_same_files_goes_on_wherever_they_are(
    started: Driven, spark: SparkSession, tmp_path: Path
) -> None:
    snapshot = started.engine.snapshot(tmp_path / "snapshot")
    table = write_names(tmp_path / "elsewhere")
    with closing(engine_of(named_flow(table), spark, tmp_path / "other")) as engine:
        other = started.goes_on_in(engine, snapshot)
        other.advance({"a": cut(ROWS, ORIGIN + 20, END)}, END)
    batch = joined(table)(spark.createDataFrame(ROWS)).toArrow()
    expected = {number: rows.to_pylist() for number, rows in by_bucket(batch, "ts").items()}
    assert {number: rows.to_pylist() for number, rows in other.rows_of("named").items()} == expected


def test_a_replica_with_other_files_is_refused_with_table_and_file(
    started: Driven, spark: SparkSession, tmp_path: Path
) -> None:
    snapshot = started.engine.snapshot(tmp_path / "snapshot")
    table = write_names(tmp_path / "elsewhere", first="two")
    with (
        closing(engine_of(named_flow(table), spark, tmp_path / "other")) as engine,
        pytest.raises(
            EnvironmentFailed,
            match=r"'named' reads the table names\.parquet, and its file part-0\.parquet differs between rep",
        ),
    ):
        engine.start(snapshot)


def test_replicas_that_begin_with_nothing_can_be_compared(spark: SparkSession, tmp_path: Path) -> None:
    def read(folder: str, first: str) -> Mapping[str, str]:
        table = write_names(tmp_path / folder, first=first)
        return FlowEngines(named_flow(table), "flow", 1, spark=spark).tables

    require_same_tables("the flow", read("here", "one"), read("there", "one"))
    with pytest.raises(EnvironmentFailed, match=r"flow reads the table named: names\.parquet, .*part-0"):
        require_same_tables("the flow", read("here", "one"), read("there", "two"))


@pytest.mark.parametrize("change", ["rewritten", "removed"])
@pytest.mark.parametrize("used", [joined, in_subquery])
def test_a_file_that_changes_during_a_run_is_named_before_output_leaves(
    spark: SparkSession, tmp_path: Path, used: Callable[[Path], Callable[..., DataFrame]], change: str
) -> None:
    table = write_names(tmp_path)
    run = Driven(engine_of(flow_of("named", used(table), "ts"), spark, tmp_path / "work"))
    with closing(run.engine):
        run.engine.start()
        run.advance({"a": cut(ROWS, 0, ORIGIN + 20)}, ORIGIN + 20)
        if change == "rewritten":
            write_names(tmp_path, first="two")
        else:
            (table / "part-0.parquet").unlink()
        emitted = len(run.outputs)
        with pytest.raises(
            EnvironmentFailed,
            match=r"'named': the file .*part-0\.parquet of the table names\.parquet was changed while",
        ):
            run.advance({"a": cut(ROWS, ORIGIN + 20, END)}, END)
    assert len(run.outputs) == emitted


class Strange(DataSource):
    """A table that is no file."""

    @classmethod
    def name(cls) -> str:
        return "strange"

    def schema(self) -> str:
        return "k string, name string"

    def reader(self, schema: object) -> DataSourceReader:
        class Reader(DataSourceReader):
            def read(self, partition: object) -> Iterator[tuple[str, str]]:
                yield "k0", "one"

        return Reader()


def test_a_table_that_is_no_file_is_refused_with_what_to_do(spark: SparkSession) -> None:
    spark.dataSource.register(Strange)
    flow = flow_of("named", lambda a: a.join(a.sparkSession.read.format("strange").load(), "k"), "ts")
    with pytest.raises(FlowError, match=r"'named' reads a table of the kind .*Write the table to files"):
        FlowEngines(flow, "flow", 1, spark=spark)


def test_rows_that_the_flow_makes_itself_need_no_files(spark: SparkSession) -> None:
    def function(a: DataFrame) -> DataFrame:
        made = a.sparkSession.createDataFrame([("k0", 1)], "k string, w int")
        return a.join(made, "k").join(a.sparkSession.range(50), "id", "leftsemi")

    assert FlowEngines(flow_of("named", function, "ts"), "flow", 1, spark=spark).tables == {}
