"""Feeds on a real ingest: pacing, resuming after a crash, back pressure, bad content."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from feed_kit import SCHEMA, Script, generate, line, read_all, row, rows_of, started, written

import understudy as us
from understudy.runtime.ingest import file_blocks, files, state
from understudy.runtime.ingest.clients import Clients
from understudy.runtime.ingest.feed import open_feed, run_feed
from understudy.runtime.ingest.ingest import Ingest
from understudy.runtime.ingest.rows import to_table


def test_a_generators_rows_have_the_times_that_its_rate_gives(tmp_path: Path) -> None:
    rows = read_all(us.Generator(SCHEMA, generate, rows_per_s=300, seed=3, rows=1000), tmp_path)
    assert [row["id"] for row in rows] == list(range(1000))
    times = [int(row["ts"].timestamp() * 1_000_000) for row in rows]
    assert times[0] == 0
    assert times[300] == 1_000_000
    assert times[100] == 333_333
    assert rows[4]["word"] == "w0"


def test_a_generator_goes_on_after_crashes_as_if_there_were_none(tmp_path: Path) -> None:
    kind = us.Generator(SCHEMA, generate, rows_per_s=300, seed=3, rows=1000)
    assert read_all(kind, tmp_path / "a", crash_every=3) == read_all(kind, tmp_path / "b")


def test_a_generator_makes_only_what_is_due_and_catches_up(tmp_path: Path) -> None:
    ingest, reader, _ = started(us.Generator(SCHEMA, generate, rows_per_s=10), tmp_path)
    assert reader.step(5_000_000) == 5_100_000  # the first row is due at the start, the next 100 ms later
    assert reader.step(5_050_000) == 5_100_000
    reader.step(6_000_000)
    last = ingest.last("s", "reader")
    assert last is not None
    assert last.note == {"origin_us": 5_000_000, "next": 11}


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda seed, first, count: {"id": [1, 2, 3], "word": ["a"]}, "columns of other lengths"),
        (lambda seed, first, count: {"ts": [0] * count}, "made the time column 'ts'"),
        (lambda seed, first, count: {"id": ["x"] * count}, "field 'id': 'x' does not fit"),
        (lambda seed, first, count: 1 / 0, "asked for 1 rows from 0 on, failed: ZeroDivisionError"),
    ],
)
def test_a_generator_that_does_not_fit_is_named(tmp_path: Path, function: Any, says: str) -> None:
    _, reader, _ = started(us.Generator(SCHEMA, function, rows_per_s=1), tmp_path)
    with pytest.raises(us.UserError, match=says):
        reader.step(0)


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("crash_every", [None, 1, 2])
def test_files_are_read_completely_and_in_order_despite_crashes(
    tmp_path: Path, form: str, crash_every: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_blocks, "_BLOCK_BYTES", 150)
    kind = written(tmp_path / "in", form, files=3, rows=20)
    rows = read_all(kind, tmp_path, crash_every)
    assert [row["id"] for row in rows] == list(range(60))
    assert rows[41]["word"] == "wört 41"
    assert rows[41]["ts"].microsecond == 410_000


def test_a_followed_file_is_read_as_it_grows_but_never_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    ingest, reader, _ = started(us.Files(path, SCHEMA, follow=True), tmp_path)
    assert reader.step(0) == 200_000  # there is no file yet
    path.write_text(line(1) + "\n" + line(20)[:9])
    reader.step(0)
    assert reader.step(0) == 200_000
    with path.open("a") as file:
        file.write(line(20)[9:] + "\n")
    assert reader.step(0) == 0
    ingest.commit()
    assert [row["id"] for row in rows_of(ingest.take())] == [1]
    assert not ingest.closed("s")


def test_a_followed_folder_goes_on_with_the_next_name(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text(line(1))
    ingest, reader, _ = started(us.Files(folder, SCHEMA, follow=True), tmp_path)
    assert reader.step(0) == 200_000  # its last line may still grow
    (folder / "b.jsonl").write_text(line(20) + "\n")
    assert reader.step(0) == 0
    assert reader.step(0) == 0
    assert [row["id"] for row in rows_of(ingest.take())] == [1]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("x.jsonl", line(1) + "\n{oops}\n", r"x\.jsonl, line 2: not JSON"),
        ("x.jsonl", line(1) + "\n\n[1]\n", r"x\.jsonl, line 3: expected a JSON object"),
        (
            "x.jsonl",
            line(1) + '\n{"id": "one", "ts": 5}\n',
            r"x\.jsonl, line 2: .*field 'id': 'one' does not fit",
        ),
        (
            "x.csv",
            "id,ts\n1,2024-01-01\n2.5,2024-01-01\n",
            r"x\.csv, line 3: .*field 'id': '2.5' does not fit",
        ),
        ("x.csv", "id,ts\n1,noon\n", r"x\.csv, line 2: .*field 'ts': 'noon'"),
        ("x.csv", "id,ts\n1\n", r"x\.csv, line 2: 1 values for the 2 columns"),
        ("x.csv", 'id,ts\n1,"2024\n', r"x\.csv, line 2: unexpected end"),
        ("x.csv", "id,when\n", r"x\.csv, line 1: .*'when'"),
        ("x.parquet", "no parquet", r"x\.parquet is not a Parquet file"),
    ],
)
def test_bad_content_is_named_with_file_and_line(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    kind = us.Files(tmp_path / name, SCHEMA, format=name.split(".")[1])
    ingest, reader, _ = started(kind, tmp_path)
    with pytest.raises(us.RowError, match=says):
        reader.step(0)
    assert ingest.last("s", "reader") is None


def test_a_damaged_parquet_file_is_bad_content_and_no_failure_of_the_disk(tmp_path: Path) -> None:
    kind = written(tmp_path / "in", "parquet", files=1, rows=5)
    path = tmp_path / "in" / "part-000.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xff" * 60 + whole[64:])
    _, reader, _ = started(kind, tmp_path)
    with pytest.raises(us.RowError, match=r"part-000\.parquet is not a Parquet file"):
        reader.step(0)


def test_a_missing_file_is_named_unless_it_is_followed(tmp_path: Path) -> None:
    _, reader, _ = started(us.Files(tmp_path / "nowhere", SCHEMA), tmp_path)
    with pytest.raises(us.FlowError, match=r"no file or folder .*nowhere"):
        reader.step(0)


def test_a_csv_may_leave_columns_out_and_values_empty(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("id,ts\n,1970-01-01T00:00:00Z\n")
    (row,) = read_all(us.Files(tmp_path / "x.csv", SCHEMA, format="csv"), tmp_path)
    assert (row["id"], row["word"]) == (None, None)


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_a_file_whose_name_is_not_utf_8_is_read_like_any_other(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "in"
    kind = written(folder, form, files=3, rows=5)
    (folder / f"part-001.{form}").rename(folder / os.fsdecode(b"part-001\xff." + form.encode()))
    assert [row["id"] for row in read_all(kind, tmp_path, crash_every=1)] == list(range(15))


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_a_file_that_the_disk_does_not_give_may_be_read_later(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "in"
    kind = written(folder, form, files=1, rows=5)
    # Nothing is mapped at the start of a process's memory: reading there fails as on a broken disk.
    (folder / f"part-000.{form}").rename(tmp_path / "kept")
    (folder / f"part-000.{form}").symlink_to("/proc/self/mem")
    ingest, reader, _ = started(kind, tmp_path)
    with pytest.raises(us.EnvironmentFailed, match=r"source 's': .*part-000\..* cannot be read: \[Errno"):
        reader.step(0)
    ingest.close()
    (tmp_path / "kept").replace(folder / f"part-000.{form}")
    assert len(read_all(kind, tmp_path)) == 5


def test_a_followed_parquet_file_is_waited_for_until_it_is_complete(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "in"
    written(folder, "parquet", files=3, rows=5)
    half = folder / "part-001.parquet"
    whole = half.read_bytes()
    ingest, reader, _ = started(us.Files(folder, SCHEMA, format="parquet", follow=True), tmp_path)
    for size in (0, 3, len(whole) // 2, len(whole) - 1):
        half.write_bytes(whole[:size])
        while reader.step(0) == 0:
            pass
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"{half} is not a Parquet file" in warning
    assert ingest.rows_taken == 5
    half.write_bytes(whole)
    while reader.step(0) == 0:
        pass
    ingest.close_source("s")
    ingest.commit()
    assert [row["id"] for row in rows_of(ingest.take())] == list(range(15))


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_an_empty_file_has_no_rows(tmp_path: Path, form: str) -> None:
    kind = written(tmp_path / "in", form, files=3, rows=5)
    for index in (0, 2):
        (tmp_path / "in" / f"part-00{index}.{form}").write_bytes(b"")
    assert [row["id"] for row in read_all(kind, tmp_path)] == list(range(5, 10))


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_a_followed_file_that_is_empty_is_passed_over_once_another_one_was_begun(
    tmp_path: Path, form: str
) -> None:
    folder = tmp_path / "in"
    written(folder, form, files=3, rows=5)
    (folder / f"part-001.{form}").write_text("")
    ingest, reader, _ = started(us.Files(folder, SCHEMA, format=form, follow=True), tmp_path)
    for _ in range(3):
        reader.step(0)
    ingest.close_source("s")
    ingest.commit()
    # The very last line of the jsonl has no end yet.
    assert [row["id"] for row in rows_of(ingest.take())][:9] == [*range(5), *range(10, 14)]


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_the_last_followed_file_may_stay_empty_for_as_long_as_it_likes(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "UNCHANGED_US_MAX", 1_000_000)
    folder = tmp_path / "in"
    written(folder, form, files=2, rows=5)
    last = folder / f"part-001.{form}"
    text = last.read_bytes()
    last.write_bytes(b"")
    ingest, reader, _ = started(us.Files(folder, SCHEMA, format=form, follow=True), tmp_path)
    for _ in range(20):
        reader.step(0)
    last.write_bytes(text + b"\n" if form == "jsonl" else text)
    while reader.step(0) == 0:
        pass
    assert ingest.rows_taken == 10


def test_a_followed_parquet_file_that_stays_incomplete_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "UNCHANGED_US_MAX", 1_000_000)
    path = tmp_path / "x.parquet"
    _, reader, _ = started(us.Files(path, SCHEMA, format="parquet", follow=True), tmp_path)
    for text in ("PAR1", "PAR1 and more"):
        path.write_text(text)
        # The clock that is set forward here is not the one that counts.
        assert [reader.step(now_us) for now_us in (0, 0, 0, 10**15, 0)][-1] == 200_000
    with pytest.raises(us.RowError, match=r"x\.parquet is not a Parquet file"):
        reader.step(0)


def test_the_loop_asks_before_each_push_and_ends_when_stopped(tmp_path: Path) -> None:
    ingest, reader, _ = started(us.Generator(SCHEMA, generate, rows_per_s=1e6), tmp_path)
    answers = iter([True, True, False])
    clock = iter(range(0, 10_000_000, 100_000))
    run_feed(reader, lambda: next(answers), lambda: next(clock), Event())
    last = ingest.last("s", "reader")
    assert last is not None
    assert last.sequence == 1
    stopped = Event()
    stopped.set()
    run_feed(reader, lambda: True, lambda: next(clock), stopped)
    assert ingest.last("s", "reader") == last


def test_a_pushed_source_has_no_feed(tmp_path: Path) -> None:
    flow = us.Flow("f")
    source = flow.source("s", us.Push(SCHEMA), time="ts")
    assert open_feed(Ingest(flow, tmp_path, sync=False), source) is None


def test_a_reader_of_the_users_goes_on_behind_its_last_position(tmp_path: Path) -> None:
    kind = Script(tuple(us.Batch([row(n)], {"next": n + 1}, ended=n == 9) for n in range(10)))
    rows = read_all(kind, tmp_path, crash_every=3)
    assert [each["id"] for each in rows] == list(range(10))


def test_a_silent_reader_goes_on_behind_its_position_however_many_clients_push_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "Clients", lambda: Clients(limit=5))
    (tmp_path / "in.jsonl").write_text("".join(line(n) + "\n" for n in range(3)))
    flow = us.Flow("f", bucket="100 ms")
    followed = flow.source("s", us.Files(tmp_path / "in.jsonl", SCHEMA, follow=True), time="ts")
    pushed = flow.source("pushed", us.Push(SCHEMA), time="ts")

    def read(clients: int) -> int:
        """How many rows the reader had, before so many clients pushed."""
        ingest = Ingest(flow, tmp_path / "log", sync=False)
        ingest.recover()
        feed = open_feed(ingest, followed)
        assert feed is not None
        for _ in range(3):
            feed.step(0)
        rows = ingest.rows_taken
        for number in range(clients):
            # One of them has the name under which readers push.
            name = "reader" if number == 3 else f"client-{number}"
            ingest.push("pushed", to_table(pushed, [row(number)]), name, 0, now_us=0)
        ingest.commit()
        ingest.close()
        return rows

    assert [read(clients=20), read(clients=0)] == [3, 0]


@pytest.mark.parametrize(
    ("item", "says"),
    [
        (ZeroDivisionError("no"), "source 's': its reader failed: ZeroDivisionError: no"),
        (us.UserError("the table is gone"), "^the table is gone$"),
        ("rows", "its reader returned 'rows', not a Batch"),
        (us.Batch([row(1)], {1, 2}), r"position of its reader is no JSON: \{1, 2\}"),
        (us.Batch([{"id": "x"}], 1), "field 'id': 'x' does not fit"),
    ],
)
def test_a_reader_that_fails_is_named_and_nothing_of_its_batch_is_kept(
    tmp_path: Path, item: Any, says: str
) -> None:
    ingest, feed, _ = started(Script((item,)), tmp_path)
    with pytest.raises(us.UserError, match=says):
        feed.step(0)
    assert ingest.last("s", "reader") is None


def test_a_reader_without_rows_is_not_asked_in_a_tight_loop(tmp_path: Path) -> None:
    _, feed, _ = started(Script((us.Batch(), us.Batch([]), us.Batch([row(1)], 1))), tmp_path)
    assert [feed.step(1_000_000) for _ in range(3)] == [1_010_000, 1_010_000, 0]


def test_a_reader_is_closed_when_its_source_ends(tmp_path: Path) -> None:
    _, feed, _ = started(Script((us.Batch(ended=True),)), tmp_path)
    run_feed(feed, lambda: True, lambda: 0, Event())
    assert feed._reader.closed  # type: ignore[attr-defined]


def test_a_file_that_appears_before_those_already_read_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "b.jsonl").write_text(line(1) + "\n")
    (folder / "c.jsonl").touch()
    (folder / "d.jsonl").write_text(line(2) + "\n")
    _, reader, _ = started(us.Files(folder, SCHEMA, follow=True), tmp_path)
    for _ in range(3):
        reader.step(0)
    assert not caplog.text
    (folder / "a.jsonl").write_text(line(3) + "\n")
    for _ in range(3):
        reader.step(0)
    assert [record.getMessage().split(", for ")[0] for record in caplog.records] == [
        f"source 's': {folder}/a.jsonl is not read"
    ]
