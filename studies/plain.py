"""The traffic query in plain Structured Streaming: what the studies compare with.

    python studies/plain.py FOLDER [--rows N]

The same rows at the same rate, from a replayable source whose offset is a row number; the same windows,
with a watermark of no delay; each micro-batch's result written as one Parquet file. By default it is
started by the same code as our own nodes, with the same settings and the same ahead-of-time cache: Spark at
its best on this machine. `--as-shipped` leaves all that out. Killed and started again, it goes on from its
checkpoint. Every micro-batch with results adds a line to FOLDER/outputs.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

import traffic
from understudy.engine.jvm import start_jvm
from understudy.engine.session import session
from understudy.runtime.process import leave_at_once

#: About as many bytes as our engines are given at once when they are behind: 64 MB.
BATCH_ROWS_MAX = 1_600_000


class Rows(InputPartition):
    def __init__(self, first: int, end: int) -> None:
        super().__init__(first)
        self.first = first
        self.end = end


class TrafficReader(DataSourceStreamReader):
    """Row i is due at origin + i / rate; the offset is the number of the next row."""

    def __init__(self, origin_us: int, rate: float, rows: int | None, seed: int) -> None:
        self._origin_us = origin_us
        self._rate = rate
        self._rows = rows
        self._seed = seed

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"next": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
        due = int((time.time_ns() // 1_000 - self._origin_us) * self._rate / 1e6) + 1
        end = due if self._rows is None else min(due, self._rows)
        return {"next": max(start["next"], min(end, start["next"] + BATCH_ROWS_MAX))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [Rows(start["next"], end["next"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        for first in range(partition.first, partition.end, 50_000):
            count = min(50_000, partition.end - first)
            numbers = np.arange(first, first + count, dtype=np.float64)
            times = self._origin_us + np.floor(numbers * 1e6 / self._rate).astype(np.int64)
            columns = {
                name: pa.array(column) for name, column in traffic.packets(self._seed, first, count).items()
            }
            columns["ts"] = pa.array(times).cast(pa.timestamp("us", tz="UTC"))
            yield pa.RecordBatch.from_pydict(columns)


class TrafficSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "traffic"

    def schema(self) -> str:
        return traffic.SCHEMA

    def streamReader(self, schema: Any) -> TrafficReader:  # noqa: N802 - Spark's name
        rows = int(self.options["rows"])
        return TrafficReader(int(self.options["origin"]), traffic.ROWS_PER_S, rows if rows >= 0 else None, 7)


def origin_in(folder: Path) -> int:
    """The first row's time: that of the first start, also for every later one."""
    file = folder / "origin"
    if not file.exists():
        file.write_text(str(time.time_ns() // 1_000))
    return int(file.read_text())


def tuned(heap_mb: int, folder: Path) -> SparkSession:
    """Started and set as our own nodes are."""
    spark = session(master="local[2]", heap_mb=heap_mb, stderr=folder / "jvm.log")
    # On by default in Spark; our own nodes switch it off because they move time on themselves.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")
    return spark


def as_shipped(heap_mb: int, folder: Path) -> SparkSession:
    """Spark's own settings, but for as many shuffle partitions as cores, as is usual for a small job."""
    jvm = start_jvm(heap_mb=heap_mb, stderr=folder / "jvm.log", cache=None)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_GATEWAY_PORT"] = str(jvm.port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = jvm.secret
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )


def leave_with_parent() -> None:
    while os.read(0, 4096):
        pass
    leave_at_once(0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=-1)
    parser.add_argument("--heap", type=int, default=640)
    parser.add_argument("--as-shipped", action="store_true", help="Spark's own settings, no start-up cache")
    parser.add_argument("--with-parent", action="store_true", help="end when standard input closes")
    arguments = parser.parse_args()
    if arguments.with_parent:
        threading.Thread(target=leave_with_parent, daemon=True).start()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "out").mkdir(exist_ok=True)
    spark = as_shipped(arguments.heap, folder) if arguments.as_shipped else tuned(arguments.heap, folder)
    spark.dataSource.register(TrafficSource)
    stream = (
        spark.readStream.format("traffic")
        .option("rows", arguments.rows)
        .option("origin", origin_in(folder))
        .load()
        .withWatermark("ts", "0 seconds")
    )

    def deliver(frame: DataFrame, batch: int) -> None:
        table = frame.toArrow()
        if not table.num_rows:
            return
        half = folder / "out" / f".{batch}.half"
        pq.write_table(table, half)
        half.replace(folder / "out" / f"{batch:08}.parquet")
        ends = table.column("window").combine_chunks().field("end").cast(pa.int64())
        newest = max(ends.to_pylist())
        line = {
            "at_us": time.time_ns() // 1_000,
            "rows": table.num_rows,
            "packets": sum(table.column("packets").to_pylist()),
            "newest_us": newest,
            "oldest_us": min(ends.to_pylist()),
        }
        with (folder / "outputs.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")

    query = (
        traffic.counts(stream)
        .writeStream.foreachBatch(deliver)
        .outputMode("append")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
