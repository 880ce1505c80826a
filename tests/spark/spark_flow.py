"""A flow of three fragments and two sinks, one of which lags: what the segment tests run, here and in a child
process.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from spark_cases import WIDTH_US

import understudy as us


def totals(events: DataFrame) -> DataFrame:
    return events.groupBy(F.window("ts", "200 milliseconds"), "k").agg(F.sum("v").alias("total"))


def per_second(totals: DataFrame) -> DataFrame:
    return totals.groupBy(F.window("window", "1 second")).agg(
        F.max("total").alias("most"), F.count("*").alias("n")
    )


def spikes(totals: DataFrame, events: DataFrame) -> DataFrame:
    high = totals.filter("total > 40").select("k", "total", F.window_time("window").alias("closed"))
    near = F.expr("h.k = e.k and e.ts between h.closed - interval 200 milliseconds and h.closed")
    return (
        high.alias("h")
        .join(events.alias("e"), near)
        .select("h.k", "h.total", "e.id", F.greatest("h.closed", "e.ts").alias("at"))
    )


def make_flow() -> us.Flow:
    flow = us.Flow("chain", bucket=f"{WIDTH_US // 1000} ms")
    events = flow.source("events", us.Push("k string, v bigint, id bigint, ts timestamp"), time="ts")
    small = flow.fragment(events, time="window.end")(totals)
    flow.sink(flow.fragment(small, time="window.end")(per_second), us.Console())
    flow.sink(flow.fragment(small, events, time="at")(spikes), us.Console())
    return flow
