"""Delivery survives a crash between any two of its steps: nothing twice, nothing unreported."""

from __future__ import annotations

import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import understudy as us
from understudy.core.bucket import NOTHING, Bucket
from understudy.core.partition import Partition
from understudy.history.records import parts_of
from understudy.runtime.gateway.delivery import DeliveredRange, Delivery
from understudy.runtime.payload import encode

SCHEMA = pa.schema([("v", pa.int64())])


def flow_into(folder: Path) -> us.Flow:
    flow = us.Flow("delivery", bucket="100 ms")
    source = flow.source("rows", us.Push("v bigint, ts timestamp"), time="ts")

    @flow.fragment(source, time="ts")
    def same(rows: Any) -> Any:
        return rows

    flow.sink(same, us.JsonLines(folder / "out"))
    flow.validate()
    return flow


def bucket(number: int, *values: int) -> Bucket:
    if not values:
        return Bucket(number)
    payload = encode({"same": pa.table({"v": list(values)}, schema=SCHEMA)})
    return Bucket(number, payload, len(payload))


def bucket_of_parts(number: int, parts: dict[int, list[tuple[int, int]]]) -> Bucket:
    """A bucket whose rows, of a value and a time in microseconds, come from several partitions."""
    encoded = []
    for index, rows in parts.items():
        times = pa.array([at_us for _, at_us in rows], pa.timestamp("us", "UTC"))
        table = pa.table({"v": pa.array([value for value, _ in rows], pa.int64()), "ts": times})
        encoded.append((Partition("same", index), encode({"same": table})))
    return Bucket(number, tuple(encoded), sum(len(payload) for _, payload in encoded))


class Crash(Exception):
    """The process died here."""


class Attempt:
    """One life of the delivery in a folder."""

    def __init__(self, folder: Path, *, digests: bool = True) -> None:
        self.reported: list[DeliveredRange] = []
        self.failures: list[BaseException] = []
        self.ended = threading.Event()
        self.delivery = Delivery(
            flow_into(folder), folder, self.reported.append, self._failed, digests=digests
        )
        self.position, self.unreported = self.delivery.recover()
        if self.unreported is not None:
            self.reported.append(self.unreported)

    def _failed(self, error: BaseException) -> None:
        self.failures.append(error)
        self.ended.set()

    def deliver(self, *buckets: Bucket) -> None:
        for each in buckets:
            self.delivery.put(each)
        self.delivery.start()
        self.delivery.end()


def rows_in(folder: Path) -> list[int]:
    return us.read_output(folder / "out").column("v").to_pylist() if any((folder / "out").iterdir()) else []


def test_what_is_put_is_delivered_in_order_and_reported(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    assert attempt.position == NOTHING
    attempt.deliver(bucket(3, 30, 31), bucket(5), bucket(6, 60))
    assert rows_in(tmp_path) == [30, 31, 60]
    assert (attempt.reported[0].after, attempt.reported[-1].through) == (NOTHING, 6)
    assert [b[:2] for done in attempt.reported for b in done.buckets] == [(3, 2), (6, 1)]


def test_the_position_survives_stretches_without_rows(tmp_path: Path) -> None:
    Attempt(tmp_path).deliver(bucket(3, 30), bucket(9))
    assert Attempt(tmp_path).position == 9


def test_a_bucket_in_parts_is_delivered_as_one_and_reported_part_by_part(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.deliver(
        bucket_of_parts(3, {2: [(30, 7), (31, 9)], 10: [(32, 8)], 11: []}),
        bucket_of_parts(4, {10: [(40, 1)]}),
    )
    assert attempt.failures == []
    assert rows_in(tmp_path) == [30, 32, 31, 40], "within a bucket, by time"
    (_, rows, text), (_, _, last) = [each for done in attempt.reported for each in done.buckets]
    assert rows == 3
    assert [name for name, _ in parts_of(text)] == ["same/2", "same/10"]
    assert [name for name, _ in parts_of(last)] == ["same/10"]


def test_a_bucket_in_parts_survives_a_crash_after_the_sink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Attempt(tmp_path)
    writer = next(iter(first.delivery._sinks.values()))[1]
    honest = writer.deliver

    def crashing(buckets: Any, through: int) -> None:
        honest(buckets, through)
        raise Crash

    monkeypatch.setattr(writer, "deliver", crashing)
    first.deliver(bucket_of_parts(3, {0: [(30, 7)], 1: [(31, 6)]}))
    second = Attempt(tmp_path)
    assert (second.position, rows_in(tmp_path)) == (3, [31, 30])
    assert [name for name, _ in parts_of(second.reported[0].buckets[0][2])] == ["same/0", "same/1"]


def test_without_digests_rows_are_still_counted(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, digests=False)
    attempt.deliver(bucket_of_parts(3, {0: [(30, 2)], 1: [(31, 1)]}))
    assert [each for done in attempt.reported for each in done.buckets] == [(3, 2, "")]


@pytest.mark.parametrize("crash_in", ["before the sink", "after the sink"])
def test_a_crash_around_the_sink_loses_and_repeats_nothing(
    tmp_path: Path, crash_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Attempt(tmp_path)
    writer = next(iter(first.delivery._sinks.values()))[1]
    honest = writer.deliver

    def crashing(buckets: Any, through: int) -> None:
        if crash_in == "after the sink":
            honest(buckets, through)
        raise Crash

    monkeypatch.setattr(writer, "deliver", crashing)
    first.deliver(bucket(3, 30, 31), bucket(4))
    assert [type(failure) for failure in first.failures] == [Crash]
    assert first.reported == []

    second = Attempt(tmp_path)
    if crash_in == "after the sink":
        assert second.position == 4, "what the sink holds counts as delivered"
        assert [(done.after, done.through) for done in second.reported] == [(NOTHING, 4)]
        second.deliver(bucket(7, 70))
    else:
        assert second.position == NOTHING
        second.deliver(bucket(3, 30, 31), bucket(4), bucket(7, 70))
    assert rows_in(tmp_path) == [30, 31, 70]
    chain = [(done.after, done.through) for done in second.reported]
    assert all(a[1] == b[0] for a, b in pairwise(chain))


def test_output_of_another_run_is_not_taken_for_its_own(tmp_path: Path) -> None:
    Attempt(tmp_path).deliver(bucket(3, 30))
    (tmp_path / "delivery.json").unlink()
    with pytest.raises(us.EnvironmentFailed, match="another run"):
        Attempt(tmp_path)


def test_the_gateway_comes_up_without_spark() -> None:
    program = "import sys, understudy.runtime.gateway.process; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
