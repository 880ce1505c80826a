"""A flow whose output accounts for every row of its input, and the account."""

from __future__ import annotations

import datetime
import itertools
import textwrap
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

import understudy as us
from understudy.runtime.client import Client

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

# Two fragments with different keys, so that rows change partitions on the way.
_CHAIN = """
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
        counted = rows.groupBy(F.window("ts", "200 milliseconds"), "key").agg(
            {aggregate}, F.sum("value").alias("total")
        )
        return counted.select("window", (F.col("key") % 3).alias("third"), "n", "total")

    @flow.fragment(counts, partition_by=["third"], time="window.end")
    def thirds(rows):
        return rows.groupBy(F.window("window", "400 milliseconds"), F.col("third")).agg(
            F.sum("n").alias("n"), F.sum("total").alias("total")
        ).withColumnRenamed("third", "key")

    flow.sink(thirds, us.Parquet({output!r}))
"""


def generated(rows: int, rows_per_s: int) -> str:
    """A source of that many rows at that rate: values 0, 1, 2, …"""
    return f'Generator("{SCHEMA}", numbers, rows_per_s={rows_per_s}, rows={rows})'


def write_flow(
    folder: Path, source: str, aggregate: str = 'F.count("*").alias("n")', *, chain: bool = False
) -> Path:
    """The flow's file, of one fragment or of two; its output goes to `folder/out`."""
    file = folder / "counting.py"
    text = textwrap.dedent(_CHAIN if chain else _FLOW).format(
        source=source, output=str(folder / "out"), aggregate=aggregate
    )
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


BASE = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
PUSH_ROWS = 500


def push_all(address: str, pushes: Iterable[int], pushed: threading.Semaphore) -> None:
    """Rows 0, 1, 2, … a millisecond apart, in pushes of 500."""
    # Longer than a run takes that goes on, on a machine with other work.
    with Client(address, name="the only client", timeout_s=180.0) as client:
        for push in pushes:
            numbers = range(push * PUSH_ROWS, (push + 1) * PUSH_ROWS)
            client.push(
                "numbers",
                [
                    {"key": n % 10, "value": n, "ts": BASE + datetime.timedelta(milliseconds=n)}
                    for n in numbers
                ],
            )
            pushed.release()
        client.close_source("numbers")


def results(folder: Path) -> list[tuple[datetime.datetime, int, int, int]]:
    """What was delivered, in its order: the end of the window, the key, rows and the sum of their values."""
    table = us.read_output(folder / "out").to_pandas()
    ends = [window["end"] for window in table["window"]]
    return list(zip(ends, table["key"], table["n"], table["total"], strict=True))


def expected(rows: int, *, chain: bool = False) -> list[tuple[datetime.datetime, int, int, int]]:
    """What must be delivered of the first rows, ordered by windows and keys: worked out without Spark."""
    width_ms = 400 if chain else 200
    counted: dict[tuple[int, int], list[int]] = {}
    for n in range(rows):
        key = n % 10 % 3 if chain else n % 10
        count = counted.setdefault((n // width_ms, key), [0, 0])
        count[0] += 1
        count[1] += n
    return [
        (BASE + datetime.timedelta(milliseconds=(window + 1) * width_ms), key, n, total)
        for (window, key), (n, total) in sorted(counted.items())
    ]


class Flowing:
    """Rows that flow into a run, 1,000 a second, for as long as the block takes. Then the source ends."""

    def __init__(self, address: str) -> None:
        self._enough = threading.Event()
        self._pushed = threading.Semaphore(0)
        arguments = (address, self._as_time_goes_by(), self._pushed)
        self._pushing = threading.Thread(target=push_all, args=arguments, daemon=True)

    def __enter__(self) -> Self:
        self._pushing.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._pushing.join(timeout=180)
        assert not self._pushing.is_alive()

    def _as_time_goes_by(self) -> Iterator[int]:
        for push in itertools.count():
            yield push
            if self._enough.wait(PUSH_ROWS / 1_000):
                return

    def account(self) -> tuple[int, int]:
        """What the output must account for, once the block has ended."""
        rows = 0
        while self._pushed.acquire(blocking=False):
            rows += PUSH_ROWS
        return rows, rows * (rows - 1) // 2
