"""The flow of the Flux paper's measurements (sections 2 and 5.4): how long network sessions last.

A row says that a session starts or ends. The first fragment, split by (src, dst), puts sessions together and
tells how long each lasted; the second, split by (app, src), gives the longest and the average. There are
100,000 pairs (src, dst) and 10,000 pairs (app, src), all equally often, and one result for every other update
of an (app, src). The rows are a pure function of their numbers.

Even rows start sessions, pair after pair; odd rows end them, three blocks of 10,000 later and shuffled within
their block, so a session lasts two to four blocks. A cycle over all pairs is ten blocks.

Two properties of the paper's flow cannot be had exactly in Spark's append mode:

* There a group stays in state for ever. Here a session is over when its pair was silent for five and a half
  blocks, so at any moment about 85,000 of the 100,000 pairs have a session in state.
* There a result follows every second update. Here it is the result of a window in which a group gets two
  updates on average. Each group's windows begin at a phase of their own, one of ten, so that results do not
  come all at once, and 10,000 windows are open at any moment.

Times are counted in rows, so that the shape is the same at any rate: at 42,000 rows a second a window is a
second and a bucket 100 ms.
"""

from __future__ import annotations

import os
import zlib
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program calls it

import understudy as us

ROWS_PER_S = float(os.environ.get("FIREWALL_ROWS_PER_S", "42000"))
ROWS = int(os.environ["FIREWALL_ROWS"]) if "FIREWALL_ROWS" in os.environ else None
OUTPUT = os.environ.get("FIREWALL_OUTPUT", "firewall-out")
#: Saturated runs have more rows a second than the clock has: their buckets hold as many rows as any other.
BUCKET_MS = int(os.environ.get("FIREWALL_BUCKET_MS", "100"))

PAIRS, GROUPS, BLOCK = 100_000, 10_000, 10_000
APPS = ("http", "ftp", "ssh", "gnutella")
BLOCKS_OPEN = 3
GAP_BLOCKS = 5.5
PHASES = 10
#: Spark counts watermarks in milliseconds, so every length is a whole number of them.
WINDOW_MS = PHASES * max(1, round(42_000 * 1_000 / ROWS_PER_S / PHASES))
GAP_MS = round(GAP_BLOCKS * BLOCK * 2 * 1_000 / ROWS_PER_S)
SCHEMA = "src string, dst string, app string, kind string, ts timestamp"
SOURCE = "packets"
SEED = 7

_KINDS = pa.array(["start", "end"])
_APPS = pa.array(APPS)
_SOURCES = pa.array([f"10.0.{n // 256}.{n % 256}" for n in range(GROUPS // len(APPS))])
_TARGETS = pa.array([f"172.16.0.{n}" for n in range(PAIRS // GROUPS * len(APPS))])


def _began(seed: int, slot: Any) -> Any:
    """The slot in which the session that ends in a slot began; below 0, before the first row."""
    block, at = slot // BLOCK, slot % BLOCK
    shift = ((block + seed) * 7_919) % BLOCK
    # The factor has no divisor in common with the block, so this is a permutation of it.
    return (block - BLOCKS_OPEN) * BLOCK + (at * 4_567 + shift) % BLOCK


def packets(seed: int, first: int, count: int) -> pa.Table:
    numbers = np.arange(first, first + count, dtype=np.int64)
    slot = numbers // 2
    pair = np.where(numbers % 2 == 0, slot, _began(seed, slot)) % PAIRS
    group = pair % GROUPS
    app = group % len(APPS)
    return pa.table(
        {
            "src": _named(_SOURCES, group // len(APPS)),
            # Every application has targets of its own, so that a source and a target are one session.
            "dst": _named(_TARGETS, pair // GROUPS * len(APPS) + app),
            "app": _named(_APPS, app),
            "kind": _named(_KINDS, numbers % 2),
        }
    )


def _named(names: pa.Array, indices: Any) -> pa.Array:
    return names.take(pa.array(indices))


flow = us.Flow("firewall", bucket=f"{BUCKET_MS} ms")
source = flow.source(
    SOURCE, us.Generator(SCHEMA, packets, rows_per_s=ROWS_PER_S, rows=ROWS, seed=SEED), time="ts"
)


@flow.fragment(source, partition_by=["src", "dst"], time="closed")
def sessions(rows: Any) -> Any:
    started = F.min(F.when(F.col("kind") == "start", F.col("ts")))
    ended = F.max(F.when(F.col("kind") == "end", F.col("ts")))
    return (
        rows.groupBy(F.session_window("ts", f"{GAP_MS} milliseconds").alias("session"), "src", "dst", "app")
        .agg((F.unix_micros(ended) - F.unix_micros(started)).alias("dur_us"))
        .where("dur_us IS NOT NULL")
        .select("app", "src", F.col("session.end").alias("closed"), "dur_us")
    )


@flow.fragment(sessions, partition_by=["app", "src"], time="window.end")
def stats(rows: Any) -> Any:
    slide_ms = WINDOW_MS // PHASES
    # Of the windows that a session falls into, the one of its group's phase.
    phase = F.pmod(F.crc32(F.col("src")), F.lit(PHASES))
    begins = F.expr(f"pmod(unix_millis(window.start) div {slide_ms}, {PHASES})")
    return (
        rows.withColumn("window", F.window("closed", f"{WINDOW_MS} milliseconds", f"{slide_ms} milliseconds"))
        .where(begins == phase)
        .groupBy("window", "app", "src")
        .agg(
            F.max("dur_us").alias("longest_us"),
            F.sum("dur_us").alias("total_us"),
            F.avg("dur_us").alias("average_us"),
            F.count("*").alias("sessions"),
        )
    )


flow.sink(stats, us.Parquet(OUTPUT))


def expected(origin_us: int, rows: int, seed: int = SEED) -> pd.DataFrame:
    """What `stats` must say of the first rows, after all of which the stream has ended."""
    ends = np.arange(1, rows, 2, dtype=np.int64)
    began = _began(seed, ends // 2)
    ends, began = ends[began >= 0], began[began >= 0]
    pair = began % PAIRS
    group = pair % GROUPS
    ended_us = _times(origin_us, ends)
    slide_us = WINDOW_MS // PHASES * 1_000
    step = (ended_us + GAP_MS * 1_000) // slide_us
    phases = np.array([zlib.crc32(src.encode()) % PHASES for src in _SOURCES.to_pylist()])
    begins = step - (step - phases[group // len(APPS)]) % PHASES
    frame = pd.DataFrame(
        {
            "end_us": (begins + PHASES) * slide_us,
            "group": group,
            "dur_us": ended_us - _times(origin_us, 2 * began),
        }
    )
    grouped = frame.groupby(["end_us", "group"], sort=True)["dur_us"]
    result = grouped.agg(longest_us="max", total_us="sum", sessions="count").reset_index()
    result["average_us"] = result["total_us"] / result["sessions"]
    result["app"] = np.array(APPS)[result["group"] % len(APPS)]
    result["src"] = np.array(_SOURCES.to_pylist())[result["group"] // len(APPS)]
    return result.drop(columns="group")


def _times(origin_us: int, numbers: Any) -> Any:
    return origin_us + np.floor(numbers.astype(np.float64) * 1e6 / ROWS_PER_S).astype(np.int64)
