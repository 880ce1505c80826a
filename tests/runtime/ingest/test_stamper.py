"""Stampers: when buckets are sealed, what is in them, and in which order they go out."""

from __future__ import annotations

import pyarrow as pa
import pytest

import understudy as us
from understudy.core.errors import BrokenInvariant
from understudy.flow.errors import RowError
from understudy.flow.model import Source
from understudy.flow.schema import TIMESTAMP
from understudy.runtime.ingest import stamper as module
from understudy.runtime.ingest.buckets import END_US, SealedBucket, end_bucket
from understudy.runtime.ingest.stamper import Stamper

WIDTH_US = 100
WALL_US = 10_000_000


def source(late: str = "restamp", lateness: str = "0 us", ahead: str | None = "1 hour") -> Source:
    flow = us.Flow("f")
    return flow.source(
        "s", us.Push("id int, ts timestamp"), time="ts", late=late, lateness=lateness, ahead=ahead
    )


def rows(*times: int, first: int = 0) -> pa.Table:
    ids = pa.array(range(first, first + len(times)), pa.int32())
    return pa.table({"id": ids, "ts": pa.array(times, pa.int64()).cast(TIMESTAMP)})


def push(stamper: Stamper, table: pa.Table) -> list[SealedBucket]:
    return stamper.push(stamper.judge(table, WALL_US))


def ids(sealed: list[SealedBucket]) -> dict[int, list[int]]:
    """The rows of each bucket that has any."""
    return {each.number: each.table.column("id").to_pylist() for each in sealed if each.table is not None}


def test_a_bucket_is_sealed_by_the_first_row_at_its_end() -> None:
    stamper = Stamper(source(), WIDTH_US)
    assert push(stamper, rows(10, 199)) != []
    assert stamper.through == 0
    assert push(stamper, rows(199)) == []
    assert ids(push(stamper, rows(200, first=9))) == {1: [1, 0]}
    assert stamper.through == 1


def test_rows_are_sorted_by_time_and_equal_times_keep_their_order_of_arrival() -> None:
    stamper = Stamper(source(), WIDTH_US)
    push(stamper, rows(50, 20, 50))
    push(stamper, rows(20, 50, first=3))
    assert ids(push(stamper, rows(150, first=9))) == {0: [1, 3, 0, 2, 4]}


def test_lateness_keeps_buckets_open() -> None:
    stamper = Stamper(source(lateness="30 us"), WIDTH_US)
    assert ids(push(stamper, rows(50, 129))) == {}
    assert ids(push(stamper, rows(60, 130, first=2))) == {0: [0, 2]}


def test_disorder_inside_one_push_is_not_late() -> None:
    stamper = Stamper(source(late="refuse"), WIDTH_US)
    assert ids(push(stamper, rows(950, 10, 420))) == {0: [1], 4: [2]}


def test_late_rows_move_to_the_oldest_open_bucket() -> None:
    stamper = Stamper(source(), WIDTH_US)
    push(stamper, rows(250))
    judged = stamper.judge(rows(10, 260, first=1), WALL_US)
    assert judged.late == 1
    assert stamper.push(judged) == []
    (sealed,) = push(stamper, rows(300))
    table = sealed.table
    assert sealed.number == 2
    assert table is not None
    assert table.column("ts").cast(pa.int64()).to_pylist() == [200, 250, 260]
    assert table.column("id").to_pylist() == [1, 0, 2]
    assert stamper.late == 1


def test_late_rows_are_dropped_and_counted() -> None:
    stamper = Stamper(source(late="drop"), WIDTH_US)
    push(stamper, rows(250))
    push(stamper, rows(10, 20, 260, first=1))
    assert ids(stamper.close()) == {2: [0, 3]}
    assert stamper.late == 2


def test_a_late_row_refuses_all_of_its_push() -> None:
    stamper = Stamper(source(late="refuse"), WIDTH_US)
    push(stamper, rows(250))
    with pytest.raises(
        us.RowError, match=r"source 's' refuses late rows, and 2 of the 3 .* row 1, \{'id': 6"
    ):
        stamper.judge(rows(260, 10, 20, first=5), WALL_US)
    assert ids(stamper.close()) == {2: [0]}
    assert stamper.late == 0


def test_an_explicit_boundary_seals_and_never_goes_back() -> None:
    stamper = Stamper(source(), WIDTH_US)
    push(stamper, rows(10))
    assert ids(stamper.seal_through(5)) == {0: [0]}
    assert stamper.seal_through(3) == []
    assert stamper.through == 5


