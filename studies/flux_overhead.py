"""What partition pairs cost beside cluster pairs and beside no protection (Flux paper, end of section 5.4).

    python studies/flux_overhead.py [--nodes 2] [--repeat 3] [--seconds 40] [--only none,flux]

The firewall flow (`firewall.py`) is offered more rows than any policy can take and held back by the buffer of
its source; no history is kept and no engine rests. Three ways to run it on the same cores:

* *none*: the whole flow on one node. The paper's single dataflow is partitioned too; a partitioned flow with
  one copy of each partition is no policy here.
* *cluster*: half of the nodes run the partitioned flow, the other half run it again (section 4.2).
* *flux*: every partition twice, with as many partitions, so that both run the same number of engines.

Rows a second are those whose results are delivered: the slope of the line that fits the output's progress
best, since it comes in steps. Wait is the time from the sealing of a bucket at the gateway until the output
that it completes is durable; with a full buffer before it, that is mostly the buffer. The runs take turns, in
an order that rotates, and medians count.
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

import matplotlib as mpl

from harness import (
    RESULTS,
    cpu_seconds,
    firewall_run,
    memory_of,
    remove,
    save,
    say,
    spent_between,
    total_mb,
)
from understudy.core.host.limits import Limits
from understudy.flow.policy import policy_named
from watching import Watch, buckets_done_per_s, full, rows_in_per_s, waits_ms

mpl.use("Agg")
import matplotlib.pyplot as plt

POLICIES = ("none", "cluster", "flux")
#: The paper's, in thousands of rows a second.
PAPER = {"none": 82, "cluster": 40, "flux": 36}
STEPS_MIN = 8


def saturated(policy: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One run: what it did between its warm-up and its end."""
    chosen = policy_named(policy)
    # A bucket holds as many rows as at the paper's rate, however fast they are offered.
    bucket_ms = max(1, round(100 * 42_000 / arguments.offered))
    run, folder = firewall_run(
        rate=arguments.offered,
        bucket_ms=bucket_ms,
        nodes=arguments.nodes if chosen.partitioned else chosen.nodes_usual,
        policy=policy,
        partitions=arguments.partitions,
        history=False,
        crowd=0,
        light_compiler=arguments.light_compiler,
        heap_mb=arguments.heap,
        limits=Limits(
            input_bytes_max=arguments.buffer_mb * 2**20, group_bytes_max=arguments.group_mb * 2**20
        ),
    )
    try:
        watch = Watch(run, tell=say)
        watch.trial.wait("a full state", full, timeout_s=400)
        watch.look_for(arguments.warm_s)
        before = cpu_seconds(run)
        samples = watch.look_for(arguments.seconds, steps_min=STEPS_MIN)
        spent = spent_between(before, cpu_seconds(run))
        memory = memory_of(run)
    finally:
        run.stop()
    remove(folder)
    seconds = (samples[-1].at_us - samples[0].at_us) / 1e6
    rate = buckets_done_per_s(samples) * bucket_ms / 1_000 * arguments.offered
    # By the rate and not by what came out in this time: that would depend on steps at its edges.
    millions = rate * seconds / 1e6
    return {
        "rows_per_s": round(rate),
        "rows_in_per_s": round(rows_in_per_s(samples)),
        "wait_ms": round(median(waits_ms(samples, watch.samples) or [0.0]), 1),
        "cores": {kind: round(s / seconds, 2) for kind, s in spent.items()},
        "cpu_s_per_million": {kind: round(s / millions, 2) for kind, s in spent.items()},
        "memory_mb": total_mb(memory),
    }


def middle(runs: list[dict[str, Any]], name: str) -> float:
    return median(float(run[name]) for run in runs)


def summed(runs: list[dict[str, Any]]) -> dict[str, float]:
    """CPU seconds for a million rows by kind of process, medians."""
    kinds = sorted({kind for run in runs for kind in run["cpu_s_per_million"]})
    return {kind: median(run["cpu_s_per_million"].get(kind) or 0.0 for run in runs) for kind in kinds}


