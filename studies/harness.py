"""What the studies share: a run of the traffic flow, its ground truth, and where results go."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import understudy as us
from understudy.flow.loading import load
from understudy.runtime.ingest.ingest import Ingest
from understudy.runtime.local import LocalRun
from understudy.runtime.settings import RunSettings
from understudy.runtime.trial import Trial

HERE = Path(__file__).parent
RESULTS = HERE / "results"
TRAFFIC = HERE / "traffic.py"


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def traffic_run(
    *, nodes: int = 2, standby: int = 1, policy: str = "pair", respawn: bool = True, **changes: Any
) -> tuple[LocalRun, Path]:
    """A run of the traffic flow in a folder of its own, started; and that folder."""
    folder = Path(tempfile.mkdtemp(prefix="understudy-study-"))
    os.environ["TRAFFIC_OUTPUT"] = str(folder / "out")
    settings = RunSettings(
        run=folder.name,
        flow_path=str(TRAFFIC),
        folder=str(folder / "run"),
        zookeeper="",
        policy=policy,
        **changes,
    )
    (folder / "run").mkdir()
    run = LocalRun.on_own_zookeeper(settings, nodes=nodes, standby=standby, respawn=respawn)
    try:
        run.start()
    except BaseException:
        run.stop()
        raise
    return run, folder


def steady(trial: Trial, output_rows: int = 2_000) -> None:
    """Wait until both replicas are active and keep up, and some output has come out since."""
    trial.wait_running()
    trial.wait_output(output_rows)
    trial.wait_running()


def compare_with_truth(folder: Path) -> dict[str, int]:
    """Delivered rows against the ground truth. Call it after the run has ended. Raises if they differ."""
    sys.path.insert(0, str(HERE))
    import traffic  # noqa: PLC0415 - reads its parameters from the environment

    ingest = Ingest(load(TRAFFIC), folder / "run" / "log")
    ingest.recover()
    note = ingest.last("packets", "reader").note  # type: ignore[union-attr]
    ingest.close()
    got = us.read_output(folder / "out").to_pandas()
    got["end_us"] = got["window"].map(lambda w: int(pd.Timestamp(w["end"]).value // 1_000))
    in_order = bool((np.diff(got["end_us"].to_numpy()) >= 0).all())
    last = int(got["end_us"].max())
    truth = traffic.expected(note["origin_us"], note["next"])
    truth = truth[truth["end_us"] <= last]
    keys = ["end_us", "app", "src"]
    duplicated = int(got.duplicated(subset=keys).sum())
    merged = truth.merge(got, on=keys, how="outer", suffixes=("", "_got"), indicator=True)
    lost = int((merged["_merge"] == "left_only").sum())
    strange = int((merged["_merge"] == "right_only").sum())
    both = merged[merged["_merge"] == "both"]
    wrong = int(
        sum(
            (both[c].to_numpy() != both[f"{c}_got"].to_numpy()).sum() for c in ("packets", "largest", "bytes")
        )
    )
    verdict = {
        "rows_in": int(truth["packets"].sum()),
        "results": len(got),
        "lost": lost,
        "duplicated": duplicated,
        "strange": strange,
        "wrong": wrong,
        "out_of_order": 0 if in_order else 1,
    }
    bad = {name: count for name, count in verdict.items() if name not in ("rows_in", "results") and count}
    if bad:
        raise AssertionError(f"the output in {folder} is not what it must be: {verdict}")
    return verdict


def deliveries(folder: Path) -> list[tuple[int, int, int]]:
    """Every delivery with rows: when (µs), rows, and the end of its newest bucket (µs)."""
    out: list[tuple[int, int, int]] = []
    for line in (folder / "run" / "history" / "gateway.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record.get("kind") == "delivered" and record["buckets"]:
            rows = sum(bucket[1] for bucket in record["buckets"])
            out.append((record["at_us"], rows, (record["buckets"][-1][0] + 1) * 100_000))
    return out


def silence_around(times_us: list[int], at_us: int) -> float:
    """The gap between the last output before a moment and the first one after it, in seconds."""
    before = max((t for t in times_us if t <= at_us), default=None)
    after = min((t for t in times_us if t > at_us), default=None)
    if before is None or after is None:
        raise ValueError("there is no output on both sides of that moment")
    return (after - before) / 1e6


def save(name: str, result: dict[str, Any]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.json"
    file.write_text(json.dumps(result, indent=2) + "\n")
    return file


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
