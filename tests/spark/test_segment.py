"""A whole flow in one process: chained fragments, held-back sinks, snapshots taken up by another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from spark_cases import END, ORIGIN, cut, random_cuts, random_rows
from spark_flow import make_flow, per_second, spikes, totals
from test_against_batch import by_bucket, require_equal

from understudy.engine.segment import Segment
from understudy.engine.storing import open_snapshot
from understudy.flow.errors import EnvironmentFailed


def truth(spark: SparkSession, rows: pa.Table) -> dict[str, dict[int, pa.Table]]:
    batch = spark.createDataFrame(rows)
    small = totals(batch)
    return {
        "per_second": by_bucket(per_second(small).toArrow(), "window.end"),
        "spikes": by_bucket(spikes(small, batch).toArrow(), "at"),
    }


def run(segment: Segment, rows: pa.Table, cuts: list[int], got: dict[str, dict[int, pa.Table]]) -> None:
    for through in cuts:
        before = segment.through
        advanced = segment.advance({"events": cut(rows, segment.source_through, through)}, through)
        assert all(before < number <= advanced.through for number in advanced.buckets)
        for number, parts in advanced.buckets.items():
            for name, table in parts.items():
                got[name][number] = table


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
    got: dict[str, dict[int, pa.Table]] = {"per_second": {}, "spikes": {}}
    with Segment(make_flow(), tmp_path / "work", spark=spark) as segment:
        segment.start()
        middle = len(cuts) // 2
        run(segment, rows, cuts[:middle], got)
        snapshot = segment.snapshot(tmp_path / "snapshot")
        run(segment, rows, cuts[middle:], {"per_second": {}, "spikes": {}})
        segment.restore(snapshot)
        run(segment, rows, cuts[middle:], got)
        assert segment.source_through == END
        assert END - 60 < segment.horizon() <= END
    compared["restores"] += 1
    compared["batches"] += 2 * len(cuts)
    require_truth(got, spark, rows, compared, f"seed {seed}, cuts {cuts}")


def test_another_process_goes_on_from_a_snapshot(
    spark: SparkSession, tmp_path: Path, compared: Counter[str]
) -> None:
    rows = random_rows(7)
    cuts = [ORIGIN + 5, ORIGIN + 17, ORIGIN + 26, END]
    got: dict[str, dict[int, pa.Table]] = {"per_second": {}, "spikes": {}}
    with Segment(make_flow(), tmp_path / "work", spark=spark) as segment:
        segment.start()
        run(segment, rows, cuts[:2], got)
        segment.snapshot(tmp_path / "snapshot")

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
    for path in (tmp_path / "out").iterdir():
        name, number = path.stem.rsplit("-", 1)
        with pa.OSFile(str(path), "rb") as file:
            got[name][int(number)] = pa.ipc.open_file(file).read_all()
    compared["restores"] += 1
    require_truth(got, spark, rows, compared, "continued elsewhere")


def test_a_damaged_snapshot_is_refused_by_the_name_of_its_file(spark: SparkSession, tmp_path: Path) -> None:
    with Segment(make_flow(), tmp_path / "work", spark=spark) as segment:
        segment.start()
        segment.advance({"events": cut(random_rows(3), 0, ORIGIN + 20)}, ORIGIN + 20)
        snapshot = segment.snapshot(tmp_path / "snapshot")
        victim = next((tmp_path / "snapshot").rglob("*.delta"))
        # A new file in its place: the old one is shared with the running query.
        damaged = victim.read_bytes()[:-1] + b"x"
        victim.unlink()
        victim.write_bytes(damaged)
        with pytest.raises(EnvironmentFailed, match=victim.name):
            segment.restore(snapshot)
        victim.unlink()
        with pytest.raises(EnvironmentFailed, match="missing"):
            segment.restore(open_snapshot(tmp_path / "snapshot"))
        # The refusal left the segment as it was.
        segment.advance({}, ORIGIN + 21)