def test_numbers_rise_and_a_boundary_without_rows_is_a_bucket_of_its_own() -> None:
    stamper = Stamper(source(), WIDTH_US)
    assert [each.number for each in push(stamper, rows(250, 950))] == [2, 8]
    assert stamper.last_rows == 2
    assert [each.number for each in push(stamper, rows(1_000))] == [9]
    assert stamper.seal_through(12)[-1:] == [SealedBucket("s", 12, None)]


def test_before_the_first_row_a_source_says_what_will_not_come() -> None:
    stamper = Stamper(source(), WIDTH_US)
    assert push(stamper, rows(777)) == [SealedBucket("s", 6, None)]


@pytest.mark.parametrize("width_us", [1_000, 7_000, 100_000, 3_600_000_000])
def test_the_end_comes_after_every_row_that_is_taken(width_us: int) -> None:
    stamper = Stamper(source(ahead=None), width_us)
    push(stamper, rows(END_US - 1))
    assert not stamper.closed
    last, end = stamper.close()
    assert (last.table is not None, end) == (True, SealedBucket("s", end_bucket(width_us), None))
    # Spark and Python hold times up to the end of the year 9999: windows of up to a year still close.
    assert (end_bucket(width_us) + 1) * width_us + 360 * 24 * 3_600_000_000 <= 253_402_300_799_999_999


def test_a_row_far_in_the_future_seals_nothing() -> None:
    stamper = Stamper(source(ahead="1 ms"), WIDTH_US)
    push(stamper, rows(250))
    with pytest.raises(us.RowError, match=r"'s', row 1, \{'id': 6.*more than 1 ms ahead"):
        push(stamper, rows(300, WALL_US + 1_001, first=5))
    assert (stamper.through, ids(stamper.close())) == (1, {2: [0]})


def test_a_row_far_in_the_future_is_dropped_and_counted_where_late_ones_are() -> None:
    stamper = Stamper(source(late="drop", ahead="1 ms"), WIDTH_US)
    push(stamper, rows(250))
    push(stamper, rows(10, 300, WALL_US + 1_001, first=5))
    assert (stamper.late, stamper.through) == (2, 2)
    assert ids(stamper.close()) == {3: [6]}


def test_of_a_push_with_a_row_beyond_the_limit_the_row_at_the_limit_is_kept() -> None:
    stamper = Stamper(source(late="drop", ahead="1 ms"), WIDTH_US)
    judged = stamper.judge(rows(WALL_US + 1_000, WALL_US + 1_001), WALL_US)
    assert (judged.table.column("id").to_pylist(), judged.late) == ([0], 1)


@pytest.mark.parametrize("past_us", [0, 1_000])
def test_a_source_may_run_ahead_of_the_wall_clock_by_its_own_newest_row(past_us: int) -> None:
    stamper = Stamper(source(ahead="1 ms"), WIDTH_US)
    for step in range(5):
        push(stamper, rows(WALL_US + 1_000 * step + past_us))
    assert stamper.newest_us == WALL_US + 4_000 + past_us


def test_without_a_limit_any_row_is_taken() -> None:
    stamper = Stamper(source(ahead=None), WIDTH_US)
    push(stamper, rows(WALL_US * 1_000_000))
    assert stamper.newest_us == WALL_US * 1_000_000


def test_a_closed_source_takes_no_rows() -> None:
    stamper = Stamper(source(), WIDTH_US)
    push(stamper, rows(10, 120))
    assert ids(stamper.close()) == {1: [1]}
    assert stamper.closed
    with pytest.raises(BrokenInvariant):
        push(stamper, rows(300))


def test_a_push_that_would_make_a_bucket_too_large_is_refused_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    row_bytes = rows(0).nbytes
    monkeypatch.setattr(module, "BUCKET_BYTES_MAX", 3 * row_bytes)
    stamper = Stamper(source(lateness="100 us"), WIDTH_US)
    push(stamper, rows(0, 1))
    # Of four rows no bucket has more than three.
    push(stamper, rows(2, 100, 101, 102))
    for time in (3, 103):
        with pytest.raises(RowError, match=r"its bucket that starts at .* would have \d+ bytes, and \d+ are"):
            push(stamper, rows(time))
    again = Stamper(source(lateness="100 us"), WIDTH_US)
    again.hold(stamper.open_rows)
    with pytest.raises(RowError, match="Give the flow narrower buckets"):
        push(again, rows(3))
    # What is sealed leaves room for what comes.
    assert ids(push(stamper, rows(200, 201, 202))) == {0: [0, 1, 0]}
    assert ids(push(stamper, rows(300))) == {1: [1, 2, 3]}
