"""What the studies share: a run of a study's flow, its ground truth, what its processes use, and where
results go.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil

import understudy as us
from understudy.flow.loading import load
from understudy.flow.policy import policy_named
from understudy.history.judging import judge
from understudy.history.reading import records_of
from understudy.history.records import DeliveredRecord
from understudy.runtime.ingest.ingest import Ingest
from understudy.runtime.local import LocalRun
from understudy.runtime.settings import RunSettings
from understudy.runtime.trial import Trial

HERE = Path(__file__).parent
RESULTS = HERE / "results"
TRAFFIC = HERE / "traffic.py"
FIREWALL = HERE / "firewall.py"
KEYED = HERE / "keyed.py"
#: What the flows' results are compared by; the first counts.
TRAFFIC_VALUES = ("packets", "largest", "bytes")
FIREWALL_VALUES = ("sessions", "longest_us", "total_us", "average_us")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def traffic_run(
    *, nodes: int = 2, standby: int = 1, policy: str = "pair", respawn: bool = True, **changes: Any
) -> tuple[LocalRun, Path]:
    """A run of the traffic flow in a folder of its own, started; and that folder."""
    return _started(TRAFFIC, nodes=nodes, standby=standby, policy=policy, respawn=respawn, **changes)


def firewall_run(
    *,
    rate: float,
    rows: int | None = None,
    bucket_ms: int = 100,
    nodes: int,
    standby: int = 0,
    **changes: Any,
) -> tuple[LocalRun, Path]:
    """A run of the firewall flow at a rate, started; and its folder. Dead nodes stay dead."""
    os.environ["FIREWALL_ROWS_PER_S"] = str(rate)
    os.environ["FIREWALL_BUCKET_MS"] = str(bucket_ms)
    os.environ.pop("FIREWALL_ROWS", None)
    if rows is not None:
        os.environ["FIREWALL_ROWS"] = str(rows)
    return _started(FIREWALL, nodes=nodes, standby=standby, respawn=False, **changes)


def keyed_run(*, keys: int, rate: float, nodes: int, **changes: Any) -> tuple[LocalRun, Path]:
    """A run of the keyed flow with so many keys, started; and its folder. Dead nodes stay dead."""
    os.environ["KEYED_KEYS"] = str(keys)
    os.environ["KEYED_ROWS_PER_S"] = str(rate)
    return _started(KEYED, nodes=nodes, standby=0, respawn=False, **changes)


def _started(
    flow: Path,
    *,
    nodes: int,
    standby: int,
    respawn: bool,
    policy: str = "pair",
    replicas: int | None = None,
    ship_ms: int | None = None,
    light_compiler: bool | None = None,
    **changes: Any,
) -> tuple[LocalRun, Path]:
    """`replicas`, `ship_ms`: None: as the policy has them by itself. `light_compiler`: whether Java is to
    compile lightly; None: as suits the number of nodes.
    """
    chosen = {"replicas": replicas, "ship_ms": ship_ms}
    folder = Path(tempfile.mkdtemp(prefix="understudy-study-"))
    os.environ[f"{flow.stem.upper()}_OUTPUT"] = str(folder / "out")
    settings = RunSettings(
        run=folder.name,
        flow_path=str(flow),
        folder=str(folder / "run"),
        zookeeper="",
        policy=policy_named(policy, **{name: value for name, value in chosen.items() if value is not None}),
        nodes=nodes,
        **changes,
    )
    (folder / "run").mkdir()
    run = LocalRun.on_own_zookeeper(settings, nodes=nodes, standby=standby, respawn=respawn)
    if light_compiler is not None:
        run.settings = replace(run.settings, light_compiler=light_compiler)
    try:
        run.start()
    except BaseException:
        run.stop()
        raise
    return run, folder


def steady(trial: Trial, output_rows: int = 2_000) -> None:
    """Wait until all replicas are active and keep up, and some output has come out since."""
    trial.wait_running()
    trial.wait_output(output_rows)
    trial.wait_running()


def compare_with_truth(
    folder: Path,
    flow: Path = TRAFFIC,
    values: tuple[str, ...] = TRAFFIC_VALUES,
    *,
    finished: bool = False,
) -> dict[str, int]:
    """Delivered rows against the ground truth. Call it after the run has ended. Raises if they differ."""
    verdict = against_truth(folder, flow, values, finished=finished)
    if any(count for name, count in verdict.items() if name not in ("rows_in", "results")):
        raise AssertionError(f"the output in {folder} is not what it must be: {verdict}")
    return verdict


def against_truth(
    folder: Path,
    flow: Path = TRAFFIC,
    values: tuple[str, ...] = TRAFFIC_VALUES,
    *,
    finished: bool = False,
) -> dict[str, int]:
    """How many delivered rows differ from the ground truth, in which way. Call it after the run has ended.

    `values` are the results to compare; the first counts. A run that has `finished` must have delivered every
    result; of another one those count that are not newer than its newest.
    """
    source = next(iter(load(flow).sources))
    ingest = Ingest(load(flow), folder / "run" / "log")
    ingest.recover()
    note = ingest.last(source, "reader").note  # type: ignore[union-attr]
    ingest.close()
    got = us.read_output(folder / "out").to_pandas()
    got["end_us"] = got["window"].map(lambda w: int(pd.Timestamp(w["end"]).value // 1_000))
    in_order = bool((np.diff(got["end_us"].to_numpy()) >= 0).all())
    # Read afresh: its parameters come from the environment and may differ from the last run's.
    truth = runpy.run_path(str(flow))["expected"](note["origin_us"], note["next"])
    if not finished:
        truth = truth[truth["end_us"] <= int(got["end_us"].max())]
    keys = ["end_us", "app", "src"]
    duplicated = int(got.duplicated(subset=keys).sum())
    merged = truth.merge(got, on=keys, how="outer", suffixes=("", "_got"), indicator=True)
    lost = int((merged["_merge"] == "left_only").sum())
    strange = int((merged["_merge"] == "right_only").sum())
    both = merged[merged["_merge"] == "both"]
    wrong = int(sum((both[c].to_numpy() != both[f"{c}_got"].to_numpy()).sum() for c in values))
    return {
        "rows_in": int(note["next"]) if finished else int(truth[values[0]].sum()),
        "results": len(got),
        "lost": lost,
        "duplicated": duplicated,
        "strange": strange,
        "wrong": wrong,
        "out_of_order": 0 if in_order else 1,
    }


def check_history(folder: Path) -> None:
    """Raises if the history of the run in that folder breaks an invariant."""
    verdict = judge(sorted((folder / "run" / "history").glob("*.jsonl")))
    if not verdict.clean:
        raise AssertionError(f"the history in {folder} fails: {[*verdict.findings, *verdict.damages][:3]}")


def deliveries(folder: Path) -> list[tuple[int, int, int]]:
    """Every delivery with rows: when (µs), rows, and the end of its newest bucket (µs)."""
    out: list[tuple[int, int, int]] = []
    for record in records_of(folder / "run" / "history" / "gateway.jsonl"):
        if isinstance(record, DeliveredRecord) and record.buckets:
            rows = sum(bucket[1] for bucket in record.buckets)
            out.append((record.at_us, rows, (record.buckets[-1][0] + 1) * 100_000))
    return out


def silence_around(times_us: list[int], at_us: int) -> float:
    """The gap between the last output before a moment and the first one after it, in seconds."""
    before = max((t for t in times_us if t <= at_us), default=None)
    after = min((t for t in times_us if t > at_us), default=None)
    if before is None or after is None:
        raise ValueError("there is no output on both sides of that moment")
    return (after - before) / 1e6


def shared_mb(pid: int) -> dict[str, float]:
    """Proportional memory of a process and its descendants, by program, in MB."""
    out: dict[str, float] = {}
    process = psutil.Process(pid)
    for member in [process, *process.children(recursive=True)]:
        try:
            kind = "java" if "java" in member.name() else "python"
            out[kind] = round(out.get(kind, 0.0) + member.memory_full_info().pss / 2**20, 1)
        except psutil.NoSuchProcess:
            continue
    return out


def memory_of(run: LocalRun) -> dict[str, Any]:
    memory: dict[str, Any] = {
        name: shared_mb(child.process.pid) for name, child in run.children.items() if child.running
    }
    if run.zookeeper is not None and run.zookeeper.pid is not None:
        memory["zookeeper"] = shared_mb(run.zookeeper.pid)
    return memory


def total_mb(memory: dict[str, Any]) -> float:
    return round(sum(sum(parts.values()) for parts in memory.values()), 1)


def cpu_seconds(run: LocalRun) -> dict[tuple[str, int], float]:
    """CPU time so far by kind of process and process.

    The kinds of a node are its own Python, its Java, and the Python workers that Spark starts.
    """
    spent: dict[tuple[str, int], float] = {}

    def add(kind: str, process: psutil.Process) -> None:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            spent[kind, process.pid] = times.user + times.system

    for name, child in run.children.items():
        with suppress(psutil.NoSuchProcess):
            own = psutil.Process(child.process.pid)
            role = "gateway" if name == "gateway" else "nodes"
            add(f"{role}, python", own)
            for member in own.children(recursive=True):
                add(f"{role}, {'java' if 'java' in member.name() else 'spark python'}", member)
    if run.zookeeper is not None and run.zookeeper.pid is not None:
        add("zookeeper", psutil.Process(run.zookeeper.pid))
    return spent


def spent_between(
    before: dict[tuple[str, int], float], after: dict[tuple[str, int], float]
) -> dict[str, float]:
    """CPU time between two looks by kind of process; of those that ended in between, nothing."""
    spent: dict[str, float] = {}
    for (kind, pid), seconds in after.items():
        spent[kind] = round(spent.get(kind, 0.0) + seconds - before.get((kind, pid), 0.0), 2)
    return spent


def save(name: str, result: dict[str, Any]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.json"
    file.write_text(json.dumps(result, indent=2) + "\n")
    return file


def save_text(name: str, text: str) -> None:
    """A table for readers, beside the numbers of the same name."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.txt").write_text(text + "\n")


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
