"""What replication costs: one query in plain Structured Streaming, in Understudy with `none`, and with
`pair`.

    python studies/overhead.py [--rounds 5] [--rows 60000000] [--offered 6000000] [--rate 10000]
        [--seconds 40]

Throughput: more rows are offered than any of the three can take (`--offered` a second), and the time from
the first result to the last is measured. All three run on the same cores of this machine, one after the
other, in several rounds, as a machine is faster at one time than at another; what counts is the ratio of the
medians. Latency: at a comfortable rate, the time from the end of a window to its result being
durable. Memory is the proportional share (PSS) of every process at the end of the latency run.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

from harness import (
    compare_with_truth,
    deliveries,
    memory_of,
    remove,
    save,
    say,
    shared_mb,
    steady,
    total_mb,
    traffic_run,
)
from plain_query import PlainQuery
from understudy.flow.policy import policy_named
from understudy.runtime.local import LocalRun
from understudy.runtime.trial import Trial

BUCKET_US = 100_000


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "p50": round(ordered[len(ordered) // 2], 1),
        "p99": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 1),
    }


# --- plain ---


def plain_throughput(rows: int) -> float:
    with PlainQuery("--rows", str(rows)) as plain:
        # The last windows close only with later rows, so wait until the count stands still.
        plain.wait("the end", lambda outs: sum(o["packets"] for o in outs) >= rows * 0.95)
        return _rate([(o["at_us"], o["packets"]) for o in plain.outputs()])


def plain_latency(seconds: float) -> tuple[dict[str, float], dict[str, Any]]:
    with PlainQuery() as plain:
        plain.wait_more(21)
        since = time.time_ns() // 1_000 + 5_000_000
        time.sleep(seconds + 5)
        outs = [o for o in plain.outputs() if o["at_us"] > since]
        memory = {"driver": shared_mb(plain.process.pid)}
        return percentiles([(o["at_us"] - o["newest_us"]) / 1e3 for o in outs]), memory


def _rate(results: list[tuple[int, int]]) -> float:
    """Rows a second between the first result and the last: what was counted after the first."""
    (first, _), (last, _) = results[0], results[-1]
    return sum(packets for _, packets in results[1:]) / ((last - first) / 1e6)


# --- ours ---


def _run_of(policy: str) -> tuple[LocalRun, Path]:
    nodes = policy_named(policy).nodes_usual
    return traffic_run(policy=policy, nodes=nodes, standby=0, respawn=False)


def our_throughput(policy: str, rows: int, offered: float) -> float:
    os.environ["TRAFFIC_ROWS"] = str(rows)
    try:
        run, folder = _run_of(policy)
    finally:
        del os.environ["TRAFFIC_ROWS"]
    try:
        Trial(run).wait_finished()
    finally:
        run.stop()
    rows_per_us = offered / 1e6
    outs = deliveries(folder)
    results: list[tuple[int, int]] = []
    before = None
    for at, _, newest in outs:
        # Windows are full but for the last, so what a result counts follows from the windows it covers.
        packets = 0 if before is None else int((min(newest, before + 10**9) - before) * rows_per_us)
        results.append((at, packets))
        before = newest
    remove(folder)
    (first, _), (last, _) = results[0], results[-2]
    return sum(packets for _, packets in results[1:-1]) / ((last - first) / 1e6)


def our_latency(policy: str, seconds: float) -> tuple[dict[str, float], dict[str, Any]]:
    run, folder = _run_of(policy)
    try:
        trial = Trial(run)
        steady(trial)
        since = time.time_ns() // 1_000 + 5_000_000
        time.sleep(seconds + 5)
        memory = memory_of(run)
    finally:
        run.stop()
    compare_with_truth(folder)
    # A window that ends with bucket k counts as late from the end of that bucket on.
    latencies = [(at - (newest - BUCKET_US)) / 1e3 for at, _, newest in deliveries(folder) if at > since]
    remove(folder)
    return percentiles(latencies), memory


def one_round(rows: int, offered: float) -> dict[str, int]:
    """Rows a second of each."""
    rates = {"plain": round(plain_throughput(rows))}
    rates |= {policy: round(our_throughput(policy, rows, offered)) for policy in ("none", "pair")}
    say(", ".join(f"{name} {rate:,}" for name, rate in rates.items()) + " rows/s")
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=60_000_000)
    parser.add_argument("--offered", type=float, default=6_000_000)
    parser.add_argument("--rate", type=float, default=10_000)
    parser.add_argument("--seconds", type=float, default=40)
    arguments = parser.parse_args()
    result: dict[str, Any] = {name: {} for name in ("plain", "none", "pair")}
    os.environ["TRAFFIC_ROWS_PER_S"] = str(arguments.offered)
    rounds = [one_round(arguments.rows, arguments.offered) for _ in range(arguments.rounds)]
    for name, row in result.items():
        row["rows_per_s"] = [one[name] for one in rounds]
        row["median_rows_per_s"] = round(median(one[name] for one in rounds))
        row["of_plain"] = [round(one[name] / one["plain"], 3) for one in rounds]
        row["median_of_plain"] = round(row["median_rows_per_s"] / result["plain"]["median_rows_per_s"], 3)
    os.environ["TRAFFIC_ROWS_PER_S"] = str(arguments.rate)
    for name, row in result.items():
        latency, memory = (
            plain_latency(arguments.seconds) if name == "plain" else our_latency(name, arguments.seconds)
        )
        row |= {"latency_ms": latency, "memory_mb": memory, "total_mb": total_mb(memory)}
        say(f"{name}: latency {latency} ms, memory {total_mb(memory)} MB")
    save("overhead", result)
    for name, row in result.items():
        print(
            f"{name:6} {row['median_rows_per_s']:>10,} rows/s  x{row['median_of_plain']:<5} "
            f"({min(row['of_plain'])}-{max(row['of_plain'])})  latency p50 {row['latency_ms']['p50']} "
            f"p99 {row['latency_ms']['p99']} ms  memory {row['total_mb']} MB"
        )


if __name__ == "__main__":
    main()
