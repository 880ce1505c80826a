"""A flow whose output accounts for every row of its input, and the account."""

from __future__ import annotations

import textwrap
from pathlib import Path

import understudy as us

SCHEMA = "key bigint, value bigint, ts timestamp"
PUSHED = f'Push("{SCHEMA}")'

_FLOW = """
    import numpy as np
    import understudy as us
    from pyspark.sql import functions as F

    def numbers(seed, first, count):
        n = np.arange(first, first + count, dtype=np.int64)
        return {{"key": n % 10, "value": n}}

    flow = us.Flow("counting", bucket="100 ms")
    source = flow.source("numbers", us.{source}, time="ts")

    @flow.fragment(source, partition_by=["key"], time="window.end")
    def counts(rows):
        return rows.groupBy(F.window("ts", "200 milliseconds"), "key").agg(
            {aggregate}, F.sum("value").alias("total")
        )

    flow.sink(counts, us.Parquet({output!r}))
"""


def generated(rows: int, rows_per_s: int) -> str:
    """A source of that many rows at that rate: values 0, 1, 2, …"""
    return f'Generator("{SCHEMA}", numbers, rows_per_s={rows_per_s}, rows={rows})'


def write_flow(folder: Path, source: str, aggregate: str = 'F.count("*").alias("n")') -> Path:
    """The flow's file; its output goes to `folder/out`."""
    file = folder / "counting.py"
    text = textwrap.dedent(_FLOW).format(source=source, output=str(folder / "out"), aggregate=aggregate)
    file.write_text(text)
    return file


def account(folder: Path) -> tuple[int, int]:
    """How many rows of input the output accounts for, and the sum of their values."""
    table = us.read_output(folder / "out").to_pandas()
    windows = [(window["end"], key) for window, key in zip(table["window"], table["key"], strict=True)]
    assert len(set(windows)) == len(windows), "a window was delivered twice"
    ends = [end for end, _ in windows]
    assert ends == sorted(ends), "windows were delivered out of order"
    return int(table["n"].sum()), int(table["total"].sum())
