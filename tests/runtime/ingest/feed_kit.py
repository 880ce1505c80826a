"""Feeds on a real ingest, and sources for them: generated, written into files, scripted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import understudy as us
from understudy.flow.kinds import SourceKind
from understudy.runtime.ingest.feed import Feed, open_feed
from understudy.runtime.ingest.ingest import Ingest

SCHEMA = "id bigint, word string, ts timestamp"


def generate(seed: int, first: int, count: int) -> dict[str, Any]:
    ids = np.arange(first, first + count)
    return {"id": ids, "word": [f"w{(seed * 7 + n) % 5}" for n in ids.tolist()]}


def started(kind: SourceKind, folder: Path) -> tuple[Ingest, Feed, list[dict[str, Any]]]:
    """An ingest, its source's reader, and the rows that its log still holds."""
    flow = us.Flow("f", bucket="100 ms")
    flow.source("s", kind, time="ts")
    ingest = Ingest(flow, folder / "log", sync=False)
    rows = rows_of(ingest.recover())
    reader = open_feed(ingest, flow.sources["s"])
    assert reader is not None
    return ingest, reader, rows


def rows_of(buckets: list[Any]) -> list[dict[str, Any]]:
    return [row for b in buckets if b.table is not None for row in b.table.to_pylist()]


def read_all(kind: SourceKind, folder: Path, crash_every: int | None = None) -> list[dict[str, Any]]:
    """All rows of a source that ends; with a crash after every so many steps."""
    now_us, steps, due = 0, 0, 0
    ingest, reader, _ = started(kind, folder)
    while due is not None:
        due = reader.step(now_us)
        now_us = max(now_us, due or 0)
        steps += 1
        assert steps < 10_000
        if crash_every and steps % crash_every == 0:
            ingest.close()
            ingest, reader, _ = started(kind, folder)
    ingest.close()
    ingest, _, rows = started(kind, folder)
    ingest.close()
    return rows


def line(number: int) -> str:
    return json.dumps({"id": number, "word": f"wört {number}", "ts": number * 10_000})


def written(folder: Path, form: str, files: int, rows: int) -> us.Files:
    """A folder of files that together hold the rows 0, 1, 2, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(files):
        numbers = range(index * rows, (index + 1) * rows)
        path = folder / f"part-{index:03d}.{form}"
        if form == "jsonl":
            path.write_text("\n".join(line(n) for n in numbers))
        elif form == "csv":
            times = [str(np.datetime64(n * 10_000, "us")) for n in numbers]
            table = [f'{t},"wört {n}",{n}' for n, t in zip(numbers, times, strict=True)]
            path.write_text("\n".join(["ts,word,id", *table, ""]))
        else:
            times_us = pa.array([n * 10_000 for n in numbers], pa.timestamp("us", "UTC"))
            columns = {"id": list(numbers), "word": [f"wört {n}" for n in numbers], "ts": times_us}
            pq.write_table(pa.table(columns), path, row_group_size=7)
    (folder / "_SUCCESS").touch()
    return us.Files(folder, SCHEMA, format=form)


class Scripted(us.Reader):
    """Returns the given items, one after the other."""

    def __init__(self, script: list[Any]) -> None:
        self._script = script
        self.closed = False

    def read(self, now_us: int) -> us.Batch:
        item = self._script.pop(0)
        if isinstance(item, Exception):
            raise item
        return item  # type: ignore[no-any-return]

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True)
class Script(us.SourceKind):
    items: tuple[Any, ...]
    schema: str = SCHEMA

    def open(self, source: Any, position: Any) -> us.Reader:
        return Scripted(list(self.items)[0 if position is None else position["next"] :])


def row(number: int) -> dict[str, Any]:
    return {"id": number, "ts": number}
