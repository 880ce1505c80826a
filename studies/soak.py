"""Half an hour at the highest rate that this machine holds, with a kill every few minutes: what grows?

    python studies/soak.py [--policy pair] [--minutes 30] [--rate 300000] [--kill-every 480]

Every few seconds the memory, threads and open files of every process are looked at, and the disk that the
run takes: its log, what is saved, and its histories. A process is a standby in one stretch of its life and
runs copies in the next, and a process that was killed and started again is another one of the same name:
each such stretch has a warm-up, in which Java fills its heap, and a level of its own. After warm-up
everything must be flat: one slope is given for each process over all its stretches, per hour. Memory is
what the process alone holds (USS), Python and Java apart.

The gateway is killed as well, near the beginning, in the middle, and near the end: the seconds until it works
again, and until results come again, must not depend on how old the run is. Output and history are checked at
the end.
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

from harness import (
    RESULTS,
    check_history,
    compare_with_truth,
    deliveries,
    remove,
    save,
    say,
    silence_around,
    steady,
    traffic_run,
)
from understudy.core.host.places import GATEWAY
from understudy.flow.policy import policy_named
from understudy.history.reading import by_process, entries
from understudy.history.records import BegunRecord
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
#: So long before the end the gateway is killed for the last time.
LAST_S = 150.0
#: What a run keeps on disk, by the folder below its own.
KEPT = ("log", "saved", "history")
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


@dataclass(frozen=True)
class Disk:
    """What the run keeps on disk, in MB by folder; `others` is all that has no line of its own."""

    at_s: float
    mb: dict[str, float]


def disk_now(folder: Path, at_s: float) -> Disk:
    """Without the run's output, which is meant to grow."""
    bytes_in = dict.fromkeys((*KEPT, "others"), 0)
    for base, _, names in os.walk(folder / "run"):
        parts = Path(base).relative_to(folder / "run").parts
        kind = parts[0] if parts and parts[0] in KEPT else "others"
        for name in names:
            with suppress(OSError):
                bytes_in[kind] += (Path(base) / name).stat().st_size
    return Disk(at_s, {kind: size / 2**20 for kind, size in bytes_in.items()})


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
    disk: list[Disk] = []
    behind: list[float] = []
    try:
        steady(trial)
        began = time.monotonic()
        next_kill, victims = kill_every_s, _victims(run)
        gateway_kills = [WARM_UP_S, minutes * 30 + kill_every_s / 2, minutes * 60 - LAST_S]
        log_mb: list[float] = []
        next_line = TELL_EVERY_S
        while (now_s := time.monotonic() - began) < minutes * 60:
            status = run.status()
            _sample(run, status, samples, now_s)
            disk.append(disk_now(folder, now_s))
            if status is not None and status["latency_ms"] is not None:
                behind.append(float(status["latency_ms"]))
                if now_s > next_line:
                    next_line += TELL_EVERY_S
                    used = ", ".join(f"{kind} {mb:.0f} MB" for kind, mb in disk[-1].mb.items())
                    say(f"{now_s / 60:.0f} of {minutes:g} min: latency {behind[-1]:.0f} ms, {used}")
            if gateway_kills and now_s > gateway_kills[0]:
                del gateway_kills[0]
                log_mb.append(disk[-1].mb["log"])
                trial.kill(GATEWAY)
            if now_s > next_kill and minutes * 60 - now_s > kill_every_s / 2:
                next_kill += kill_every_s
                trial.kill(next(victims))
            time.sleep(max(0.0, SAMPLE_S - (time.monotonic() - began - now_s)))
        steady(trial)
    finally:
        run.stop()
    # First what was measured: what is judged below may end this.
    table = _table(samples, disk)
    _draw(policy, samples, disk)
    restarts = _restarts(folder, trial, log_mb)
    for restart in restarts:
        say(f"gateway killed: {restart}")
    verdict = compare_with_truth(folder)
    say(f"{policy}: {verdict}")
    check_history(folder)
    remove(folder)
    return {
        "rate": rate,
        "minutes": minutes,
        "kills": len(trial.harms),
        "latency_ms_median": round(float(np.median(behind)), 1) if behind else None,
        "verdict": verdict,
        "gateway_restarts": restarts,
        "processes": table,
    }


def _restarts(folder: Path, trial: Trial, log_mb: list[float]) -> list[dict[str, float]]:
    """For each kill of the gateway: how old the run was, and how long until it worked, and results came."""
    began_us = sorted(
        entry.at_us
        for parts in by_process((folder / "run" / "history").glob("gateway*.jsonl")).values()
        for entry in entries(parts)
        if isinstance(entry, BegunRecord)
    )
    times_us = [at for at, _, _ in deliveries(folder)]
    kills_us = [harm.at_us for harm in trial.harms if harm.target == GATEWAY]
    return [
        {
            "minute": round((at_us - began_us[0]) / 60e6, 1),
            "log_mb": round(kept, 1),
            "up_s": round((next(each for each in began_us if each > at_us) - at_us) / 1e6, 2),
            "silence_s": round(silence_around(times_us, at_us), 2),
        }
        for at_us, kept in zip(kills_us, log_mb, strict=True)
    ]


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


def _table(samples: dict[str, list[Sample]], disk: list[Disk]) -> dict[str, Any]:
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
    warm_disk = [each for each in disk if each.at_s > WARM_UP_S]
    for kind in disk[0].mb if len(warm_disk) > 1 else ():
        mb = [each.mb[kind] for each in warm_disk]
        slope = float(np.polyfit([each.at_s / 3600 for each in warm_disk], mb, 1)[0])
        middle = float(np.median(mb))
        table.setdefault("disk", {})[kind] = {"median": round(middle, 1), "per_hour": round(slope, 2)}
        print(f"{'disk, MB':12} {kind:10} {middle:10.1f} {slope:+10.2f}")
    return table


def _draw(policy: str, samples: dict[str, list[Sample]], disk: list[Disk]) -> None:
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
    for kind in disk[0].mb:
        axes[-1].plot([d.at_s / 60 for d in disk], [d.mb[kind] for d in disk], label=kind, linewidth=0.8)
    axes[-1].legend(fontsize=7, ncols=4)
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
