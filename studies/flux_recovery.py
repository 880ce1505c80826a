"""A machine of a partitioned flow is killed: output, latency and input meanwhile (Flux paper, figure 8).

    python studies/flux_recovery.py [--rate 42000] [--nodes 2] [--partitions 2] [--seconds 200]
    python studies/flux_recovery.py --find-ceiling [--rate 42000]

The firewall flow (`firewall.py`) with the paper's state and rate. The paper has four machines with one
partition of each fragment on each, one machine for ingress and egress, and a standby. With few cores, two
nodes with two partitions are the default. When the state is full and the run has been steady for `--before`
seconds, one node is killed; the standby takes its places, level by level, and the run goes on to its end.
Then its history is judged, and all of its output is compared with the same results worked out by numpy.
A run that is not steady within 30 s after its state is full is measured and harmed all the same.

* *silence*: the time between two outputs of one partition reaching the gateway. After the kill the longest
  one that touches the time until ten seconds after every partition had all its copies again; before it, the
  usual ones.
* *pause*: how long the copy that lived on stood still for the snapshot of its state. In the paper it stands
  still while its state moves.
* *moved*: from that snapshot until the state is installed in an engine that has started.

`--find-ceiling` looks for the highest rate that holds: input not held back, latency not growing. Each attempt
that fails says how much was done, and the next one is somewhat below that. It only goes down: if the first
rate holds, the ceiling is somewhere above it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl

from harness import (
    FIREWALL,
    FIREWALL_VALUES,
    RESULTS,
    check_history,
    compare_with_truth,
    cpu_seconds,
    firewall_run,
    remove,
    save,
    say,
    spent_between,
)
from recovery_facts import input_facts, moves, output_facts, silences
from understudy.demo.verdict import deliveries
from understudy.runtime.local import LocalRun
from understudy.runtime.status import started_as
from understudy.runtime.trial import Finished, Trial, all_active
from watching import Sample, Watch, buckets_done_per_s, full, input_rates, rows_in_per_s

mpl.use("Agg")
import matplotlib.pyplot as plt

BUCKET_MS = 100
#: How long a recovery may still show in the output.
AFTER_US = 10_000_000
STEPS_MIN = 8
#: A rate holds if this share of it is taken in and done.
HELD = 0.97
CEILING_RUNS_MAX = 5


class Steady:
    """What a run does while nothing is wrong with it."""

    def __init__(self, samples: list[Sample], spent: dict[str, float], rate: float) -> None:
        seconds = (samples[-1].at_us - samples[0].at_us) / 1e6
        third = len(samples) // 3
        latency_ms = [sample.latency_ms for sample in samples]
        self.begin_us, self.end_us = samples[0].at_us, samples[-1].at_us
        self.facts: dict[str, Any] = {
            "rate": rate,
            "rows_in_per_s": round(rows_in_per_s(samples)),
            "rows_done_per_s": round(buckets_done_per_s(samples) * BUCKET_MS / 1_000 * rate),
            "latency_ms": round(median(latency_ms), 1),
            "latency_growth_ms": round(median(latency_ms[-third:]) - median(latency_ms[:third]), 1),
            "cores": {kind: round(used / seconds, 2) for kind, used in spent.items()},
        }
        facts = self.facts
        # One that was late at first and catches up holds, too.
        facts["held"] = (
            min(facts["rows_in_per_s"], facts["rows_done_per_s"]) >= HELD * rate
            and facts["latency_growth_ms"] < (1 - HELD) * seconds * 1_000
        )

    def bound(self) -> str:
        """What holds it back, as far as processor time tells."""
        cores = self.facts["cores"]
        most = sorted(cores.items(), key=lambda each: -each[1])
        parts = ", ".join(f"{kind} {used:.2f}" for kind, used in most if used >= 0.01)
        return f"{sum(cores.values()):.2f} of {os.cpu_count()} cores busy: {parts}"


def started(arguments: argparse.Namespace, rate: float, rows: int | None) -> tuple[LocalRun, Path]:
    return firewall_run(
        rate=rate,
        rows=rows,
        bucket_ms=BUCKET_MS,
        nodes=arguments.nodes,
        standby=arguments.standby,
        policy="flux",
        partitions=arguments.partitions,
        heap_mb=arguments.heap,
    )


def steady(watch: Watch, seconds: float, rate: float) -> Steady:
    """Wait until the state is full and the replicas keep up, if they can; then look for so long."""
    trial = watch.trial
    trial.wait("a full state", full, timeout_s=300 + 1e6 / rate)
    say("the state is full")
    trial.wait_running(held_s=3, patience_s=30)
    before = cpu_seconds(trial.run)
    samples = watch.look_for(seconds, steps_min=STEPS_MIN)
    return Steady(samples, spent_between(before, cpu_seconds(trial.run)), rate)


# --- one kill ---------------------------------------------------------------------------------------------


def recovery(arguments: argparse.Namespace, rate: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """The measures of one run with a kill, and what to draw."""
    rows = int(rate * arguments.seconds)
    run, folder = started(arguments, rate, rows)
    watch = Watch(run, tell=say)
    trial = watch.trial
    try:
        calm = steady(watch, arguments.before, rate)
        say(f"steady: {calm.facts}")
        trial.kill(arguments.victim or _first_seated(trial))
        killed_us = trial.harms[-1].at_us
        trial.wait_decided()
        whole_us = trial.wait("all copies of every partition", all_active, timeout_s=300)["at_us"]
        say(f"every partition has all its copies again after {(whole_us - killed_us) / 1e6:.1f} s")
        trial.wait_finished(timeout_s=300 + 10 * arguments.seconds)
    finally:
        run.stop()
    check_history(folder)
    verdict = compare_with_truth(folder, FIREWALL, FIREWALL_VALUES, finished=True)
    history = folder / "run" / "history"
    # Past the end of the input all windows close at once, which says nothing about the pace of a partition.
    rows_in_max = max(sample.rows_in for sample in watch.samples)
    ended_us = next(sample.at_us for sample in watch.samples if sample.rows_in == rows_in_max)
    delivered = [d for d in deliveries(history / "gateway.jsonl") if d.at_us <= ended_us]
    until_us = min(whole_us + AFTER_US, ended_us)
    running = [sample for sample in watch.samples if calm.begin_us <= sample.at_us < ended_us]
    inputs = input_rates(running)
    result = {
        "settings": {**vars(arguments), "rate": rate},
        "steady": calm.facts,
        "whole_again_s": round((whole_us - killed_us) / 1e6, 2),
        "input": input_facts(inputs, running, rate, killed_us, whole_us),
        "buffered_mb_max": round(max(s.buffered_bytes for s in watch.samples) / 2**20, 1),
        "output": output_facts(delivered, BUCKET_MS * 1_000, calm.begin_us, killed_us, until_us),
        "moves": moves(history, killed_us),
        "partitions": silences(history, calm.begin_us, killed_us, until_us),
        "verdict": {**verdict, "history": "clean"},
        "bound": calm.bound(),
    }
    if not arguments.keep:
        remove(folder)
    drawn = {"delivered": delivered, "inputs": inputs, "killed_us": killed_us, "whole_us": whole_us}
    return result, {**drawn, "begin_us": calm.begin_us, "rate": rate}


def _first_seated(trial: Trial) -> str:
    """The node that has the first seat. Which nodes get seats depends on which were up first."""
    status = trial.wait("seats", lambda status: bool(status["seats"]))
    return started_as(next(iter(status["seats"].values()))["node"])


# --- telling ----------------------------------------------------------------------------------------------


def print_table(result: dict[str, Any]) -> None:
    arguments, calm, taken = result["settings"], result["steady"], result["input"]
    before, during = result["output"]["before"], result["output"]["during"]
    moved_states = result["moves"]
    megabytes = sum(move["bytes"] for move in moved_states) / 2**20
    pauses = [move["pause_ms"] for move in moved_states] or [0.0]
    moved = [move["moved_s"] for move in moved_states] or [0.0]
    verdict = result["verdict"]
    lines = [
        ("machines", f"{arguments['nodes']} + {arguments['standby']} standby", "4 + 1 standby"),
        ("partitions of each fragment", arguments["partitions"], "4"),
        ("input target, rows/s", f"{taken['target']:,.0f}", "42,000"),
        ("input before the kill, median (least second)", _two(taken, "usual"), "42,000"),
        ("input during recovery, median (least second)", _two(taken, "recovery"), "42,000, constant"),
        (
            "seconds below 95 % of the target",
            f"{taken['seconds_below_95_percent']} of {taken['seconds']}",
            "0",
        ),
        ("input behind its schedule at most, s", taken["behind_max_s"], "0"),
        ("output, rows/s, before and during", f"{before['rows_per_s']:,} / {during['rows_per_s']:,}", ""),
        (
            "latency, ms, before: median (most)",
            f"{before['latency_ms']:,} ({before['latency_max_ms']:,})",
            "",
        ),
        (
            "latency, ms, during: median (most)",
            f"{during['latency_ms']:,} ({during['latency_max_ms']:,})",
            "",
        ),
        ("state moved", f"{megabytes:.1f} MB, {len(moved_states)} copies", "8.5 MB"),
        ("pause of the copy that lives on, most, ms", f"{max(pauses):.0f}", "941"),
        ("moved and installed, s for a copy, most", f"{max(moved):.2f}", "0.941"),
        ("all copies of every partition again, s", f"{result['whole_again_s']:.1f}", "about 1"),
        ("kept at the gateway at most, MB", result["buffered_mb_max"], "400K"),
        (
            "lost / duplicated / wrong / out of order",
            f"{verdict['lost']} / {verdict['duplicated']} / {verdict['wrong'] + verdict['strange']} / "
            f"{verdict['out_of_order']}",
            "0 / 0 / 0 / 0",
        ),
    ]
    print(f"\n{'':46} {'here':>20} {'the paper':>18}")
    for name, here, paper in lines:
        print(f"{name:46} {here!s:>20} {paper:>18}")
    if not calm["held"]:
        print(f"The rate did not hold: {calm['rows_done_per_s']:,} rows/s were done. {result['bound']}")
    else:
        print(result["bound"])
    print("\nsilence of a partition's output, s      usual: median    p95    max   after the kill: longest")
    for name, each in result["partitions"].items():
        usual = f"{each['usual_median_s']:>21.2f} {each['usual_p95_s']:>6.2f} {each['usual_max_s']:>6.2f}"
        print(f"{name:32} {usual} {each['after_kill_max_s']:>25.2f}")
    print("\nstate of a partition      s after the kill       MB   pause, ms   moved, s")
    for move in moved_states:
        print(
            f"{move['partition']:25} {move['after_kill_s']:>16.2f} {move['bytes'] / 2**20:>8.2f} "
            f"{move['pause_ms']:>11.1f} {move['moved_s']:>10.2f}"
        )


def _two(facts: dict[str, Any], which: str) -> str:
    return f"{facts[f'{which}_median']:,} ({facts[f'{which}_least']:,})"


def draw(drawn: dict[str, Any], file: Path) -> None:
    """Two panels as in the paper: output rate and latency over time."""
    begin_us = drawn["begin_us"]
    seen = [d for d in drawn["delivered"] if d.at_us >= begin_us]
    at_s = [(d.at_us - begin_us) / 1e6 for d in seen]
    figure, (rate, latency) = plt.subplots(2, 1, sharex=True, figsize=(9, 5.5), layout="constrained")
    seconds = int(max(at_s, default=0.0)) + 1
    rows = [0] * seconds
    for at, delivery in zip(at_s, seen, strict=True):
        rows[int(at)] += delivery.rows
    rate.step(range(seconds), rows, where="post", linewidth=1, label="output")
    taken = drawn["inputs"]
    rate.plot(
        [(at - begin_us) / 1e6 for at, _ in taken],
        [r for _, r in taken],
        color="tab:grey",
        linewidth=0.9,
        label=f"input (target {drawn['rate']:,.0f})",
    )
    rate.set_ylabel("rows/s")
    latency.plot(at_s, [d.latency_ms(BUCKET_MS * 1_000) for d in seen], ".-", linewidth=0.8)
    latency.set_ylabel("latency, ms")
    latency.set_xlabel("time, s")
    for axis in (rate, latency):
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.axvline(
            (drawn["killed_us"] - begin_us) / 1e6, color="red", linewidth=1, label="a node is killed"
        )
        axis.axvline(
            (drawn["whole_us"] - begin_us) / 1e6,
            color="green",
            linestyle="--",
            linewidth=1,
            label="every partition has all its copies again",
        )
    rate.legend(loc="lower right", fontsize=8)
    figure.savefig(file, dpi=130)


# --- the ceiling ------------------------------------------------------------------------------------------


def ceiling(arguments: argparse.Namespace) -> dict[str, Any]:
    """Short runs without a kill, each at what the last one could do, until a rate holds."""
    tried: list[dict[str, Any]] = []
    rate = arguments.rate
    while len(tried) < CEILING_RUNS_MAX:
        run, folder = started(arguments, rate, None)
        try:
            calm = steady(Watch(run, tell=say), arguments.before, rate)
        finally:
            run.stop()
        remove(folder)
        tried.append({**calm.facts, "bound": calm.bound()})
        say(f"{rate:,.0f} rows/s: {tried[-1]}")
        if calm.facts["held"]:
            break
        done = min(calm.facts["rows_done_per_s"] or rate / 2, rate)
        rate = max(1_000.0, round(0.9 * done, -2))
    return {"settings": vars(arguments), "tried": tried}


def print_ceiling(result: dict[str, Any]) -> None:
    print(f"\n{'rows/s':>8} {'taken in':>9} {'done':>8} {'latency, ms':>12} {'growing by':>11}  holds")
    for each in result["tried"]:
        print(
            f"{each['rate']:>8,.0f} {each['rows_in_per_s']:>9,} {each['rows_done_per_s']:>8,} "
            f"{each['latency_ms']:>12,.0f} {each['latency_growth_ms']:>11,.0f}  "
            f"{'yes' if each['held'] else 'no'}: {each['bound']}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=42_000, help="rows a second")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--standby", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=2, help="of each fragment")
    parser.add_argument("--seconds", type=float, default=200, help="of input in all")
    parser.add_argument("--before", type=float, default=20, help="seconds of a steady run before the kill")
    parser.add_argument("--victim", help="the node to kill; the one with the first place if not given")
    parser.add_argument("--heap", type=int, default=640, help="of each Java, MB")
    parser.add_argument(
        "--find-ceiling", action="store_true", help="only look for the highest rate that holds"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder of the run")
    arguments = parser.parse_args()
    if arguments.find_ceiling:
        result = ceiling(arguments)
        save("flux_ceiling", result)
        print_ceiling(result)
        return
    try:
        result, drawn = recovery(arguments, arguments.rate)
    except Finished as waiting:
        parser.exit(1, f"The input ended while waiting for {waiting}. Give more --seconds or less --rate.\n")
    save("flux_recovery", result)
    draw(drawn, RESULTS / "flux_recovery.png")
    print_table(result)


if __name__ == "__main__":
    main()
