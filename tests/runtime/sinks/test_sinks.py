"""Writers of Understudy's own kinds of sinks: complete files, positions that survive, honest failures."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import understudy as us
from disk_kit import DiskRecord
from understudy.runtime.folder_lock import OUTPUT_LOCK
from understudy.runtime.sinks.naming import file_name

FORMATS = [us.Parquet, us.JsonLines]

_DAYS_IN_LISTS = pa.list_(pa.struct([("at", pa.date32())]))


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def opened(kind: us.SinkKind) -> us.Writer:
    return kind.open("stats", Path("nowhere"))


def ids(folder: Path) -> list[int]:
    table = us.read_output(folder)
    return table.column("id").to_pylist() if table.num_columns else []


@pytest.mark.parametrize("kind", FORMATS)
def test_each_range_is_one_file_and_the_position_survives(tmp_path: Path, kind: Any) -> None:
    out = tmp_path / "deep" / "out"
    assert kind(out).earlier_output() is None
    writer = opened(kind(out))
    assert writer.recover() is None
    writer.deliver(rows(1, 2, 3), 3, 9)
    writer.deliver(rows(4), 10, 10)
    assert len(list(out.iterdir())) == 2
    assert ids(out) == [1, 2, 3, 4]
    assert opened(kind(out)).recover() == 10
    assert kind(out).earlier_output() == str(out)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_is_synced_before_it_has_its_name_and_its_name_before_it_counts(
    tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = opened(kind(tmp_path))
    writer.recover()
    disk = DiskRecord(tmp_path, monkeypatch)
    writer.deliver(rows(1, 2, 3), 3, 9)
    (file,) = tmp_path.iterdir()
    hidden = f".unfinished-{file.name}"
    assert disk.steps == [f"sync {hidden}", f"rename {hidden} to {file.name}", "sync ."]
    assert disk.synced[hidden] == file.read_bytes()


@pytest.mark.parametrize("kind", FORMATS)
def test_the_folder_of_the_files_is_on_disk_with_its_name(
    tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskRecord(tmp_path, monkeypatch)
    opened(kind(tmp_path / "deep" / "out")).recover()
    assert disk.steps == ["sync .", "sync deep"]


@pytest.mark.parametrize("kind", FORMATS)
def test_what_a_crash_left_half_written_is_removed(tmp_path: Path, kind: Any) -> None:
    out = tmp_path / "out"
    writer = opened(kind(out))
    writer.recover()
    writer.deliver(rows(1), 1, 1)
    finished = next(iter(out.iterdir()))
    half = out / f".unfinished-{file_name(2, 2, finished.suffix[1:])}"
    half.write_bytes(finished.read_bytes()[:5])
    (out / "notes.txt").write_text("not ours")
    assert ids(out) == [1]
    assert opened(kind(out)).recover() == 1
    assert not half.exists()
    assert (out / "notes.txt").exists()


@pytest.mark.parametrize("kind", FORMATS)
def test_a_path_that_cannot_be_written_is_named_at_the_start(tmp_path: Path, kind: Any) -> None:
    (tmp_path / "out").write_text("a file in the way")
    with pytest.raises(us.EnvironmentFailed, match=r"Output cannot be written to .*out"):
        opened(kind(tmp_path / "out")).recover()


def test_a_folder_that_goes_away_fails_the_delivery_and_keeps_the_position(tmp_path: Path) -> None:
    writer = opened(us.Parquet(tmp_path / "out"))
    writer.recover()
    (tmp_path / "out").rmdir()
    with pytest.raises(us.EnvironmentFailed, match="Output cannot be written"):
        writer.deliver(rows(1), 1, 1)
    (tmp_path / "out").mkdir()
    assert opened(us.Parquet(tmp_path / "out")).recover() is None


@settings(deadline=None)
@given(st.lists(st.integers(-(2**61), 2**61), min_size=2, max_size=6))
def test_names_sort_like_their_ranges(numbers: list[int]) -> None:
    ordered = sorted(numbers)
    names = [file_name(number, number + 1, "parquet") for number in ordered]
    assert names == sorted(names)


def test_times_before_1970_are_delivered_in_order_too(tmp_path: Path) -> None:
    writer = opened(us.JsonLines(tmp_path))
    writer.recover()
    for number in (-100, -99, -1, 0, 1):
        writer.deliver(rows(number), number, number)
    assert ids(tmp_path) == [-100, -99, -1, 0, 1]
    assert opened(us.JsonLines(tmp_path)).recover() == 1


def test_json_lines_hold_every_type(tmp_path: Path) -> None:
    noon = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
    window = {"start": noon, "end": noon + dt.timedelta(seconds=10)}
    columns = {"window": [window], "price": [Decimal("1.50")], "raw": [b"\x00\xff"], "day": [noon.date()]}
    table = pa.table(columns).append_column(
        "counts", pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32()))
    )
    writer = opened(us.JsonLines(tmp_path))
    writer.recover()
    writer.deliver(table, 1, 1)
    (line,) = next(iter(tmp_path.iterdir())).read_text().splitlines()
    assert json.loads(line) == {
        "window": {"start": "2024-05-01T12:00:00.000000Z", "end": "2024-05-01T12:00:10.000000Z"},
        "price": "1.50",
        "raw": "AP8=",
        "day": "2024-05-01",
        "counts": {"a": 1},
    }


def test_times_beyond_the_years_of_python_are_texts_in_json_lines(tmp_path: Path) -> None:
    moments = [253_402_300_800_000_001, 0, None, -62_135_596_800_000_001, 2**63 - 1]
    days = [2_932_897, 0, None, -719_163, 2**31 - 1]
    at = pa.array(moments, pa.int64()).cast(pa.timestamp("us", tz="Europe/Berlin"))
    table = pa.table(
        {
            "at": at,
            "local": at.cast(pa.int64()).cast(pa.timestamp("us")),
            "day": pa.array(days, pa.int32()).cast(pa.date32()),
        }
    )
    table = table.append_column("in", pa.array([[{"at": day}] for day in days], _DAYS_IN_LISTS))
    writer = opened(us.JsonLines(tmp_path))
    writer.recover()
    writer.deliver(table, 1, 1)
    said = ["10000-01-01T00:00:00.000001", "1970-01-01T00:00:00.000000", None, "0000-12-31T23:59:59.999999"]
    said += ["294247-01-10T04:00:54.775807"]
    texts = ["10000-01-01", "1970-01-01", None, "0000-12-31", "5881580-07-11"]
    assert us.read_output(tmp_path).to_pydict() == {
        "at": [text and f"{text}Z" for text in said],
        "local": said,
        "day": texts,
        "in": [[{"at": text}] for text in texts],
    }


@pytest.mark.parametrize(
    ("kind", "key", "text"),
    [
        (pa.date32(), dt.date(2024, 5, 1), "2024-05-01"),
        (pa.date32(), 2_932_897, "10000-01-01"),
        (pa.timestamp("us", tz="UTC"), dt.datetime(2024, 5, 1, tzinfo=dt.UTC), "2024-05-01T00:00:00.000000Z"),
        (pa.decimal128(9, 2), Decimal("1.50"), "1.50"),
        (pa.binary(), b"\x00\xff", "AP8="),
        (pa.duration("us"), dt.timedelta(seconds=90), "0:01:30"),
        (pa.int64(), 7, "7"),
        (pa.bool_(), True, "true"),
        (
            pa.struct([("n", pa.int32()), ("day", pa.date32())]),
            {"n": 1, "day": 0},
            '{"n": 1, "day": "1970-01-01"}',
        ),
        (pa.list_(pa.int32()), [1, 2], "[1, 2]"),
    ],
    ids=str,
)
def test_keys_of_maps_in_json_lines_are_the_texts_of_their_values(
    tmp_path: Path, kind: pa.DataType, key: Any, text: str
) -> None:
    maps = pa.array([None, [], [(key, dt.date(2024, 5, 2))], [(key, None)]], pa.map_(kind, pa.date32()))
    writer = opened(us.JsonLines(tmp_path))
    writer.recover()
    # A part of a table, as the console shows one, is not the beginning of its arrays.
    writer.deliver(pa.table({"named": maps}).slice(1), 1, 1)
    (file,) = tmp_path.iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines == [{"named": {}}, {"named": {text: "2024-05-02"}}, {"named": {text: None}}]
    assert us.read_output(tmp_path).to_pydict() == {
        "named": [{text: None}, {text: "2024-05-02"}, {text: None}]
    }


def test_a_row_of_any_length_is_read_from_json_lines(tmp_path: Path) -> None:
    texts = ["short", "x" * (3 << 20), "short", "y" * (2 << 20)]
    writer = opened(us.JsonLines(tmp_path))
    writer.recover()
    writer.deliver(pa.table({"id": range(4), "text": texts}), 1, 1)
    table = us.read_output(tmp_path)
    assert (table.column_names, table.column("text").to_pylist()) == (["id", "text"], texts)


def test_texts_in_json_lines_stay_texts_even_if_all_look_like_times(tmp_path: Path) -> None:
    writer = opened(us.JsonLines(tmp_path))
    writer.recover()
    both: list[dict[str, Any]] = []
    for number, text in enumerate(["2024-05-01T12:00:00Z", "hello", "2024-05-01", "2024-05-01 12:00:00"]):
        row = {
            "n": 1.5,
            "said": text,
            "all": [{"at": text, "n": number}],
            "z": None,
            "in": {"a": [text], "b": 1},
        }
        writer.deliver(pa.Table.from_pylist([row]), number, number)
        both.append(row)
    table = us.read_output(tmp_path)
    assert table.to_pylist() == both
    assert table.column_names == list(both[0])


def test_times_and_days_in_json_lines_are_read_as_the_texts_that_they_are(tmp_path: Path) -> None:
    noon = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
    writer = opened(us.JsonLines(tmp_path))
    writer.recover()
    writer.deliver(pa.table({"at": [noon], "day": [noon.date()]}), 1, 1)
    assert us.read_output(tmp_path).to_pylist() == [
        {"at": "2024-05-01T12:00:00.000000Z", "day": "2024-05-01"}
    ]


def test_the_console_shows_the_range_and_the_first_rows(capsys: pytest.CaptureFixture[str]) -> None:
    writer = opened(us.Console(rows_max=2))
    assert writer.recover() is None
    writer.deliver(rows(1, 2, 3), 1, 4)
    assert capsys.readouterr().out.splitlines() == [
        "stats  buckets 1 to 4, 3 rows",
        '  {"id": 1}',
        '  {"id": 2}',
        "  ... and 1 more",
    ]


def test_a_callback_gets_the_rows_and_their_range() -> None:
    calls: list[tuple[list[int], int, int]] = []

    def called(table: pa.Table, first: int, through: int) -> None:
        calls.append((table.column("id").to_pylist(), first, through))

    writer = opened(us.Callback(called))
    assert writer.recover() is None
    writer.deliver(rows(1, 2), 1, 3)
    assert calls == [([1, 2], 1, 3)]


def test_reading_where_nothing_is_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(us.UserError, match="nowhere: there is no such folder"):
        us.read_output(tmp_path / "nowhere")


def test_a_folder_to_which_no_sink_writes_is_told_from_one_without_rows(tmp_path: Path) -> None:
    for sink in ("counts", "sums"):
        (tmp_path / sink).mkdir()
        (tmp_path / sink / OUTPUT_LOCK).touch()
    assert us.read_output(tmp_path / "counts").num_rows == 0
    with pytest.raises(us.UserError, match=f"Below it there are: {tmp_path}/counts, {tmp_path}/sums"):
        us.read_output(tmp_path)
