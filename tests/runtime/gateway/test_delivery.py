"""Delivery survives a crash between any two of its steps: nothing twice, nothing unreported, sink by sink."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delivery_kit import Attempt, Crash, bucket, flow_into, in_parts, rows_in

import understudy as us
from disk_kit import DiskRecord
from understudy.core.bucket import NOTHING
from understudy.core.errors import BrokenInvariant
from understudy.history.records import parts_of
from understudy.runtime.gateway import delivery as module
from understudy.runtime.gateway.delivery import DeliveredRange, Delivery
from understudy.runtime.gateway.journal import Journal
from understudy.runtime.sinks.naming import finished_files


def test_what_is_put_is_delivered_in_order_and_reported(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    assert attempt.position == {"one": NOTHING, "two": NOTHING}
    attempt.deliver(bucket(3, 30, 31), bucket(5), bucket(6, 60))
    assert rows_in(tmp_path) == [30, 31, 60]
    reported = attempt.reported["one"]
    assert (reported[0].after, reported[-1].through) == (NOTHING, 6)
    assert [b[:2] for done in reported for b in done.buckets] == [(3, 2), (6, 1)]
    assert attempt.reported["two"] == []


def test_a_range_is_cut_where_it_is_large_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RANGE_BYTES_MAX", 2 * bucket(1, 10).size_bytes)
    attempt = Attempt(tmp_path)
    attempt.deliver(*(bucket(number, number) for number in range(5)))
    assert [done.through for done in attempt.reported["one"]] == [1, 3, 4]
    assert rows_in(tmp_path) == [0, 1, 2, 3, 4]


def test_each_sink_has_a_position_of_its_own_that_survives_stretches_without_rows(tmp_path: Path) -> None:
    Attempt(tmp_path).deliver(bucket(3, 30), bucket(9))
    Attempt(tmp_path).deliver(bucket(4, 40), to="two")
    assert Attempt(tmp_path).position == {"one": 9, "two": 4}


def test_no_sink_waits_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(tmp_path)
    go_on = threading.Event()
    honest = attempt.writer("one").deliver

    def held_up(rows: pa.Table, first: int, through: int) -> None:
        assert go_on.wait(30)
        honest(rows, first, through)

    monkeypatch.setattr(attempt.writer("one"), "deliver", held_up)
    attempt.delivery.start()
    attempt.delivery.put("one", [bucket(3, 30)])
    attempt.delivery.put("two", [bucket(3, 31)])
    with attempt.reports:
        assert attempt.reports.wait_for(lambda: attempt.reported["two"], timeout=30)
    assert rows_in(tmp_path, "two") == [31]
    assert attempt.reported["one"] == []
    go_on.set()
    attempt.delivery.end()
    assert rows_in(tmp_path, "one") == [30]


def test_a_bucket_in_parts_is_delivered_as_one_and_reported_part_by_part(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.deliver(in_parts(3, {2: [(30, 7), (31, 9)], 10: [(32, 8)], 11: []}), in_parts(4, {10: [(40, 1)]}))
    assert attempt.failures == []
    assert rows_in(tmp_path) == [30, 32, 31, 40], "within a bucket, by time"
    (_, rows, text), (_, _, last) = [each for done in attempt.reported["one"] for each in done.buckets]
    assert rows == 3
    assert [name for name, _ in parts_of(text)] == ["same/2", "same/10"]
    assert [name for name, _ in parts_of(last)] == ["same/10"]


def test_every_payload_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    honest = module.decode

    def counted(payload: bytes) -> Any:
        decoded.append(payload)
        return honest(payload)

    monkeypatch.setattr(module, "decode", counted)
    given = in_parts(3, {0: [(30, 7)], 1: [(31, 6)]})
    Attempt(tmp_path).deliver(given)
    assert decoded == [payload for _, payload in given.payload]  # type: ignore[attr-defined]


def test_without_digests_rows_are_still_counted(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, digests=False)
    attempt.deliver(in_parts(3, {0: [(30, 2)], 1: [(31, 1)]}))
    assert [each for done in attempt.reported["one"] for each in done.buckets] == [(3, 2, "")]


@pytest.mark.parametrize("crash_in", ["before the sink", "after the sink"])
def test_a_crash_around_the_sink_loses_and_repeats_nothing(
    tmp_path: Path, crash_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Attempt(tmp_path)
    honest = first.writer("one").deliver

    def crashing(rows: pa.Table, first: int, through: int) -> None:
        if crash_in == "after the sink":
            honest(rows, first, through)
        raise Crash

    monkeypatch.setattr(first.writer("one"), "deliver", crashing)
    first.delivery.put("two", [bucket(2, 20)])
    first.deliver(bucket(3, 30, 31), bucket(4))
    assert [type(failure) for failure in first.failures] == [Crash]
    assert first.reported["one"] == []

    second = Attempt(tmp_path)
    assert (second.position["two"], rows_in(tmp_path, "two")) == (2, [20]), "the other sink went on"
    if crash_in == "after the sink":
        assert second.position["one"] == 4, "what the sink holds counts as delivered"
        assert [(done.after, done.through) for done in second.reported["one"]] == [(NOTHING, 4)]
        second.deliver(bucket(7, 70))
    else:
        assert second.position["one"] == NOTHING
        second.deliver(bucket(3, 30, 31), bucket(4), bucket(7, 70))
    assert rows_in(tmp_path) == [30, 31, 70]
    chain = [(done.after, done.through) for done in second.reported["one"]]
    assert all(a[1] == b[0] for a, b in pairwise(chain))


def test_a_range_that_ends_with_rows_and_reached_the_sink_is_reported_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Attempt(tmp_path)
    honest = first.writer("one").deliver

    def crashing(rows: pa.Table, first: int, through: int) -> None:
        honest(rows, first, through)
        raise Crash

    monkeypatch.setattr(first.writer("one"), "deliver", crashing)
    first.deliver(bucket(3, 30), bucket(4, 40))
    second = Attempt(tmp_path)
    (done,) = second.reported["one"]
    assert (done.after, done.through) == (NOTHING, 4)
    assert [each[:2] for each in done.buckets] == [(3, 1), (4, 1)]
    second.deliver()
    assert Attempt(tmp_path).reported["one"] == [], "reported once"


@pytest.mark.parametrize("given", [(3, 30, 31), (3,)], ids=["rows", "no rows"])
def test_a_crash_before_the_report_is_made_up_for_by_the_next_life(tmp_path: Path, given: tuple[int]) -> None:
    def dies(*_: object) -> None:
        raise Crash

    first = Attempt(tmp_path)
    first.delivery._sinks["one"]._on_delivered = dies
    first.deliver(bucket(*given))
    assert [type(failure) for failure in first.failures] == [Crash]
    for _ in range(2):
        # Whether the report is on record when the second life dies, nobody knows either.
        second = Attempt(tmp_path)
        assert second.position["one"] == 3
        assert [(done.after, done.through) for done in second.reported["one"]] == [(NOTHING, 3)]
    second.deliver(bucket(3, *given[1:]), bucket(4, 40))
    assert rows_in(tmp_path) == [*given[1:], 40]
    assert [done.through for done in second.reported["one"]] == [3, 4]


def test_older_buckets_that_come_again_do_not_set_a_position_back(tmp_path: Path) -> None:
    Attempt(tmp_path).deliver(bucket(3, 30), bucket(6, 60))
    second = Attempt(tmp_path)
    second.deliver(bucket(3, 30))
    assert (second.reported["one"][-1].after, second.reported["one"][-1].through) == (6, 6)
    assert Journal(tmp_path / "delivery" / "one.json").read()[0] == 6
    assert rows_in(tmp_path) == [30, 60]


def test_a_sink_at_rest_has_nothing_left_to_report(tmp_path: Path) -> None:
    first = Attempt(tmp_path)
    first.delivery.start()
    first.delivery.put("one", [bucket(3, 30)])
    while Journal(tmp_path / "delivery" / "one.json").read() != (3, None):
        assert first.failures == []
        time.sleep(0.01)
    first.delivery.end()
    assert Attempt(tmp_path).reported["one"] == []


def test_what_was_found_unreported_is_not_found_again_once_the_delivery_goes_on(tmp_path: Path) -> None:
    done = DeliveredRange(NOTHING, 3, ())
    Attempt(tmp_path)
    Journal(tmp_path / "delivery" / "one.json").write(3, done)
    second = Attempt(tmp_path)
    assert second.reported["one"] == [done]
    second.deliver()
    assert Attempt(tmp_path).reported["one"] == []


class Counting(us.Writer):
    """A writer that keeps no position. Its first call fails if a test asks for that."""

    def __init__(self, calls: list[tuple[list[int], int, int]], *, fails: bool) -> None:
        self._calls = calls
        self._fails = fails

    def deliver(self, rows: pa.Table, first: int, through: int) -> None:
        self._calls.append((rows.column("v").to_pylist(), first, through))
        if self._fails:
            raise ZeroDivisionError("no")

    def close(self) -> None:
        self._calls.append(([], 0, 0))


def test_a_writer_is_closed_also_if_the_end_comes_right_behind_its_last_buckets(tmp_path: Path) -> None:
    calls: list[tuple[list[int], int, int]] = []
    sink = Attempt(tmp_path).delivery._sinks["one"]
    sink._writer = Counting(calls, fails=False)
    sink.put([bucket(3, 30)])
    sink.stop()
    sink.start()
    sink.join(10)
    assert calls == [([30], 3, 3), ([], 0, 0)]


def test_the_journal_keeps_the_position_of_a_writer_that_keeps_none(tmp_path: Path) -> None:
    calls: list[tuple[list[int], int, int]] = []
    first = Attempt(tmp_path)
    first.delivery._sinks["one"]._writer = Counting(calls, fails=False)
    first.deliver(bucket(3, 30), bucket(4, 40), bucket(6))
    second = Attempt(tmp_path)
    assert second.position["one"] == 6
    second.delivery._sinks["one"]._writer = Counting(calls, fails=True)
    second.deliver(bucket(4, 40), bucket(7, 70))
    assert calls == [([30, 40], 3, 6), ([], 0, 0), ([70], 7, 7)], "closed only where it ended in order"
    (failure,) = second.failures
    assert isinstance(failure, us.UserError)
    assert "sink 'one' (JsonLines files in" in str(failure)
    assert "failed on buckets 7 to 7 (1 rows), which count as not delivered: ZeroDiv" in str(failure)
    assert Attempt(tmp_path).position["one"] == 6


@pytest.mark.parametrize(
    ("raised", "kind"),
    [(ConnectionResetError("by peer"), us.EnvironmentFailed), (ValueError("no"), us.UserError)],
)
def test_a_sink_that_cannot_be_reached_is_no_mistake_of_its_author(
    raised: Exception, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt(tmp_path)

    def fails(*_: object) -> None:
        raise raised

    monkeypatch.setattr(attempt.delivery._sinks["one"]._writer, "deliver", fails)
    attempt.deliver(bucket(4, 40))
    (failure,) = attempt.failures
    assert type(failure) is kind


def test_a_sink_that_cannot_be_opened_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no licence")

    monkeypatch.setattr(us.JsonLines, "open", fails)
    with pytest.raises(us.UserError, match=r"sink 'one' .* could not be opened: RuntimeError: no"):
        Attempt(tmp_path)


def test_buckets_out_of_order_are_our_bug(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.deliver(bucket(4, 40), bucket(3, 30))
    assert [type(failure) for failure in attempt.failures] == [BrokenInvariant]
    assert finished_files(tmp_path / "one") == []


def test_output_of_another_run_is_not_taken_for_its_own(tmp_path: Path) -> None:
    Attempt(tmp_path).deliver(bucket(3, 30), to="two")
    (tmp_path / "delivery" / "two.json").unlink()
    with pytest.raises(us.EnvironmentFailed, match="'two' already holds results of another run"):
        Attempt(tmp_path)


def test_a_journal_that_is_gone_is_missed_if_the_run_has_taken_rows_in(tmp_path: Path) -> None:
    flow = flow_into(tmp_path)

    def life() -> Delivery:
        return Delivery(flow, tmp_path, lambda *_: None, lambda _: None)

    assert not life().goes_on
    # A gateway that is killed before its first journal has taken nothing in.
    life().recover(begun=False)
    assert life().goes_on
    life().recover(begun=True)
    (tmp_path / "delivery" / "two.json").unlink()
    with pytest.raises(
        us.EnvironmentFailed, match=r"two\.json is missing.* what was delivered to sink 'two'"
    ):
        life().recover(begun=True)


def test_a_range_is_reported_when_rows_and_position_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt(tmp_path)
    disk = DiskRecord(tmp_path, monkeypatch)
    attempt.on_report = lambda: disk.steps.append("report")
    attempt.deliver(bucket(3, 30))
    (file,) = (tmp_path / "one").iterdir()
    named = [f"rename one/.unfinished-{file.name} to one/{file.name}", "sync one"]
    noted = ["rename delivery/one.half to delivery/one.json", "sync delivery", "report"]
    # What follows the report depends on whether more waits then.
    before = disk.steps[: disk.steps.index("report") + 1]
    assert [step for step in before if step in named] == named
    assert before[-3:] == noted
    assert before.index("sync one") < len(before) - 3


def test_the_gateway_comes_up_without_spark() -> None:
    program = "import sys, understudy.runtime.gateway.process; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
