"""A fragment's output buckets equal the batch job's rows, however the stream is grouped, cut and restored."""

from __future__ import annotations

import datetime
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from driving import Driven, engine_of, flow_of
from pyspark.sql import SparkSession
from spark_cases import CASES, END, WIDTH_US, Case, cut, random_cuts, random_rows

from understudy.core.bucket import NOTHING
from understudy.engine.digest import canonical_order, digest_of
from understudy.engine.interface import CopyEngine, Snapshot
from understudy.engine.query import Input
from understudy.engine.session import endpoint
from understudy.engine.spark import SparkEngine
from understudy.engine.storing import read_manifest
from understudy.engine.times import times_of
from understudy.flow.schema import parse_schema


def expected_buckets(spark: SparkSession, case: Case, rows: Mapping[str, pa.Table]) -> dict[int, pa.Table]:
    """What must come out, by bucket in canonical order: from a batch job, or from the case's model."""
    if case.model is not None:
        table = case.model(rows)
    else:
        table = case.function(*(spark.createDataFrame(rows[name]) for name in case.inputs)).toArrow()
    return by_bucket(table, case.time)


def by_bucket(table: pa.Table, time: str) -> dict[int, pa.Table]:
    path = tuple(time.split("."))
    numbers = [value // WIDTH_US for value in times_of(table.combine_chunks(), path).to_pylist()]
    out = {}
    for number in sorted(set(numbers)):
        part = table.filter(pa.array([n == number for n in numbers])).combine_chunks()
        out[number] = canonical_order(part, times_of(part, path))
    return out


@pytest.fixture
def engine_for(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[Case], CopyEngine]]:
    made: list[CopyEngine] = []

    def make(case: Case) -> CopyEngine:
        made.append(engine_of(flow_of(case.name, case.function, case.time, case.inputs), spark, tmp_path))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def require_equal(
    got: Mapping[int, pa.Table], expected: Mapping[int, pa.Table], compared: Counter[str], what: str
) -> None:
    assert {n: t.num_rows for n, t in got.items()} == {n: t.num_rows for n, t in expected.items()}, what
    for number, table in expected.items():
        assert got[number].to_pylist() == table.to_pylist(), f"{what}, bucket {number}"
        assert digest_of(got[number]) == digest_of(table.cast(got[number].schema)), f"{what}, bucket {number}"
    compared["rows"] += sum(table.num_rows for table in got.values())
    compared["buckets"] += len(got)


@pytest.mark.parametrize("name", CASES)
def test_output_equals_the_batch_job_for_any_grouping_and_restore(
    name: str,
    spark: SparkSession,
    engine_for: Callable[[Case], CopyEngine],
    tmp_path: Path,
    compared: Counter[str],
) -> None:
    case = CASES[name]
    for seed in range(3):
        rows = {given: random_rows(1000 * seed + i) for i, given in enumerate(case.inputs)}
        expected = expected_buckets(spark, case, rows)
        assert expected, "a case without output proves nothing"
        cuts = [END] if seed == 0 else random_cuts(seed + 17 * len(name))
        run = Driven(engine_for(case))
        run.engine.start()
        restore_at = random.Random(seed).randrange(len(cuts)) if len(cuts) > 1 else None
        for at, through in enumerate(cuts):
            if at == restore_at:
                # What the first engine does after its snapshot is undone.
                first, snapshot = run, run.engine.snapshot(tmp_path / f"snapshot-{seed}")
                require_all_states_in_the_shape(name, snapshot)
                run = first.goes_on_in(engine_for(case), snapshot)
                advance(first, rows, through)
                first.engine.close()
                compared["restores"] += 1
            advance(run, rows, through)
            compared["batches"] += 1
        require_equal(run.rows_of(name), expected, compared, f"{name}, seed {seed}, cuts {cuts}")
        compared["groupings"] += 1
        horizon = run.engine.horizon()
        assert horizon == NOTHING if run.engine.unbounded else horizon > END - 60
        run.engine.close()


def require_all_states_in_the_shape(name: str, snapshot: Snapshot) -> None:
    """Spark keeps the state of each operator in a folder of its own."""
    facts = read_manifest(snapshot.directory)["engines"][name]
    states = snapshot.directory / "engines" / name / "checkpoint" / "state"
    found = len(list(states.iterdir())) if states.is_dir() else 0
    assert found == (len(facts["shape"]["operators"]) if facts["group"] else 0)


def advance(run: Driven, rows: Mapping[str, pa.Table], through: int) -> None:
    after = run.engine.through
    run.advance({name: cut(table, after, through) for name, table in rows.items()}, through)
    assert run.engine.through == through


def test_nested_columns_come_out_as_they_went_in(spark: SparkSession, tmp_path: Path) -> None:
    schema = parse_schema(
        "ts timestamp, many array<struct<n: int, at: timestamp>>, named map<string, decimal(9, 2)>, b binary"
    )
    time = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    rows = [
        {"ts": time, "many": [{"n": 1, "at": time}, None], "named": [("a", Decimal("1.50"))], "b": b"x"},
        {"ts": time, "many": [], "named": None, "b": None},
        {"ts": time, "many": None, "named": [], "b": b""},
    ]
    table = pa.Table.from_pylist(rows, schema)
    number = int(time.timestamp() * 1_000_000) // WIDTH_US
    engine = SparkEngine(
        spark,
        endpoint(),
        name="nested",
        function=lambda a: a,
        inputs={"a": Input(schema, "ts")},
        time="ts",
        width_us=WIDTH_US,
        directory=tmp_path,
    )
    try:
        engine.start()
        came = engine.advance({"a": table}, number).rows
    finally:
        engine.close()
    expected = canonical_order(table, times_of(table, ("ts",)))
    assert {n: t.to_pylist() for n, t in came.items()} == {number: expected.to_pylist()}
