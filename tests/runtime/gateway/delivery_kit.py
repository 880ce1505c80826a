"""A delivery that lives several times in one folder, and buckets for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import understudy as us
from understudy.core.bucket import Bucket
from understudy.core.shape.partition import Partition
from understudy.runtime.gateway.delivery import DeliveredRange, Delivery
from understudy.runtime.payload import encode

SINKS = ("one", "two")


def flow_into(folder: Path) -> us.Flow:
    flow = us.Flow("delivery", bucket="100 ms")
    source = flow.source("rows", us.Push("v bigint, ts timestamp"), time="ts")

    @flow.fragment(source, time="ts")
    def same(rows: Any) -> Any:
        return rows

    for sink in SINKS:
        flow.sink(same, us.JsonLines(folder / sink), name=sink)
    flow.validate()
    return flow


def bucket(number: int, *values: int) -> Bucket:
    return in_parts(number, {0: [(value, 0) for value in values]}) if values else Bucket(number)


def in_parts(number: int, parts: dict[int, list[tuple[int, int]]]) -> Bucket:
    """A bucket whose rows, of a value and a time in microseconds, come from several partitions."""
    encoded = []
    for index, rows in parts.items():
        times = pa.array([at_us for _, at_us in rows], pa.timestamp("us", "UTC"))
        table = pa.table({"v": pa.array([value for value, _ in rows], pa.int64()), "ts": times})
        encoded.append((Partition("same", index), encode({"same": table})))
    return Bucket(number, tuple(encoded), sum(len(payload) for _, payload in encoded))


class Crash(BaseException):
    """The process died here."""


class Attempt:
    """One life of the delivery in a folder."""

    def __init__(self, folder: Path, *, digests: bool = True) -> None:
        self.reported: dict[str, list[DeliveredRange]] = {sink: [] for sink in SINKS}
        self.failures: list[BaseException] = []
        self.reports = threading.Condition()
        self.on_report: Callable[[], None] = lambda: None
        self.delivery = Delivery(flow_into(folder), folder, self._report, self._failed, digests=digests)
        self.position, unreported = self.delivery.recover()
        for sink, done in unreported:
            self._report(sink, done)

    def _report(self, sink: str, done: DeliveredRange) -> None:
        with self.reports:
            self.reported[sink].append(done)
            self.on_report()
            self.reports.notify_all()

    def _failed(self, error: BaseException) -> None:
        self.failures.append(error)

    def deliver(self, *buckets: Bucket, to: str = "one") -> None:
        self.delivery.put(to, buckets)
        self.delivery.start()
        self.delivery.end()

    def writer(self, sink: str) -> Any:
        return self.delivery._sinks[sink]._writer


def rows_in(folder: Path, sink: str = "one") -> list[int]:
    return us.read_output(folder / sink).column("v").to_pylist()  # type: ignore[no-any-return]
