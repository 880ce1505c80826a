"""How long a partitioned flow lives, by the number of its machines (Flux paper, section 4.2).

    python studies/mttf.py [--runs 200] [--ratio 40]

Machines fail at random, each on average once in MTTF. A replacement joins at once, and the state that
it needs has caught up after MTTR; `--ratio` is MTTF / MTTR. A run ends when some state has no copy left.
Three ways to place the copies on N machines:

* *cluster pairs*: N/2 machines run the flow, the other N/2 run it again. One lost machine makes its half
  useless until that has caught up, so any loss in the other half ends the flow. We assume the best case, that
  a half catches up as fast as one machine does.
* *partition pairs, mirrored*: each machine has one partner that holds the other copies of all it has.
* *partition pairs, chained*: the copies of a machine's partitions are spread over its two neighbours.

For partition pairs the real controller decides the seats and says when a flow is lost. The lines are the
paper's formulas. They count one failure of a pair where there are two machines that can fail first, so points
are expected at half of them; a chained layout has two neighbours that must not fail instead of one.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Callable, Mapping
from random import Random
from statistics import mean, stdev

import matplotlib as mpl

from harness import RESULTS, save, say
from understudy.core.shape.layout import chained
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import chain_of
from understudy.core.timers import SetTimer, TimerFired
from understudy.core.view.controller import Controller
from understudy.core.view.events import (
    ControllerEvent,
    CopyCaughtUp,
    CopyMoveFailed,
    Decision,
    MemberJoined,
    MembersLeft,
    Publish,
)
from understudy.core.view.view import Status

mpl.use("Agg")
import matplotlib.pyplot as plt

NODES = (2, 4, 8, 16, 32, 64)


def cluster_pairs(nodes: int, mttf: float, mttr: float, random: Random) -> float:
    """The time until both halves are down together."""
    rate = nodes / mttf
    down_until = [0.0, 0.0]
    now = 0.0
    while True:
        now += random.expovariate(rate)
        half = random.randrange(2)
        if down_until[1 - half] > now:
            return now
        down_until[half] = now + mttr


def partners(nodes: list[str]) -> dict[Copy, str]:
    """Partners two by two; the partition with a machine's index has its primary copy there."""
    return {
        Copy(Partition("f", at), replica): nodes[at ^ replica]
        for at in range(len(nodes))
        for replica in range(2)
    }


def partition_pairs(
    layout: Callable[[list[str]], Mapping[Copy, str]],
    nodes: int,
    mttf: float,
    mttr: float,
    random: Random,
) -> float:
    """The time until the controller says that a partition is lost."""
    names = [f"n{at}" for at in range(nodes)]
    controller = Controller(chain_of(f=nodes), 2, nodes, layout=layout(names))
    due: list[tuple[float, int, ControllerEvent]] = []
    posted = 0

    def post(at: float, event: ControllerEvent) -> None:
        nonlocal posted
        posted += 1
        heapq.heappush(due, (at, posted, event))

    for order, name in enumerate(names):
        controller.handle(MemberJoined(name, order))
        post(random.expovariate(1 / mttf), MembersLeft((name,)))
    joined = nodes
    while True:
        now, _, event = heapq.heappop(due)
        done: list[Decision] = []
        moving: list[Copy] = []
        assert controller.view is not None
        if isinstance(event, MembersLeft):
            # The replacement joins at once, and takes the seats of the machine that fails.
            joined += 1
            done += controller.handle(MemberJoined(f"n{joined}", joined))
            post(now + random.expovariate(1 / mttf), MembersLeft((f"n{joined}",)))
            moving = [copy for node in event.nodes for copy in controller.view.copies_on(node)]
        done += controller.handle(event)
        for timer in [each for each in done if isinstance(each, SetTimer)]:
            # The last holder of a state is really dead: it does not come back.
            done += controller.handle(TimerFired(timer.key))
        for copy in moving:
            # A standby that waits for this state will not get it.
            other = Copy(copy.partition, 1 - copy.replica)
            standby = controller.view.seat(other)
            if standby.status is Status.STDBY:
                done += controller.handle(CopyMoveFailed(other, standby.epoch))
        for each in done:
            if not isinstance(each, Publish):
                continue
            if each.view.lost is not None:
                return now
            for partition, view in each.view.partitions.items():
                for replica, seat in enumerate(view.seats):
                    if seat.status is Status.STDBY and seat.epoch == each.view.epoch:
                        post(now + mttr, CopyCaughtUp(Copy(partition, replica), seat.epoch))


WAYS: dict[str, tuple[Callable[[int, float, float, Random], float], Callable[[int, float], float]]] = {
    "cluster pairs": (cluster_pairs, lambda n, ratio: 4 * ratio / n**2),
    "partition pairs, mirrored": (
        lambda n, mttf, mttr, random: partition_pairs(partners, n, mttf, mttr, random),
        lambda n, ratio: 2 * ratio / n,
    ),
    "partition pairs, chained": (
        lambda n, mttf, mttr, random: partition_pairs(
            lambda names: chained(chain_of(f=len(names)), names, 2), n, mttf, mttr, random
        ),
        lambda n, ratio: 2 * ratio / n,
    ),
}


def measured(runs: int, ratio: float, seed: int) -> dict[str, list[dict[str, float]]]:
    """For each way and number of machines: the mean life in units of one machine's MTTF."""
    result: dict[str, list[dict[str, float]]] = {}
    for name, (live, formula) in WAYS.items():
        points = []
        for nodes in NODES:
            if nodes == 2 and "chained" in name:
                continue
            random = Random(f"{seed}/{name}/{nodes}")
            lives = [live(nodes, 1.0, 1 / ratio, random) for _ in range(runs)]
            point = {
                "nodes": nodes,
                "mttf": mean(lives),
                "error": stdev(lives) / runs**0.5,
                "formula": formula(nodes, ratio),
            }
            points.append(point)
            say(
                f"{name:<26} {nodes:>3} machines: {point['mttf']:8.3f} +- {point['error']:.3f} "
                f"(formula {point['formula']:8.3f}, ratio {point['mttf'] / point['formula']:.2f})"
            )
        result[name] = points
    return result


def draw(result: dict[str, list[dict[str, float]]], ratio: float) -> None:
    figure, axis = plt.subplots(figsize=(7, 4))
    for at, (name, points) in enumerate(result.items()):
        nodes = [point["nodes"] for point in points]
        axis.errorbar(
            nodes,
            [point["mttf"] for point in points],
            yerr=[2 * point["error"] for point in points],
            fmt="os^"[at],
            color=f"C{at}",
            label=name,
        )
        axis.plot(nodes, [point["formula"] for point in points], color=f"C{at}", linewidth=0.8, alpha=0.6)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel("machines")
    axis.set_ylabel("mean time to failure, in lives of one machine")
    axis.set_title(f"Points: simulated. Lines: the paper's formulas. MTTF / MTTR = {ratio:g}")
    axis.legend()
    figure.tight_layout()
    figure.savefig(RESULTS / "mttf.png", dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--ratio", type=float, default=40.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    result = measured(arguments.runs, arguments.ratio, arguments.seed)
    draw(result, arguments.ratio)
    save("mttf", {"ratio": arguments.ratio, "runs": arguments.runs, "seed": arguments.seed, "points": result})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
