"""The flow that the studies run: 10,000 packets a second, counted in windows of 200 ms by application and
source.

Its output flows all the time, so silence shows. The rows are a pure function of their numbers, and
`expected` works the results out without Spark: the ground truth for every run, however it was harmed.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program calls it

import understudy as us

ROWS_PER_S = float(os.environ.get("TRAFFIC_ROWS_PER_S", "10000"))
ROWS = int(os.environ["TRAFFIC_ROWS"]) if "TRAFFIC_ROWS" in os.environ else None
OUTPUT = os.environ.get("TRAFFIC_OUTPUT", "traffic-out")
WINDOW_US = 200_000
SCHEMA = "src string, app string, size bigint, ts timestamp"
APPS = np.array(["http", "ftp", "dns", "ssh", "smtp"])
SOURCES = np.array([f"10.0.0.{n}" for n in range(20)])
KEYS = ["end_us", "app", "src"]
#: All rows of half an hour at once take more memory than a machine has.
EXPECTED_AT_ONCE = 1_000_000


def packets(seed: int, first: int, count: int) -> dict[str, Any]:
    numbers = np.arange(first, first + count, dtype=np.uint64)
    mixed = (numbers + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(31)
    return {
        "src": SOURCES[(mixed % np.uint64(len(SOURCES))).astype(np.int64)],
        "app": APPS[((mixed >> np.uint64(16)) % np.uint64(len(APPS))).astype(np.int64)],
        "size": ((mixed >> np.uint64(32)) % np.uint64(1500)).astype(np.int64),
    }


flow = us.Flow("traffic", bucket="100 ms")
source = flow.source(
    "packets", us.Generator(SCHEMA, packets, rows_per_s=ROWS_PER_S, rows=ROWS, seed=7), time="ts"
)


@flow.fragment(source, partition_by=["app", "src"], time="window.end")
def counts(rows: Any) -> Any:
    return rows.groupBy(F.window("ts", f"{WINDOW_US} microseconds"), "app", "src").agg(
        F.count("*").alias("packets"), F.max("size").alias("largest"), F.sum("size").alias("bytes")
    )


flow.sink(counts, us.Parquet(OUTPUT))


def expected(origin_us: int, rows: int, seed: int = 7) -> pd.DataFrame:
    """What `counts` must say of the first rows, in windows that those rows fill."""
    parts = [
        _counted(origin_us, seed, first, min(EXPECTED_AT_ONCE, rows - first))
        for first in range(0, rows, EXPECTED_AT_ONCE)
    ]
    # A window whose rows were worked out in two parts.
    grouped = pd.concat(parts).groupby(KEYS, sort=True)
    return grouped.agg({"packets": "sum", "largest": "max", "bytes": "sum"}).reset_index()


def _counted(origin_us: int, seed: int, first: int, count: int) -> pd.DataFrame:
    frame = pd.DataFrame(packets(seed, first, count))
    numbers = np.arange(first, first + count, dtype=np.float64)
    times = origin_us + np.floor(numbers * 1e6 / ROWS_PER_S).astype(np.int64)
    frame["end_us"] = (times // WINDOW_US + 1) * WINDOW_US
    grouped = frame.groupby(KEYS, sort=True)["size"]
    return grouped.agg(packets="count", largest="max", bytes="sum").reset_index()
