"""How far a sink is delivered after a crash, by what its journal and the sink itself say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

import understudy as us
from understudy.core.bucket import NOTHING, BucketId
from understudy.runtime.gateway.delivery import SinkDelivery
from understudy.runtime.gateway.journal import DeliveredRange, Journal

#: Buckets 5 to 9, of which 5 and 7 have rows.
RANGE = DeliveredRange(4, 9, ((5, 1, "a"), (7, 1, "b")))


class Holding(us.Writer):
    def __init__(self, through: BucketId | None) -> None:
        self._through = through

    def recover(self) -> BucketId | None:
        return self._through

    def deliver(self, rows: pa.Table, first: int, through: int) -> None:
        raise AssertionError("nothing is delivered here")


@dataclass(frozen=True)
class HoldsThrough(us.SinkKind):
    through: BucketId | None

    def open(self, sink: str, folder: Path) -> us.Writer:
        return Holding(self.through)


def sink_that_holds(through: BucketId | None, folder: Path) -> SinkDelivery:
    flow = us.Flow("f", bucket="100 ms")
    source = flow.source("rows", us.Push("v bigint, ts timestamp"), time="ts")
    sink = flow.sink(source, HoldsThrough(through), name="out")
    return SinkDelivery(sink, folder, {}, lambda *_: None, lambda _: None, digests=True)


class Found(NamedTuple):
    noted: BucketId
    last: DeliveredRange | None
    at_sink: BucketId | None


@pytest.mark.parametrize(
    ("found", "position", "unreported"),
    [
        pytest.param(Found(4, RANGE, None), 4, [], id="begun, and the sink keeps no position"),
        pytest.param(Found(4, RANGE, 4), 4, [], id="begun, and nothing got there"),
        pytest.param(Found(4, RANGE, 7), 9, [RANGE], id="there, in a sink that counts buckets with rows"),
        pytest.param(Found(4, RANGE, 9), 9, [RANGE], id="there"),
        pytest.param(Found(9, RANGE, None), 9, [RANGE], id="done, and the sink keeps no position"),
        pytest.param(Found(9, RANGE, 9), 9, [RANGE], id="done"),
        pytest.param(Found(9, RANGE, 12), 12, [RANGE], id="done, and the note of the next one got lost"),
        pytest.param(Found(9, None, 12), 12, [], id="reported, and the note of the next one got lost"),
        pytest.param(Found(9, None, 7), 9, [], id="reported, and the rest had no rows"),
        pytest.param(Found(9, None, None), 9, [], id="reported, and the sink keeps no position"),
    ],
)
def test_nothing_that_a_sink_holds_is_delivered_again_and_nothing_else_counts_as_delivered(
    found: Found, position: BucketId, unreported: list[DeliveredRange], tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "delivery" / "out.json")
    journal.write(found.noted, found.last)
    for _ in range(2):
        # A process that dies before anything is reported leaves the next one with the same.
        sink = sink_that_holds(found.at_sink, tmp_path)
        assert sink.recover(begun=True) == unreported
        assert sink.position == position
        # Copies forget what counts as delivered, so it must be known to the disk.
        assert max(journal.read()[0], NOTHING if found.at_sink is None else found.at_sink) == position


@pytest.mark.parametrize("at_sink", [-1, 0, 1])
def test_the_output_of_another_run_is_refused_whatever_time_its_rows_are_of(
    at_sink: BucketId, tmp_path: Path
) -> None:
    with pytest.raises(us.EnvironmentFailed, match="already holds results of another run"):
        sink_that_holds(at_sink, tmp_path).recover()
    assert not (tmp_path / "delivery").exists()