def print_table(result: dict[str, Any], policies: list[str]) -> None:
    rates = {policy: middle(result["runs"][policy], "rows_per_s") for policy in policies}
    print(f"\n{'':8} {'rows/s':>8} {'to none':>8} {'paper':>6} {'wait p50':>10} {'memory':>9}  each run")
    for policy in policies:
        runs = result["runs"][policy]
        each = " ".join(f"{run['rows_per_s']:,}" for run in runs)
        to_none = f"{rates[policy] / rates['none']:.2f}" if rates.get("none") else "-"
        paper = PAPER[policy] / PAPER["none"]
        print(
            f"{policy:8} {rates[policy]:>8,.0f} {to_none:>8} {paper:>6.2f} "
            f"{middle(runs, 'wait_ms'):>7,.0f} ms {middle(runs, 'memory_mb'):>6,.0f} MB  {each}"
        )
    if rates.get("cluster") and "flux" in rates:
        result["flux_to_cluster"] = round(rates["flux"] / rates["cluster"], 3)
        print(f"\nflux to cluster: {result['flux_to_cluster']:.2f} (aim 0.90; paper 36/40 = 0.90)")
    print("\nCPU seconds for a million rows, by kind of process")
    costs = {policy: summed(result["runs"][policy]) for policy in policies}
    for kind in sorted({kind for cost in costs.values() for kind in cost}):
        print(f"  {kind:20}" + "".join(f" {p} {costs[p].get(kind, 0.0):>7.2f}  " for p in policies))
    totals = {policy: sum(cost.values()) for policy, cost in costs.items()}
    print(f"  {'all':20}" + "".join(f" {p} {totals[p]:>7.2f}  " for p in policies))
    if "cluster" in totals and "flux" in totals:
        # Other load on the machine lowers rows a second, and hardly changes this.
        result["cpu_cluster_to_flux"] = round(totals["cluster"] / totals["flux"], 3)
        print(f"cluster to flux, by CPU time for a row: {result['cpu_cluster_to_flux']:.2f}")


def draw(result: dict[str, Any], policies: list[str]) -> None:
    figure, (rates, costs) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for at, policy in enumerate(policies):
        values = [run["rows_per_s"] for run in result["runs"][policy]]
        rates.bar(at, median(values), color=f"C{at}", alpha=0.6)
        rates.scatter([at] * len(values), values, color="black", s=14, zorder=3)
        bottom = 0.0
        for number, (kind, seconds) in enumerate(summed(result["runs"][policy]).items()):
            label = kind if at == 0 or policy == policies[-1] else None
            known = costs.get_legend_handles_labels()[1]
            costs.bar(at, seconds, bottom=bottom, color=f"C{number}", label=None if label in known else label)
            bottom += seconds
    rates.set_ylabel("rows/s, saturated")
    costs.set_ylabel("CPU s for a million rows")
    costs.legend(fontsize=7)
    for axis in (rates, costs):
        axis.set_xticks(range(len(policies)), policies)
        axis.grid(axis="y", alpha=0.3)
    figure.savefig(RESULTS / "flux_overhead.png", dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=2, help="nodes of cluster and flux, an even number")
    parser.add_argument("--partitions", type=int, help="of each fragment; half as many as nodes if not given")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40, help="measured in each run")
    parser.add_argument("--warm-s", type=float, default=30, help="before that, with a full state")
    parser.add_argument("--offered", type=float, default=420_000, help="rows a second")
    parser.add_argument("--buffer-mb", type=int, default=32, help="that a source keeps for one consumer")
    parser.add_argument("--group-mb", type=int, default=4, help="that an engine takes at a time")
    parser.add_argument("--heap", type=int, default=640, help="of each Java, MB")
    parser.add_argument("--light-compiler", action="store_true", help="for Java, in all runs")
    parser.add_argument("--only", help="policies, with commas")
    arguments = parser.parse_args()
    arguments.partitions = arguments.partitions or arguments.nodes // 2
    policies = arguments.only.split(",") if arguments.only else list(POLICIES)
    result: dict[str, Any] = {"settings": vars(arguments), "runs": {policy: [] for policy in policies}}
    for turn in range(arguments.repeat):
        shift = turn % len(policies)
        for policy in policies[shift:] + policies[:shift]:
            run = saturated(policy, arguments)
            result["runs"][policy].append(run)
            say(f"{policy}, {turn + 1} of {arguments.repeat}: {run}")
            save("flux_overhead", result)
    print_table(result, policies)
    save("flux_overhead", result)
    draw(result, policies)


if __name__ == "__main__":
    main()
