"""The demonstration's flow: how long network sessions last, by application and source.

This is the dataflow that the process-pair literature uses as its example. Packets cross a firewall. The
first fragment puts sessions together and tells each one's duration when it ends; the second gives the
longest and the average for each application and source.

A session is what one pair of addresses sends without a pause of GAP, from its start packet to its end packet;
one of which either is missing is left out. So state is bounded by the sessions that are open, no code of its
own runs between rows, and what comes out is what a batch job over the same packets gives, row for row.
Durations are whole microseconds, and sums of them stay far below 2**53, so averages do not depend on the
order of the rows either.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - how every Spark program calls it

from understudy.demo.packets import SCHEMA, lanes_for, packets
from understudy.flow.flow import Flow
from understudy.runtime.ingest.generator import Generator
from understudy.runtime.sinks.parquet import Parquet

SOURCE = "packets"
#: Packets of a session are a turn apart (see `packets`).
GAP = "400 milliseconds"
WINDOW = "500 milliseconds"


def sessions(packets: Any) -> Any:
    """(app, src, closed, dur_us) for each session, once its end is certain."""
    started = F.min(F.when(F.col("kind") == "start", F.col("ts")))
    ended = F.max(F.when(F.col("kind") == "end", F.col("ts")))
    return (
        packets.groupBy(F.session_window("ts", GAP).alias("session"), "src", "dst", "app")
        .agg((F.unix_micros(ended) - F.unix_micros(started)).alias("dur_us"))
        .where("dur_us IS NOT NULL")
        .select("app", "src", F.col("session.end").alias("closed"), "dur_us")
    )


def stats(sessions: Any) -> Any:
    """The longest and the average session for each application and source in each window."""
    return sessions.groupBy(F.window("closed", WINDOW), "app", "src").agg(
        F.max("dur_us").alias("longest_us"),
        F.avg("dur_us").alias("average_us"),
        F.count("*").alias("sessions"),
    )


def build(*, rows_per_s: float, rows: int, output: str | Path, seed: int = 1, bucket: str = "100 ms") -> Flow:
    """The flow over so many generated packets."""
    flow = Flow("sessions", bucket=bucket)
    made = partial(packets, lanes=lanes_for(rows_per_s))
    source = flow.source(
        SOURCE, Generator(SCHEMA, made, rows_per_s=rows_per_s, seed=seed, rows=rows), time="ts"
    )
    by_pair = flow.fragment(source, partition_by=["src", "dst"], time="closed")(sessions)
    by_source = flow.fragment(by_pair, partition_by=["app", "src"], time="window.end")(stats)
    flow.sink(by_source, Parquet(output))
    return flow
