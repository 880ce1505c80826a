"""How long the output is silent when the process that makes it is killed.

    python studies/failover.py [--kills 10] [--restarts 3]

First `pair`: two replicas and a standby run the traffic flow; the sending replica's whole process tree is
killed, a standby catches up, and again. Then plain Structured Streaming, as shipped and with our way of
starting its JVM: the same query at the same rate; its process tree is killed and a supervisor starts it
again at once, from its checkpoint. Silence is the gap between the last result before the kill and the first
one after it. Beside it stands the normal interval between results, which no take-over can beat.
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import matplotlib as mpl

from harness import (
    RESULTS,
    compare_with_truth,
    deliveries,
    remove,
    save,
    say,
    silence_around,
    start_plain,
    steady,
    traffic_run,
)
from understudy.runtime.process_tree import signal_tree
from understudy.runtime.trial import Trial

mpl.use("Agg")
import matplotlib.pyplot as plt


def intervals(times_us: list[int], harms_us: list[int]) -> list[float]:
    """Seconds between results that follow each other, where nothing was harmed in between."""
    ordered = sorted(times_us)
    return [
        (b - a) / 1e6
        for a, b in pairwise(ordered)
        if not any(a <= harm <= b or 0 < a - harm < 5_000_000 for harm in harms_us)
    ]


def pair(kills: int) -> dict[str, object]:
    # Started again by hand: on two cores a JVM that starts in the moment of the kill would slow the survivor,
    # which on a cluster has a host of its own.
    run, folder = traffic_run(nodes=2, standby=1, respawn=False)
    trial = Trial(run, tell=say)
    try:
        for turn in range(1, kills + 1):
            steady(trial)
            say(f"pair: kill {turn} of {kills}")
            dead = trial.kill("sender")
            trial.wait_output(1_000)
            trial.wait_running()
            trial.restart(dead)
            trial.wait_member(dead)
        steady(trial)
    finally:
        run.stop()
    verdict = compare_with_truth(folder)
    times = [at for at, _, _ in deliveries(folder)]
    harms = [harm.at_us for harm in trial.harms if harm.what == "SIGKILL"]
    silences = [silence_around(times, at) for at in harms]
    normal = intervals(times, harms)
    remove(folder)
    return {"silences_s": silences, "normal_s": median(normal), "normal_max_s": max(normal), **verdict}


def plain(restarts: int, *options: str) -> dict[str, object]:
    folder = Path(tempfile.mkdtemp(prefix="understudy-plain-"))

    def outputs() -> list[int]:
        file = folder / "outputs.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line)["at_us"] for line in lines]

    def wait_for(count: int) -> None:
        deadline = time.monotonic() + 180
        while len(outputs()) < count:
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(f"the plain query gives no output; see {folder}/log")
            time.sleep(0.2)

    harms: list[int] = []
    process = start_plain(folder, *options)
    try:
        for turn in range(1, restarts + 1):
            wait_for(len(outputs()) + 30)
            time.sleep(5)
            say(f"plain: kill {turn} of {restarts}")
            harms.append(time.time_ns() // 1_000)
            signal_tree(process.pid, signal.SIGKILL)
            process.wait()
            process = start_plain(folder, *options)
            wait_for(len(outputs()) + 1)
        wait_for(len(outputs()) + 30)
    finally:
        signal_tree(process.pid, signal.SIGKILL)
        process.wait()
    times = outputs()
    silences = [silence_around(times, at) for at in harms]
    normal = intervals(times, harms)
    remove(folder)
    return {"silences_s": silences, "normal_s": median(normal), "normal_max_s": max(normal)}


def draw(result: dict[str, dict[str, list[float]]], file: Path) -> None:
    figure, axis = plt.subplots(figsize=(7, 3.2))
    rows = (("plain", "tab:grey"), ("plain, our start", "tab:olive"), ("pair", "tab:blue"))
    for row, (name, colour) in enumerate(rows):
        values = result[name]["silences_s"]
        axis.scatter(values, [row] * len(values), color=colour, s=36, label=f"{name}: after a kill")
        axis.scatter([result[name]["normal_s"]], [row], color=colour, marker="|", s=400)
    axis.set_yticks(
        [0, 1, 2], ["plain Spark,\nrestarted", "plain Spark,\nour JVM start", "understudy,\npair"]
    )
    axis.set_ylim(-0.6, 2.6)
    axis.set_xscale("log")
    axis.set_xlabel("silence after a kill, s (the bar is the normal interval between results)")
    axis.grid(axis="x", which="both", alpha=0.3)
    figure.tight_layout()
    figure.savefig(file, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--restarts", type=int, default=3)
    arguments = parser.parse_args()
    result = {
        "pair": pair(arguments.kills),
        "plain": plain(arguments.restarts, "--as-shipped"),
        "plain, our start": plain(arguments.restarts),
    }
    ours = median(result["pair"]["silences_s"])
    ratios = {name: median(result[name]["silences_s"]) / ours for name in result if name != "pair"}
    result["ratios_of_medians"] = ratios
    save("failover", result)
    draw(result, RESULTS / "failover.png")
    for name in ("pair", *ratios):
        silences = sorted(result[name]["silences_s"])
        print(
            f"{name:16} {len(silences)} kills: silence median {median(silences):.2f} s, "
            f"least {silences[0]:.2f}, most {silences[-1]:.2f}; normal interval "
            f"{result[name]['normal_s']:.2f} s (longest {result[name]['normal_max_s']:.2f})"
        )
    for name, ratio in ratios.items():
        print(f"ratio of the medians, {name} to pair: {ratio:.1f}")


if __name__ == "__main__":
    main()
