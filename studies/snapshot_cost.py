"""What saving costs: rows a second with and without it, the pause for a snapshot, bytes written.

    python studies/snapshot_cost.py [--rounds 3] [--seconds 40] [--sizes small,medium] [--policy none]
        [--snapshot-every 10] [--offered 1000000] [--heap MB] [--large]

The keyed flow (`keyed.py`) is offered more rows than its engine can take and held back by the buffer of its
source. It runs with saving and without by turns, several rounds, since a machine is faster at one time than
at another; the ratio of the medians counts. Rows a second are those whose results are delivered: the slope
of the line that fits the progress best, since it comes in steps. The pause is that of an engine which stands
still for its snapshot. Bytes written are those that the store takes, without what it has already.

Sizes of state: small, about 1 MB; medium, about 100 MB; large, about 1 GB, with --large and a heap for it,
such as --heap 6000.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from harness import keyed_run, remove, save, save_text, say
from understudy.core.bucket import NOTHING
from understudy.flow.policy import policy_named
from understudy.history.reading import by_process, entries
from understudy.history.records import SnapshotRecord
from watching import Sample, Watch, buckets_done_per_s, steps

SIZES = {"small": 5_000, "medium": 460_000, "large": 4_600_000}
HEAP_MB = {"small": 640, "medium": 1_500, "large": 6_000}
#: After so many rows for each key the state is full and Java has compiled what it needs.
ROWS_BEFORE = 3_000_000
BUCKET_S = 0.1
#: A large state is saved by few snapshots; a round lasts until there were so many.
SAVES_MIN = 2
#: Output moves on in steps, and fewer than these say nothing about its pace.
STEPS_MIN = 8


@dataclass(frozen=True)
class Written:
    """What the store has taken so far, by the copies that save."""

    bytes: int
    size_bytes: int
    through: int


def written(status: dict[str, Any]) -> Written:
    facts = [
        copy
        for node in status["nodes"].values()
        for copy in node.get("copies", {}).values()
        if copy.get("saved_through") is not None
    ]
    return Written(
        sum(each["written_bytes"] for each in facts),
        sum(each["saved_bytes"] for each in facts),
        max((each["saved_through"] for each in facts), default=-1),
    )


def one_run(size: str, saves: bool, arguments: argparse.Namespace) -> dict[str, Any]:
    """One run between its warm-up and its end."""
    policy = policy_named(arguments.policy)
    run, folder = keyed_run(
        keys=SIZES[size],
        rate=arguments.offered,
        policy=arguments.policy,
        nodes=policy.nodes_usual,
        heap_mb=arguments.heap or HEAP_MB[size],
        snapshot_every_ms=round(arguments.snapshot_every * 1_000) if saves else 0,
    )
    try:
        watch = Watch(run, say)
        rows_before = ROWS_BEFORE + 2 * SIZES[size]
        watch.trial.wait(
            "a full state",
            lambda s: (
                done_rows(s, arguments.offered) >= rows_before and (not saves or written(s).through >= 0)
            ),
            timeout_s=900,
        )
        began = watch.trial.wait("a status", lambda _: True)
        saved = {written(began).through}

        def enough(status: dict[str, Any]) -> bool:
            saved.add(written(status).through)
            over = status["at_us"] - began["at_us"] >= arguments.seconds * 1e6
            moved = len(steps([each for each in watch.samples if each.at_us >= began["at_us"]])) >= STEPS_MIN
            return over and moved and (not saves or len(saved) > SAVES_MIN)

        ended = watch.trial.wait("the end of the round", enough, timeout_s=10 * arguments.seconds + 120)
    finally:
        run.stop()
    samples = [each for each in watch.samples if began["at_us"] <= each.at_us <= ended["at_us"]]
    result = facts_of(samples, began, ended, arguments.offered)
    if saves:
        result |= saving_facts(folder, began, ended)
    remove(folder)
    return result


def done_rows(status: dict[str, Any], offered: float) -> float:
    """How many rows were counted: all that the source has sealed, but for what is not delivered yet."""
    sealed, delivered = max(status["sealed_through"].values()), status["delivered_through"] or {}
    through = max(delivered.values(), default=NOTHING)
    return (
        0.0 if NOTHING in (sealed, through) else status["rows_in"] - (sealed - through) * offered * BUCKET_S
    )


def facts_of(
    samples: list[Sample], began: dict[str, Any], ended: dict[str, Any], offered: float
) -> dict[str, Any]:
    return {
        "rows_per_s": round(buckets_done_per_s(samples) * offered * BUCKET_S),
        "seconds": round((ended["at_us"] - began["at_us"]) / 1e6, 1),
        "log_mb": round(ended["log_bytes"] / 2**20, 1),
    }


def saving_facts(folder: Path, began: dict[str, Any], ended: dict[str, Any]) -> dict[str, Any]:
    before, after = written(began), written(ended)
    minutes = (ended["at_us"] - began["at_us"]) / 60e6
    pauses_us = [
        entry.pause_us
        for parts in by_process(sorted((folder / "run" / "history").glob("*.jsonl"))).values()
        for entry in entries(parts)
        if isinstance(entry, SnapshotRecord) and began["at_us"] <= entry.at_us <= ended["at_us"]
    ]
    return {
        "snapshots": len(pauses_us),
        "pause_ms": [round(each / 1e3, 1) for each in pauses_us],
        "state_mb": round(after.size_bytes / 2**20, 1),
        "written_mb_per_min": round((after.bytes - before.bytes) / 2**20 / minutes, 1),
    }


def summed_up(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """What all rounds of one size say."""
    with_it, without = ([one[kind] for one in rounds] for kind in ("saving", "not saving"))
    rates = {kind: median(one[kind]["rows_per_s"] for one in rounds) for kind in rounds[0]}
    pauses = [pause for one in with_it for pause in one["pause_ms"]]
    return {
        "rounds": rounds,
        "state_mb": median(one["state_mb"] for one in with_it),
        "rows_per_s": rates,
        "ratio": round(rates["saving"] / rates["not saving"], 3),
        "ratios": [
            round(a["rows_per_s"] / b["rows_per_s"], 3) for a, b in zip(with_it, without, strict=True)
        ],
        "snapshots": len(pauses),
        "pause_ms_median": median(pauses) if pauses else None,
        "pause_ms_max": max(pauses, default=None),
        "written_mb_per_min": median(one["written_mb_per_min"] for one in with_it),
        "log_mb": {kind: median(one[kind]["log_mb"] for one in rounds) for kind in rounds[0]},
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    lines = [
        f"{'state':>9} {'rows/s, saving':>15} {'not saving':>11} {'ratio':>6} {'of rounds':>13} "
        f"{'snapshots':>9} {'pause, median':>13} {'longest':>9} {'written':>11} {'log':>9} {'not saving':>10}"
    ]
    for result in results.values():
        rates, ratios, log = result["rows_per_s"], result["ratios"], result["log_mb"]
        lines.append(
            f"{result['state_mb']:>6.1f} MB {rates['saving']:>15,.0f} {rates['not saving']:>11,.0f} "
            f"{result['ratio']:>6.2f} {min(ratios):>6.2f}-{max(ratios):<6.2f} {result['snapshots']:>9} "
            f"{result['pause_ms_median'] or 0:>10.1f} ms {result['pause_ms_max'] or 0:>6.1f} ms "
            f"{result['written_mb_per_min']:>4.0f} MB/min {log['saving']:>6.0f} MB "
            f"{log['not saving']:>7.0f} MB"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40.0, help="of each run, after its warm-up")
    parser.add_argument("--sizes", default="small,medium", help="with commas")
    parser.add_argument("--policy", default="none", choices=("none", "pair"))
    parser.add_argument("--snapshot-every", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--offered", type=float, default=1_000_000.0, help="rows a second")
    parser.add_argument("--heap", type=int, help="of each node, in MB; as suits the size unless said")
    parser.add_argument("--large", action="store_true", help="also about 1 GB; give it --heap")
    arguments = parser.parse_args()
    sizes = [*arguments.sizes.split(","), *(["large"] if arguments.large else [])]
    results: dict[str, dict[str, Any]] = {}
    for size in sizes:
        rounds: list[dict[str, dict[str, Any]]] = []
        for turn in range(arguments.rounds):
            # By turns, also in which of the two comes first.
            kinds = ("saving", "not saving") if turn % 2 == 0 else ("not saving", "saving")
            one = {kind: one_run(size, kind == "saving", arguments) for kind in kinds}
            say(f"{size}, round {turn + 1} of {arguments.rounds}: {one}")
            rounds.append(one)
        results[size] = summed_up(rounds)
        save("snapshot_cost", {"policy": arguments.policy, "every_s": arguments.snapshot_every, **results})
        save_text("snapshot_cost", table(results))
    print(table(results))


if __name__ == "__main__":
    main()
