"""Six fragments that have nothing to do with each other: what running them side by side does to latency.

The queries are in the manner of Nexmark, over one source of bids. The six engines of a flow live in one Spark
application and get the same sealed buckets as time passes. In turns, each engine is driven by a thread of its
own (as copies are on a node), or one thread drives all of them one after the other. Latency is from the end
of a bucket to the moment in which its output is emitted, for every bucket of every sink. What it would be if
all sinks waited for the slowest is worked out from the same steps.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program calls it

import understudy as us
from understudy.engine.flow_engines import FlowEngines
from understudy.engine.interface import CopyEngine, Output
from understudy.engine.session import stop_session

RESULTS = Path(__file__).parent / "results"
BUCKET_MS = 100
BUCKET_S = BUCKET_MS / 1000
#: What a turn begins with belongs to the turn before.
SETTLING_S = 3.0
SIDE_BY_SIDE, IN_TURN = "side by side", "one after the other"
HELD = f"{IN_TURN}, sinks held together"


def currency(bids: DataFrame) -> DataFrame:
    return bids.select("auction", "bidder", (F.col("price") * 908 / 1000).cast("bigint").alias("price"), "ts")


def selected(bids: DataFrame) -> DataFrame:
    return bids.filter("auction % 23 = 0").select("auction", "price", "ts")


def hot_auctions(bids: DataFrame) -> DataFrame:
    return bids.groupBy(F.window("ts", "2 seconds", "1 second"), "auction").agg(F.count("*").alias("bids"))


def highest(bids: DataFrame) -> DataFrame:
    return bids.groupBy(F.window("ts", "1 second")).agg(F.max("price").alias("price"))


def bidder_sessions(bids: DataFrame) -> DataFrame:
    return bids.groupBy(F.session_window("ts", "500 milliseconds"), "bidder").agg(F.count("*").alias("bids"))


def channels(bids: DataFrame) -> DataFrame:
    return bids.groupBy(F.window("ts", "1 second"), "channel").agg(
        F.count("*").alias("bids"), F.sum("price").alias("volume"), F.approx_count_distinct("bidder")
    )


QUERIES: dict[Callable[[DataFrame], DataFrame], str] = {
    currency: "ts",
    selected: "ts",
    hot_auctions: "window.end",
    highest: "window.end",
    bidder_sessions: "session_window.end",
    channels: "window.end",
}


def make_flow() -> us.Flow:
    flow = us.Flow("bids", bucket=f"{BUCKET_MS} ms")
    schema = "auction bigint, bidder bigint, price bigint, channel string, ts timestamp"
    bids = flow.source("bids", us.Push(schema), time="ts")
    for function, end in QUERIES.items():
        flow.sink(flow.fragment(bids, time=end)(function), us.Console())
    return flow


def bids_of(schema: pa.Schema, number: int, rows: int) -> pa.Table:
    """The rows of a bucket: the same whenever they are asked for."""
    chance = np.random.default_rng(number)
    offsets = np.sort(chance.integers(0, BUCKET_MS * 1000, rows))
    columns = [
        chance.integers(0, 500, rows),
        chance.integers(0, 300, rows),
        chance.integers(100, 100_000, rows),
        np.array(["web", "app", "partner", "desk"])[chance.integers(0, 4, rows)],
        pa.array(number * BUCKET_MS * 1000 + offsets).cast(pa.timestamp("us", tz="UTC")),
    ]
    return pa.Table.from_arrays([pa.array(column) for column in columns], schema=schema)


@dataclass
class Measured:
    """One engine, and how late each of its output buckets was, in seconds."""

    name: str
    engine: CopyEngine
    schema: pa.Schema
    rows: int
    complete: int = 0
    late_s: list[float] = field(default_factory=list)
    steps: int = 0

    def step(self) -> None:
        """Take all buckets that are over by now."""
        last = int(time.time() / BUCKET_S) - 1
        if last <= self.engine.through:
            return
        numbers = range(max(self.engine.through + 1, last - 50), last + 1)
        table = pa.concat_tables([bids_of(self.schema, number, self.rows) for number in numbers])
        self.engine.advance({"bids": table}, last, self.emitted)
        self.steps += 1

    def emitted(self, output: Output) -> None:
        if self.complete:
            self.late_s += lateness(self.complete, output.through)
        self.complete = output.through

    def behind(self) -> bool:
        return int(time.time() / BUCKET_S) - 1 > self.engine.through

    def forget(self) -> None:
        self.late_s, self.steps = [], 0


def lateness(before: int, through: int) -> list[float]:
    """How late the buckets after `before` are now."""
    now_s = time.time()
    return [now_s - (number + 1) * BUCKET_S for number in range(before + 1, through + 1)]


def until_next_bucket() -> None:
    time.sleep(BUCKET_S - time.time() % BUCKET_S + 0.001)


def drive(engines: Sequence[Measured], until_s: float, held_s: list[float]) -> None:
    """One thread: these engines one after the other, until the time is over."""
    complete = 0
    while time.monotonic() < until_s:
        if not engines[0].behind():
            until_next_bucket()
        for engine in engines:
            engine.step()
        slowest = min(engine.complete for engine in engines)
        if complete:
            held_s += lateness(complete, slowest)
        complete = slowest


def turn(engines: Sequence[Measured], seconds: float, *, together: bool) -> list[float]:
    """Drive the engines for a while. Returns how late buckets were if all sinks waited for the slowest."""
    until_s = time.monotonic() + seconds
    groups = [[engine] for engine in engines] if together else [list(engines)]
    held_s: list[list[float]] = [[] for _ in groups]
    threads = [
        threading.Thread(target=drive, args=(group, until_s, held), daemon=True)
        for group, held in zip(groups, held_s, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return held_s[0]


def summary(late_s: Sequence[float]) -> dict[str, float]:
    ordered = sorted(late_s)
    return {
        "p50_ms": round(1000 * statistics.median(ordered), 1),
        "p95_ms": round(1000 * ordered[int(len(ordered) * 0.95)], 1),
        "mean_ms": round(1000 * statistics.fmean(ordered), 1),
        "buckets": len(ordered),
    }


def measure(engines: Sequence[Measured], turns: int, seconds: float) -> dict[str, dict[str, object]]:
    late_s: dict[str, list[float]] = {SIDE_BY_SIDE: [], IN_TURN: [], HELD: []}
    by_name: dict[str, dict[str, list[float]]] = {mode: {} for mode in (SIDE_BY_SIDE, IN_TURN)}
    steps = dict.fromkeys(by_name, 0)
    for number in range(turns):
        # Neither is always the first.
        for mode in (SIDE_BY_SIDE, IN_TURN) if number % 2 == 0 else (IN_TURN, SIDE_BY_SIDE):
            turn(engines, SETTLING_S, together=mode == SIDE_BY_SIDE)
            for engine in engines:
                engine.forget()
            held_s = turn(engines, seconds, together=mode == SIDE_BY_SIDE)
            for engine in engines:
                late_s[mode] += engine.late_s
                by_name[mode].setdefault(engine.name, []).extend(engine.late_s)
                steps[mode] += engine.steps
            if mode == IN_TURN:
                late_s[HELD] += held_s
            everything = [late for engine in engines for late in engine.late_s]
            print(f"turn {number + 1}, {mode}: {summary(everything)}", flush=True)
    found: dict[str, dict[str, object]] = {mode: dict(summary(late)) for mode, late in late_s.items()}
    for mode, names in by_name.items():
        found[mode]["steps"] = steps[mode]
        found[mode]["by_fragment_p50_ms"] = {name: summary(late)["p50_ms"] for name, late in names.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=2_000, help="bids a second")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each turn")
    asked = parser.parse_args()
    flow = make_flow()
    made = FlowEngines(flow, "flow", 1)
    folder = Path(tempfile.mkdtemp(prefix="understudy-fragments-"))
    rows = round(asked.rate * BUCKET_S)
    schema = flow.sources["bids"].arrow_schema
    engines = [
        Measured(partition.name, made.engine(partition, folder), schema, rows)
        for partition in made.topology.partitions
    ]
    try:
        for engine in engines:
            engine.engine.start()
        # Until the compiler has seen every query often enough.
        for together in (False, True):
            turn(engines, asked.seconds, together=together)
        found = measure(engines, asked.turns, asked.seconds)
    finally:
        for engine in engines:
            engine.engine.close()
        stop_session()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{'':42} {'p50':>8} {'p95':>8} {'mean':>8}   ms from the end of a bucket to its output")
    for mode, facts in found.items():
        print(f"{mode:42} {facts['p50_ms']:>8} {facts['p95_ms']:>8} {facts['mean_ms']:>8}")
    result = {
        "cores": os.cpu_count(),
        # Above the number of cores: other work shared the machine.
        "load_average_1_5_15_min": [round(load, 1) for load in os.getloadavg()],
        "bucket_ms": BUCKET_MS,
        "rows_per_s": asked.rate,
        "fragments": len(engines),
        "turns": asked.turns,
        "turn_s": asked.seconds,
        "latency": found,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "fragments.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
