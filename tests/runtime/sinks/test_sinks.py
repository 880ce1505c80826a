"""Sink writers: exactly once across crashes and repeats, in order, and honest when they cannot write."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import understudy as us
from understudy.core.bucket import NOTHING
from understudy.core.errors import BrokenInvariant
from understudy.flow.model import Sink
from understudy.flow.writers import Writer
from understudy.runtime.sinks.callback import CallbackWriter
from understudy.runtime.sinks.console import ConsoleWriter
from understudy.runtime.sinks.naming import file_name
from understudy.runtime.sinks.opening import open_writer
from understudy.runtime.sinks.writer import SinkWriter

FORMATS = [us.Parquet, us.JsonLines]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def opened(writer: Writer, folder: Path) -> SinkWriter:
    return open_writer(Sink("stats", "stats", writer), folder)


def ids(folder: Path) -> list[int]:
    table = us.read_output(folder)
    return table.column("id").to_pylist() if table.num_columns else []


@pytest.mark.parametrize("kind", FORMATS)
def test_each_range_is_one_file_and_the_position_survives(tmp_path: Path, kind: Any) -> None:
    out = tmp_path / "deep" / "out"
    writer = opened(kind(out), tmp_path)
    assert writer.recover() == NOTHING
    writer.deliver([(3, rows(1, 2)), (5, rows(3))], 9)
    writer.deliver([(10, rows(4))], 10)
    assert len(list(out.iterdir())) == 2
    assert ids(out) == [1, 2, 3, 4]
    assert opened(kind(out), tmp_path).recover() == 10


@pytest.mark.parametrize("kind", FORMATS)
def test_what_was_delivered_is_not_delivered_again(tmp_path: Path, kind: Any) -> None:
    writer = opened(kind(tmp_path / "out"), tmp_path)
    writer.recover()
    writer.deliver([(1, rows(1)), (2, rows(2))], 2)
    writer.deliver([(1, rows(1)), (2, rows(2))], 2)
    again = opened(kind(tmp_path / "out"), tmp_path)
    again.recover()
    again.deliver([(2, rows(2))], 2)
    again.deliver([(2, rows(2)), (3, rows(3))], 4)
    assert ids(tmp_path / "out") == [1, 2, 3]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_range_without_rows_makes_no_file(tmp_path: Path, kind: Any) -> None:
    writer = opened(kind(tmp_path / "out"), tmp_path)
    writer.recover()
    writer.deliver([], 5)
    writer.deliver([(6, rows())], 6)
    assert list((tmp_path / "out").iterdir()) == []
    assert us.read_output(tmp_path / "out").num_rows == 0
    writer.deliver([(5, rows(1)), (7, rows(2))], 7)
    assert ids(tmp_path / "out") == [2]


@pytest.mark.parametrize("kind", FORMATS)
def test_what_a_crash_left_half_written_is_removed(tmp_path: Path, kind: Any) -> None:
    out = tmp_path / "out"
    writer = opened(kind(out), tmp_path)
    writer.recover()
    writer.deliver([(1, rows(1))], 1)
    finished = next(iter(out.iterdir()))
    half = out / f".unfinished-{file_name(2, 2, finished.suffix[1:])}"
    half.write_bytes(finished.read_bytes()[:5])
    (out / "notes.txt").write_text("not ours")
    assert ids(out) == [1]
    again = opened(kind(out), tmp_path)
    assert again.recover() == 1
    assert not half.exists()
    assert (out / "notes.txt").exists()


@pytest.mark.parametrize("kind", FORMATS)
def test_a_path_that_cannot_be_written_is_named_at_the_start(tmp_path: Path, kind: Any) -> None:
    (tmp_path / "out").write_text("a file in the way")
    with pytest.raises(us.EnvironmentFailed, match=r"Output cannot be written to .*out"):
        opened(kind(tmp_path / "out"), tmp_path).recover()


def test_a_folder_that_goes_away_fails_the_delivery_and_keeps_the_position(tmp_path: Path) -> None:
    writer = opened(us.Parquet(tmp_path / "out"), tmp_path)
    writer.recover()
    (tmp_path / "out").rmdir()
    with pytest.raises(us.EnvironmentFailed, match="Output cannot be written"):
        writer.deliver([(1, rows(1))], 1)
    (tmp_path / "out").mkdir()
    writer.deliver([(1, rows(1))], 1)
    assert ids(tmp_path / "out") == [1]


def test_a_delivery_out_of_order_is_our_bug(tmp_path: Path) -> None:
    writer = opened(us.Parquet(tmp_path / "out"), tmp_path)
    writer.recover()
    for wrong in ([(2, rows(1)), (1, rows(2))], [(9, rows(1))]):
        with pytest.raises(BrokenInvariant):
            writer.deliver(wrong, 5)
    assert ids(tmp_path / "out") == []


@given(st.lists(st.integers(-(2**61), 2**61), min_size=2, max_size=6))
def test_names_sort_like_their_ranges(numbers: list[int]) -> None:
    ordered = sorted(numbers)
    names = [file_name(number, number + 1, "parquet") for number in ordered]
    assert names == sorted(names)


def test_times_before_1970_are_delivered_in_order_too(tmp_path: Path) -> None:
    writer = opened(us.JsonLines(tmp_path), tmp_path)
    writer.recover()
    for number in (-100, -99, -1, 0, 1):
        writer.deliver([(number, rows(number))], number)
    assert ids(tmp_path) == [-100, -99, -1, 0, 1]
    assert opened(us.JsonLines(tmp_path), tmp_path).recover() == 1


def test_json_lines_hold_every_type(tmp_path: Path) -> None:
    noon = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
    window = {"start": noon, "end": noon + dt.timedelta(seconds=10)}
    columns = {"window": [window], "price": [Decimal("1.50")], "raw": [b"\x00\xff"], "day": [noon.date()]}
    table = pa.table(columns).append_column(
        "counts", pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32()))
    )
    writer = opened(us.JsonLines(tmp_path), tmp_path)
    writer.recover()
    writer.deliver([(1, table)], 1)
    (line,) = next(iter(tmp_path.iterdir())).read_text().splitlines()
    assert json.loads(line) == {
        "window": {"start": "2024-05-01T12:00:00.000000Z", "end": "2024-05-01T12:00:10.000000Z"},
        "price": "1.50",
        "raw": "AP8=",
        "day": "2024-05-01",
        "counts": {"a": 1},
    }


def test_the_console_shows_the_range_and_the_first_rows() -> None:
    stream = io.StringIO()
    writer = ConsoleWriter("stats", 2, stream)
    assert writer.recover() == NOTHING
    writer.deliver([(1, rows(1)), (2, rows(2, 3))], 4)
    writer.deliver([(2, rows(2, 3))], 4)
    writer.deliver([], 9)
    assert stream.getvalue().splitlines() == [
        "stats  buckets 1 to 4, 3 rows",
        '  {"id": 1}',
        '  {"id": 2}',
        "  ... and 1 more",
    ]


def test_a_callback_goes_on_behind_its_last_call(tmp_path: Path) -> None:
    calls: list[tuple[list[int], int, int]] = []

    def called(table: pa.Table, first: int, through: int) -> None:
        calls.append((table.column("id").to_pylist(), first, through))

    writer = opened(us.Callback(called), tmp_path / "run")
    assert writer.recover() == NOTHING
    writer.deliver([(1, rows(1)), (2, rows(2))], 3)
    writer.deliver([], 4)
    again = opened(us.Callback(called), tmp_path / "run")
    assert again.recover() == 3
    again.deliver([(2, rows(2)), (5, rows(5))], 6)
    assert calls == [([1, 2], 1, 3), ([5], 5, 6)]


def test_a_callback_that_fails_is_called_again(tmp_path: Path) -> None:
    answers = iter([1 / 1, ZeroDivisionError("no")])
    seen: list[int] = []

    def called(table: pa.Table, first: int, through: int) -> None:
        seen.append(through)
        answer = next(answers, None)
        if isinstance(answer, Exception):
            raise answer

    writer = CallbackWriter(called, tmp_path / "stats.position")
    writer.recover()
    writer.deliver([(1, rows(1))], 1)
    with pytest.raises(us.UserError, match=r"called failed on buckets 2 to 2 \(1 rows\): ZeroDivisionError"):
        writer.deliver([(2, rows(2))], 2)
    assert CallbackWriter(called, tmp_path / "stats.position").recover() == 1
    writer.deliver([(2, rows(2))], 2)
    assert seen == [1, 2, 2]


def test_a_position_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "stats.position").write_text("twelve")
    with pytest.raises(us.EnvironmentFailed, match=r"stats\.position"):
        CallbackWriter(print, tmp_path / "stats.position").recover()


def test_reading_where_nothing_is_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(us.UserError, match="nowhere: there is no such folder"):
        us.read_output(tmp_path / "nowhere")
