"""Several fragments in one engine: chained, side by side, each sink by itself, snapshots taken up anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from driving import EVENTS, Driven, engine_of
from pyspark.sql import DataFrame, SparkSession
from spark_cases import END, ORIGIN, WIDTH_US, cut, random_cuts, random_rows
from spark_flow import make_flow, per_second, spikes, totals
from test_against_batch import by_bucket, require_equal

import understudy as us
from understudy.engine.interface import Output
from understudy.engine.storing import open_snapshot
from understudy.flow.errors import EnvironmentFailed

SINKS = ("per_second", "spikes")


def truth(spark: SparkSession, rows: pa.Table) -> dict[str, dict[int, pa.Table]]:
    batch = spark.createDataFrame(rows)
    small = totals(batch)
    return {
        "per_second": by_bucket(per_second(small).toArrow(), "window.end"),
        "spikes": by_bucket(spikes(small, batch).toArrow(), "at"),
    }


def advance(run: Driven, rows: pa.Table, cuts: list[int]) -> None:
    for through in cuts:
        run.advance({"events": cut(rows, run.engine.through, through)}, through)


def require_truth(
    got: dict[str, dict[int, pa.Table]],
    spark: SparkSession,
    rows: pa.Table,
    compared: Counter[str],
    what: str,
) -> None:
    expected = truth(spark, rows)
    for name, buckets in expected.items():
        require_equal(got[name], buckets, compared, f"{name}: {what}")
    compared["groupings"] += 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_chained_fragments_equal_the_batch_job_across_a_restore(
    seed: int, spark: SparkSession, tmp_path: Path, compared: Counter[str]
) -> None:
    rows, cuts = random_rows(seed), random_cuts(seed + 100)
    middle = len(cuts) // 2
    first = Driven(engine_of(make_flow(), spark, tmp_path / "one"))
    with closing(first.engine):
        first.engine.start()
        advance(first, rows, cuts[:middle])
        snapshot = first.engine.snapshot(tmp_path / "snapshot")
        run = first.goes_on_in(engine_of(make_flow(), spark, tmp_path / "two"), snapshot)
        advance(first, rows, cuts[middle:])
    with closing(run.engine):
        advance(run, rows, cuts[middle:])
        assert run.engine.through == END
        assert END - 60 < run.engine.horizon() <= END
    compared["restores"] += 1
    compared["batches"] += 2 * len(cuts)
    got = {name: run.rows_of(name) for name in SINKS}
    require_truth(got, spark, rows, compared, f"seed {seed}, cuts {cuts}")
    assert got == {name: first.rows_of(name) for name in SINKS}


def test_a_sink_is_complete_as_far_as_its_own_fragment(spark: SparkSession, tmp_path: Path) -> None:
    run = Driven(engine_of(make_flow(), spark, tmp_path))
    with closing(run.engine):
        run.engine.start()
        run.advance({"events": cut(random_rows(3), 0, ORIGIN + 20)}, ORIGIN + 20)
    # Rows of spikes may come up to 200 ms late; those of per_second come on time.
    through = {consumer.name: number for consumer, number in run.through.items()}
    assert through["sink:per_second"] > through["sink:spikes"]


def test_another_process_goes_on_from_a_snapshot(
    spark: SparkSession, tmp_path: Path, compared: Counter[str]
) -> None:
    rows = random_rows(7)
    cuts = [ORIGIN + 5, ORIGIN + 17, ORIGIN + 26, END]
    run = Driven(engine_of(make_flow(), spark, tmp_path / "work"))
    with closing(run.engine):
        run.engine.start()
        advance(run, rows, cuts[:2])
        run.engine.snapshot(tmp_path / "snapshot")

    request = {
        "snapshot": str(tmp_path / "snapshot"),
        "seed": 7,
        "cuts": cuts[2:],
        "out": str(tmp_path / "out"),
    }
    subprocess.run(
        [sys.executable, str(Path(__file__).parent / "continue_elsewhere.py"), json.dumps(request)],
        check=True,
        timeout=180,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
    )
    got = {name: run.rows_of(name) for name in SINKS}
    for path in (tmp_path / "out").iterdir():
        name, number = path.stem.rsplit("-", 1)
        with pa.OSFile(str(path), "rb") as file:
            got[name][int(number)] = pa.ipc.open_file(file).read_all()
    compared["restores"] += 1
    require_truth(got, spark, rows, compared, "continued elsewhere")


def test_a_damaged_snapshot_is_refused_by_the_name_of_its_file(spark: SparkSession, tmp_path: Path) -> None:
    run = Driven(engine_of(make_flow(), spark, tmp_path / "work"))
    with closing(run.engine):
        run.engine.start()
        run.advance({"events": cut(random_rows(3), 0, ORIGIN + 20)}, ORIGIN + 20)
        snapshot = run.engine.snapshot(tmp_path / "snapshot")
        victim = next((tmp_path / "snapshot").rglob("*.delta"))
        # A new file in its place: the old one is shared with the running query.
        damaged = victim.read_bytes()[:-1] + b"x"
        victim.unlink()
        victim.write_bytes(damaged)
        with closing(engine_of(make_flow(), spark, tmp_path / "other")) as other:
            with pytest.raises(EnvironmentFailed, match=victim.name):
                other.start(snapshot)
            victim.unlink()
            with pytest.raises(EnvironmentFailed, match="missing"):
                other.start(open_snapshot(tmp_path / "snapshot"))


def test_a_snapshot_of_another_flow_or_segment_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with closing(engine_of(make_flow(), spark, tmp_path / "work")) as engine:
        engine.start()
        snapshot = engine.snapshot(tmp_path / "snapshot")
    other = us.Flow("other", bucket=f"{WIDTH_US // 1000} ms")
    events = other.source("events", EVENTS, time="ts")
    other.sink(other.fragment(events, time="window.end")(totals), us.Console())
    said = (
        r"is of segment 'totals\+per_second\+spikes' \(fragments totals, per_second, spikes\) of flow "
        r"'chain', not of segment 'totals' \(fragments totals\) of flow 'other'"
    )
    with (
        closing(engine_of(other, spark, tmp_path / "other")) as refusing,
        pytest.raises(EnvironmentFailed, match=said),
    ):
        refusing.start(snapshot)


def meeting(folder: Path, mine: str, others: str) -> Callable[[Iterator[pd.DataFrame]], Any]:
    """Passes rows on once the other branch is at its rows as well; fails if that never happens."""

    def meet(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            (folder / mine).touch()
            deadline = time.monotonic() + 60
            while not (folder / others).exists():
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{mine} ran without {others}")
                time.sleep(0.01)
            yield frame

    return meet


def test_branches_run_side_by_side_and_what_is_complete_leaves_before_they_have_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = "k string, v bigint, id bigint, ts timestamp"
    flow = us.Flow("branches", bucket=f"{WIDTH_US // 1000} ms")
    source = flow.source("events", EVENTS, time="ts")

    @flow.fragment(source, time="ts")
    def below(events: DataFrame) -> DataFrame:
        return events.filter("v >= 0")

    @flow.fragment(below, time="ts")
    def left(below: DataFrame) -> DataFrame:
        return below.mapInPandas(meeting(tmp_path, "left", "right"), columns)

    @flow.fragment(below, time="ts")
    def right(below: DataFrame) -> DataFrame:
        return below.mapInPandas(meeting(tmp_path, "right", "output"), columns)

    for fragment in (below, left, right):
        flow.sink(fragment, us.Console())
    caller = threading.get_ident()
    seen: list[tuple[str, ...]] = []

    def emit(output: Output) -> None:
        # The right branch waits for the first output, and the left one for the right.
        assert threading.get_ident() == caller
        seen.append(tuple(consumer.name for consumer in output.consumers))
        (tmp_path / "output").touch()

    with closing(engine_of(flow, spark, tmp_path / "work")) as engine:
        engine.start()
        engine.advance({"events": cut(random_rows(3), 0, ORIGIN + 2)}, ORIGIN + 2, emit)
    assert seen[0] == ("sink:below",)
    assert sorted(seen[1:]) == [("sink:left",), ("sink:right",)]
