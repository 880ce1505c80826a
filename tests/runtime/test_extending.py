"""The examples of docs/extending.md, run as they stand there: on a real log, with crashes."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import understudy as us
from understudy.core.bucket import NOTHING, Bucket
from understudy.core.shape.partition import Partition
from understudy.flow.loading import load
from understudy.runtime.gateway.delivery import Delivery
from understudy.runtime.ingest.feed import Feed, open_feed
from understudy.runtime.ingest.ingest import Ingest
from understudy.runtime.payload import encode

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


@pytest.fixture
def flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> us.Flow:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    file = tmp_path / "words.py"
    file.write_text("\n\n".join(blocks))
    return load(file)


def test_explain_shows_the_kinds_of_the_page(flow: us.Flow) -> None:
    text = flow.explain()
    assert "source events  <- SqliteTable" in text
    assert "writes    the table counts in counts.db" in text


def append(first: int, count: int) -> None:
    with closing(sqlite3.connect("events.db")) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS events (id INTEGER, word TEXT, ts_us INTEGER)")
        rows = [(number, f"w{number % 3}", number * 10_000) for number in range(first, first + count)]
        database.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)


def opened(flow: us.Flow, folder: Path) -> tuple[Ingest, Feed]:
    ingest = Ingest(flow, folder / "log", sync=False)
    ingest.recover()
    feed = open_feed(ingest, flow.sources["events"])
    assert feed is not None
    return ingest, feed


def test_the_source_of_the_page_reads_every_row_once_across_crashes(flow: us.Flow, tmp_path: Path) -> None:
    for life in range(4):
        append(1 + 1_500 * life, 1_500)
        ingest, feed = opened(flow, tmp_path)
        # In every other life the process dies with half of the rows unread.
        for _ in range(1 + life % 2):
            assert feed.step(10**15) is not None
        ingest.close()
    ingest, feed = opened(flow, tmp_path)
    while (due_us := feed.step(10**15)) == 0:
        pass
    assert due_us == 10**15 + 200_000, "no more rows, so it waits"
    ingest.close_source("events")
    ingest.commit()
    ingest.close()
    buckets = Ingest(flow, tmp_path / "log", sync=False).recover()
    ids = [n for each in buckets if each.table is not None for n in each.table.column("id").to_pylist()]
    assert ids == list(range(1, 6_001))


def bucket(number: int) -> Bucket:
    table = pa.table({"word": [f"w{number}"], "n": [number]})
    payload = encode({"counts": table})
    return Bucket(number, ((Partition("counts", 0), payload),), len(payload))


def in_sink() -> list[int]:
    with closing(sqlite3.connect("counts.db")) as database:
        return [n for (n,) in database.execute("SELECT n FROM counts ORDER BY rowid")]


class Crash(BaseException):
    """The process died here."""


def deliver(flow: us.Flow, folder: Path, through: int, monkeypatch: pytest.MonkeyPatch, *, dies: bool) -> int:
    """One life of the gateway's delivery. Returns the position that it began with."""
    failures: list[BaseException] = []
    delivery = Delivery(flow, folder, lambda _sink, _done: None, failures.append)
    positions, _ = delivery.recover()
    writer = delivery._sinks["counts"]._writer
    honest = writer.deliver

    def crashing(rows: Any, first: int, through: int) -> None:
        honest(rows, first, through)
        raise Crash

    if dies:
        monkeypatch.setattr(writer, "deliver", crashing)
    delivery.put("counts", [bucket(number) for number in range(max(0, positions["counts"] + 1), through + 1)])
    delivery.start()
    delivery.end()
    assert [type(failure) for failure in failures] == ([Crash] if dies else [])
    return positions["counts"]


def test_the_sink_of_the_page_holds_every_row_once_across_crashes(
    flow: us.Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert deliver(flow, tmp_path, 3, monkeypatch, dies=False) == NOTHING
    assert deliver(flow, tmp_path, 6, monkeypatch, dies=True) == 3
    assert deliver(flow, tmp_path, 9, monkeypatch, dies=False) == 6, "the transaction was complete"
    assert in_sink() == list(range(10))


def test_the_sink_of_the_page_refuses_the_output_of_another_run(
    flow: us.Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(flow, tmp_path / "first", 3, monkeypatch, dies=False)
    with pytest.raises(us.EnvironmentFailed, match="'counts' already holds results of another run"):
        deliver(flow, tmp_path / "second", 3, monkeypatch, dies=False)
