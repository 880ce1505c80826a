"""Half an hour at the highest rate that this machine holds, with a kill every few minutes: what grows?

    python studies/soak.py [--policy pair] [--minutes 30] [--rate 300000] [--kill-every 480]

Every few seconds the memory, threads and open files of every process are looked at, and the disk that the
run takes. A process is a standby in one stretch of its life and runs copies in the next, and a process that
was killed and started again is another one of the same name: each such stretch has a warm-up, in which Java
fills its heap, and a level of its own. After warm-up everything must be flat: one slope is given for each
process over all its stretches, per hour. Memory is what the process alone holds (USS), Python and
Java apart. Output and history are checked at the end.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import psutil

from harness import RESULTS, check_history, compare_with_truth, remove, save, say, steady, traffic_run
from understudy.flow.policy import policy_named
from understudy.runtime.local import LocalRun
from understudy.runtime.status import started_as
from understudy.runtime.trial import Trial

mpl.use("Agg")
import matplotlib.pyplot as plt

SAMPLE_S = 5.0
TELL_EVERY_S = 60.0
#: A stretch shorter than this, counted after its warm-up, says nothing about growth.
STRETCH_S_MIN = 60.0
#: In which Java fills its heap.
WARM_UP_S = 300.0
MEASURES = ("python_mb", "java_mb", "threads", "files")


@dataclass(frozen=True)
class Sample:
    at_s: float
    pid: int
    seats: frozenset[str]
    python_mb: float
    java_mb: float
    threads: int
    files: int


def look(pid: int, seats: frozenset[str], at_s: float) -> Sample | None:
    """What a process with these seats and everything that it started take now; None if it is gone."""
    python_mb = java_mb = 0.0
    threads = files = 0
    try:
        process = psutil.Process(pid)
        for member in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                mb = member.memory_full_info().uss / 2**20
                if "java" in member.name():
                    java_mb += mb
                else:
                    python_mb += mb
                threads += member.num_threads()
                files += member.num_fds()
    except psutil.NoSuchProcess:
        return None
    return Sample(at_s, pid, seats, python_mb, java_mb, threads, files)


def disk_mb(folder: Path) -> float:
    """What the run keeps on disk, without its output and its history, which are meant to grow."""
    total = 0
    for base, _, names in os.walk(folder / "run"):
        if "history" in Path(base).parts:
            continue
        for name in names:
            with suppress(OSError):
                total += (Path(base) / name).stat().st_size
    return total / 2**20


def slope_per_hour(samples: list[Sample], measure: str) -> tuple[float, float] | None:
    """How much a measure grows in an hour, and its median; every stretch has a level of its own.

    The slope is the median of those between any two moments of a stretch (Theil and Sen): a process that is
    seen while it forks, and counts twice, does not bend it.
    """
    stretches: dict[tuple[int, frozenset[str]], list[Sample]] = defaultdict(list)
    for sample in samples:
        stretches[sample.pid, sample.seats].append(sample)
    slopes: list[float] = []
    levels: list[float] = []
    for stretch in stretches.values():
        warm = [s for s in stretch if s.at_s - stretch[0].at_s > WARM_UP_S]
        if not warm or warm[-1].at_s - warm[0].at_s < STRETCH_S_MIN:
            continue
        at = np.array([s.at_s / 3600 for s in warm])
        value = np.array([float(getattr(s, measure)) for s in warm])
        earlier, later = np.triu_indices(len(warm), k=1)
        slopes += list((value[later] - value[earlier]) / (at[later] - at[earlier]))
        levels += list(value)
    return (float(np.median(slopes)), float(np.median(levels))) if slopes else None


def soak(policy: str, minutes: float, rate: float, kill_every_s: float) -> dict[str, Any]:
    chosen = policy_named(policy)
    os.environ["TRAFFIC_ROWS_PER_S"] = str(rate)
    run, folder = traffic_run(nodes=chosen.nodes_usual if policy != "flux" else 2, standby=1, policy=policy)
    trial = Trial(run, tell=say)
    samples: dict[str, list[Sample]] = defaultdict(list)
    disk: list[tuple[float, float]] = []
    behind: list[float] = []
    try:
        steady(trial)
        began = time.monotonic()
        next_kill, victims = kill_every_s, _victims(run)
        next_line = TELL_EVERY_S
        while (now_s := time.monotonic() - began) < minutes * 60:
            status = run.status()
            _sample(run, status, samples, now_s)
            disk.append((now_s, disk_mb(folder)))
            if status is not None and status["last_output_s"] is not None:
                behind.append(float(status["latency_ms"]))
                if now_s > next_line:
                    next_line += TELL_EVERY_S
                    at, latency_ms, used_mb = now_s / 60, behind[-1], disk[-1][1]
                    say(f"{at:.0f} of {minutes:g} min: latency {latency_ms:.0f} ms, disk {used_mb:.0f} MB")
            if now_s > next_kill and minutes * 60 - now_s > kill_every_s / 2:
                next_kill += kill_every_s
                trial.kill(next(victims))
            time.sleep(max(0.0, SAMPLE_S - (time.monotonic() - began - now_s)))
        steady(trial)
    finally:
        run.stop()
    check_history(folder)
    verdict = compare_with_truth(folder)
    say(f"{policy}: {verdict}")
    table = _table(samples, disk)
    _draw(policy, samples, disk)
    remove(folder)
    return {
        "rate": rate,
        "minutes": minutes,
        "kills": len(trial.harms),
        "latency_ms_median": round(float(np.median(behind)), 1) if behind else None,
        "verdict": verdict,
        "processes": table,
    }


def _victims(run: LocalRun) -> Any:
    while True:
        yield from run.node_names


def _sample(
    run: LocalRun, status: dict[str, Any] | None, samples: dict[str, list[Sample]], at_s: float
) -> None:
    seats: dict[str, set[str]] = defaultdict(set)
    for copy, seat in status["seats"].items() if status is not None else ():
        if seat["status"] != "DEAD":
            seats[started_as(seat["node"])].add(copy)
    pids = {name: child.process.pid for name, child in run.children.items() if child.running}
    if run.zookeeper is not None and run.zookeeper.pid is not None:
        pids["zookeeper"] = run.zookeeper.pid
    for name, pid in pids.items():
        sample = look(pid, frozenset(seats[name]), at_s)
        if sample is not None:
            samples[name].append(sample)


def _table(samples: dict[str, list[Sample]], disk: list[tuple[float, float]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    print(f"{'process':12} {'':10} {'median':>10} {'per hour':>10}")
    for name, found in sorted(samples.items()):
        table[name] = {}
        for measure in MEASURES:
            fitted = slope_per_hour(found, measure)
            if fitted is None or not fitted[1]:
                continue
            table[name][measure] = {"median": round(fitted[1], 1), "per_hour": round(fitted[0], 2)}
            print(f"{name:12} {measure:10} {fitted[1]:10.1f} {fitted[0]:+10.2f}")
    warm = [(at, mb) for at, mb in disk if at > WARM_UP_S]
    if len(warm) > 1:
        slope = float(np.polyfit([at / 3600 for at, _ in warm], [mb for _, mb in warm], 1)[0])
        middle = float(np.median([mb for _, mb in warm]))
        table["disk_mb"] = {"median": round(middle, 1), "per_hour": round(slope, 2)}
        print(f"{'disk':12} {'mb':10} {middle:10.1f} {slope:+10.2f}")
    return table


def _draw(policy: str, samples: dict[str, list[Sample]], disk: list[tuple[float, float]]) -> None:
    figure, axes = plt.subplots(len(MEASURES) + 1, 1, figsize=(9, 12), sharex=True)
    for axis, measure in zip(axes, MEASURES, strict=False):
        for number, (name, found) in enumerate(sorted(samples.items())):
            values = [getattr(s, measure) for s in found]
            if any(values):
                minutes = [s.at_s / 60 for s in found]
                axis.plot(minutes, values, label=name, linewidth=0.8, color=f"C{number}")
        axis.set_ylabel(measure)
        axis.set_ylim(bottom=0)
    axes[2].legend(fontsize=7, ncols=4)
    axes[-1].plot([at / 60 for at, _ in disk], [mb for _, mb in disk], linewidth=0.8)
    axes[-1].set_ylabel("disk_mb")
    axes[-1].set_xlabel("minutes")
    figure.suptitle(f"{policy} under load, with kills")
    figure.tight_layout()
    figure.savefig(RESULTS / f"soak_{policy}.png", dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", default="pair", choices=("pair", "flux"))
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=300_000.0, help="rows a second")
    parser.add_argument("--kill-every", type=float, default=480.0, metavar="SECONDS")
    arguments = parser.parse_args()
    result = soak(arguments.policy, arguments.minutes, arguments.rate, arguments.kill_every)
    save(f"soak_{arguments.policy}", result)


if __name__ == "__main__":
    main()
