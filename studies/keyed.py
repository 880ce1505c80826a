"""A flow with as much state as is wanted: every key counts in one window that never closes during a study.

The first rows fill the state, a key each. After that 99 of 100 rows fall on a thousand hot keys, and the rest
walk through all of them, as in a flow with many customers of whom few are busy. A key takes about 200 bytes
of a snapshot. Nothing comes out, but the number of the bucket through which all output is delivered goes on.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program calls it

import understudy as us

ROWS_PER_S = float(os.environ.get("KEYED_ROWS_PER_S", "1000000"))
KEYS = int(os.environ.get("KEYED_KEYS", "5000"))
OUTPUT = os.environ.get("KEYED_OUTPUT", "keyed-out")
HOT = 1_000
#: One row of so many is of a key that may be cold.
COLD_EVERY = 100


def rows(_seed: int, first: int, count: int) -> dict[str, Any]:
    numbers = np.arange(first, first + count, dtype=np.int64)
    later = np.where(numbers % COLD_EVERY == 0, numbers // COLD_EVERY % KEYS, numbers % min(HOT, KEYS))
    return {"key": np.where(numbers < KEYS, numbers, later)}


flow = us.Flow("keyed", bucket="100 ms")
source = flow.source("rows", us.Generator("key bigint, ts timestamp", rows, rows_per_s=ROWS_PER_S), time="ts")


@flow.fragment(source, partition_by=["key"], time="window.end")
def counted(taken: Any) -> Any:
    # Text that does not compress, so that a snapshot is as large as its state.
    text = F.sha2(F.col("key").cast("string"), 512)
    return taken.groupBy(F.window("ts", "30 days"), "key").agg(
        F.count("*").alias("n"), F.max(text).alias("text")
    )


flow.sink(counted, us.Parquet(OUTPUT))
