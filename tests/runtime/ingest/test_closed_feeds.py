"""A client closes a source that reads its rows itself: it ends behind the rows that are there."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from feed_kit import SCHEMA, Script, Scripted, generate, row, rows_of, started, written

import understudy as us
from understudy.runtime.ingest.feed import Feed, run_feed
from understudy.runtime.ingest.ingest import Ingest


def left_of(ingest: Ingest, feed: Feed) -> list[int]:
    """The ids of the rows that a closed source still had."""
    feed.finish()
    while feed.step(0) is not None:
        pass
    assert ingest.closed("s")
    return [row["id"] for row in rows_of(ingest.take())]


def test_a_source_that_a_client_closes_ends_behind_the_rows_that_are_there(tmp_path: Path) -> None:
    script = (*(us.Batch([row(n)], n) for n in range(3)), us.Batch(), us.Batch([row(9)], 9))
    ingest, feed, _ = started(Script(script), tmp_path)
    assert feed.step(0) == 0
    assert left_of(ingest, feed) == [0, 1, 2]


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_a_followed_folder_that_is_closed_before_it_was_read_is_read_to_its_end(
    tmp_path: Path, form: str
) -> None:
    folder = tmp_path / "in"
    written(folder, form, files=3, rows=5)
    last = folder / f"part-002.{form}"
    if form != "parquet":
        last.write_text(last.read_text().rstrip("\n"))
    ingest, feed, _ = started(us.Files(folder, SCHEMA, format=form, follow=True), tmp_path)
    assert left_of(ingest, feed) == list(range(15))


def test_a_parquet_file_that_is_being_written_when_its_source_is_closed_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    written(folder, "parquet", files=2, rows=5)
    half = folder / "part-001.parquet"
    whole = half.read_bytes()
    half.write_bytes(whole[:-1])
    ingest, feed, _ = started(us.Files(folder, SCHEMA, format="parquet", follow=True), tmp_path)
    feed.finish()
    for _ in range(5):
        assert feed.step(0) is not None
    half.write_bytes(whole)
    assert left_of(ingest, feed) == list(range(10))


def test_a_generator_ends_where_it_is_closed(tmp_path: Path) -> None:
    ingest, feed, _ = started(us.Generator(SCHEMA, generate, rows_per_s=1e6), tmp_path)
    feed.step(0)
    taken = ingest.rows_taken
    assert len(left_of(ingest, feed)) == taken


def test_a_reader_that_rests_for_long_hears_at_once_that_its_source_is_closed(tmp_path: Path) -> None:
    script = (us.Batch(again_us=3_600_000_000), us.Batch([row(1)], 1), us.Batch())
    ingest, feed, _ = started(Script(script), tmp_path)
    running = Thread(target=run_feed, args=(feed, lambda: True, lambda: 0, Event()), daemon=True)
    running.start()
    feed.finish()
    running.join(timeout=30)
    assert not running.is_alive()
    assert ingest.rows_taken == 1


def test_a_reader_is_told_once_that_its_source_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Scripted] = []
    monkeypatch.setattr(Scripted, "finish", lambda reader: bool(told.append(reader)))
    _, feed, _ = started(Script((us.Batch([row(1)], 1), us.Batch())), tmp_path)
    feed.finish()
    assert feed.step(0) is not None
    feed.finish()
    assert feed.step(0) is None
    assert len(told) == 1


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_a_file_that_is_still_empty_when_its_source_is_closed_has_no_rows(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "in"
    written(folder, form, files=1, rows=5)
    (folder / f"part-001.{form}").touch()
    ingest, feed, _ = started(us.Files(folder, SCHEMA, format=form, follow=True), tmp_path)
    assert left_of(ingest, feed) == list(range(5))


def refusal_of(path: Path, folder: Path) -> str:
    """Why a followed file that is closed cannot be read."""
    _, feed, _ = started(us.Files(path, SCHEMA, format=path.suffix[1:], follow=True), folder)
    feed.finish()
    with pytest.raises(us.RowError) as raised:
        while feed.step(0) is not None:
            pass
    return str(raised.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("in.jsonl", '{"id": 1, "ts": 0}\n{"id": 2, "t'),
        ("in.csv", "id,ts\n1,1970-01-01\n2,197"),
        ("in.csv", "id,t"),
    ],
)
def test_half_a_line_when_its_source_is_closed_is_named_as_such(tmp_path: Path, name: str, text: str) -> None:
    half = tmp_path / name
    half.write_text(text)
    assert f"closed while the last line of {name} had no end" in refusal_of(half, tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("in.jsonl", "no json\n"),
        ("in.jsonl", 'no json\n{"id": 2, "ts": 0}'),
        ("in.csv", "id,ts\none,1970-01-01\n2,1970-01-01"),
        ("in.csv", "id,when\n2,1970-01-01"),
    ],
)
def test_a_bad_line_of_a_closed_source_is_not_blamed_on_its_closing(
    tmp_path: Path, name: str, text: str
) -> None:
    bad = tmp_path / name
    bad.write_text(text)
    assert "had no end" not in refusal_of(bad, tmp_path)


def test_a_parquet_file_of_a_closed_source_has_no_last_line(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"id": ["one"], "ts": [0]}), path)
    assert "had no end" not in refusal_of(path, tmp_path)


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_a_file_that_was_emptied_behind_its_reader_is_named_when_its_source_is_closed(
    tmp_path: Path, form: str
) -> None:
    written(tmp_path / "in", form, files=1, rows=5)
    _, feed, _ = started(us.Files(tmp_path / "in", SCHEMA, format=form, follow=True), tmp_path)
    assert feed.step(0) == 0
    (tmp_path / "in" / f"part-000.{form}").write_text("")
    feed.finish()
    with pytest.raises(us.RowError, match=rf"part-000\.{form} is now shorter than what was read of it\.$"):
        feed.step(0)


def test_an_incomplete_parquet_file_that_is_removed_no_longer_keeps_a_closed_source(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    written(folder, "parquet", files=2, rows=5)
    damaged = folder / "part-001.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    ingest, feed, _ = started(us.Files(folder, SCHEMA, format="parquet", follow=True), tmp_path)
    feed.finish()
    for _ in range(3):
        assert feed.step(0) is not None
    damaged.unlink()
    assert left_of(ingest, feed) == list(range(5))
