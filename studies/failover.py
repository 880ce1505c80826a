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
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import matplotlib as mpl

from harmed import outcome_of, traffic_trial
from harness import RESULTS, remove, save, say, silence_around, steady
from plain_query import PlainQuery

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
    with traffic_trial(nodes=2, standby=1, respawn=False) as (trial, folder):
        for turn in range(1, kills + 1):
            steady(trial)
            say(f"pair: kill {turn} of {kills}")
            dead = trial.kill("sender")
            trial.wait_output(1_000)
            trial.wait_running()
            trial.restart(dead)
            trial.wait_member(dead)
        steady(trial)
    outcome = outcome_of(trial, folder)
    remove(folder)
    return {**silences(outcome.times_us, outcome.harms_us), **outcome.verdict}


def plain(restarts: int, *options: str) -> dict[str, object]:
    harms: list[int] = []
    with PlainQuery(*options) as query:
        for turn in range(1, restarts + 1):
            query.wait_more(30)
            time.sleep(5)
            say(f"plain: kill {turn} of {restarts}")
            harms.append(query.kill())
            query.wait_more(1)
        query.wait_more(30)
        return silences(query.times_us(), harms)


def silences(times_us: list[int], harms_us: list[int]) -> dict[str, object]:
    normal = intervals(times_us, harms_us)
    return {
        "silences_s": [silence_around(times_us, at) for at in harms_us],
        "normal_s": median(normal),
        "normal_max_s": max(normal),
    }


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
