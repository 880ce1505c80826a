"""Readers: sources that fetch their rows themselves, as clients of ingress like any other.

A reader numbers its pushes, and each push's note in the log says where the next one starts. So a reader keeps
nothing of its own: after a crash it asks ingress for its last note and goes on exactly behind it.

`step` does one piece of work and says when the next is due; it never waits. `run_reader` is the loop around
it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import Event
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from understudy.flow.errors import FlowError, RowError, UserError
from understudy.flow.kinds import Files, Generator
from understudy.flow.model import Source
from understudy.flow.schema import TIMESTAMP
from understudy.runtime.ingest.file_blocks import Block, Cursor, next_block
from understudy.runtime.ingest.ingest import Ingest
from understudy.runtime.ingest.rows import to_table

#: The name under which every reader pushes to its source.
CLIENT = "reader"
_PUSH_ROWS_MAX = 50_000
_PERIOD_US = 20_000
_POLL_US = 200_000


class Reader(Protocol):
    def step(self, now_us: int) -> int | None:
        """Push the rows that are due, if any, and commit them. Never waits for rows.

        Returns the time at which the next step is due (now or earlier: at once), or None after the source was
        closed. A RowError or UserError says what is wrong with the rows; the source cannot go on.
        """


def open_reader(ingest: Ingest, source: Source) -> Reader | None:
    """The reader for a source; None for one that clients push to."""
    match source.kind:
        case Generator():
            return GeneratorReader(ingest, source, source.kind)
        case Files():
            return FilesReader(ingest, source, source.kind)
        case _:
            return None


def run_reader(
    reader: Reader,
    may_push: Callable[[], bool],
    clock_us: Callable[[], int],
    stop: Event,
    working: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Step until the source ends, `stop` is set, or `may_push` says no.

    `may_push` blocks while ingress has enough (back pressure) and returns False when it will never need more.
    Each step is made within `working`.
    """
    while not stop.is_set() and may_push():
        with working():
            due_us = reader.step(clock_us())
        if due_us is None:
            return
        stop.wait(max(0, due_us - clock_us()) / 1e6)


class GeneratorReader:
    """Row i happens, and is due, at origin + i / rate. The origin is the first step's time, from the log."""

    def __init__(self, ingest: Ingest, source: Source, kind: Generator) -> None:
        self._ingest = ingest
        self._source = source
        self._kind = kind
        last = ingest.last(source.name, CLIENT)
        self._sequence = last.sequence + 1 if last else 0
        self._origin_us: int | None = last.note["origin_us"] if last else None
        self._next = int(last.note["next"]) if last else 0

    def step(self, now_us: int) -> int | None:
        if self._ingest.closed(self._source.name):
            return None
        if self._origin_us is None:
            self._origin_us = now_us
        due = int((now_us - self._origin_us) * self._kind.rows_per_s / 1e6) + 1
        end = due if self._kind.rows is None else min(due, self._kind.rows)
        count = min(end - self._next, _PUSH_ROWS_MAX)
        if count > 0:
            table = self._generated(self._next, count)
            note = {"origin_us": self._origin_us, "next": self._next + count}
            self._ingest.push(self._source.name, table, CLIENT, self._sequence, note, now_us=now_us)
            self._next += count
            self._sequence += 1
        if self._next == self._kind.rows:
            self._ingest.close_source(self._source.name)
        self._ingest.commit()
        if self._ingest.closed(self._source.name):
            return None
        if self._next < end:
            return now_us
        return max(now_us + _PERIOD_US, int(self._times(self._next, 1)[0]))

    def _generated(self, first: int, count: int) -> pa.Table:
        where = f"source {self._source.name!r}: its generator, asked for {count} rows from {first} on,"
        try:
            made = self._kind.function(self._kind.seed, first, count)
        except Exception as problem:
            raise UserError(f"{where} failed: {type(problem).__name__}: {problem}.") from problem
        columns: dict[str, Any] = (
            {name: made.column(name) for name in made.column_names}
            if isinstance(made, pa.Table)
            else dict(made)
        )
        if self._source.time in columns:
            raise RowError(
                f"{where} made the time column {self._source.time!r}, which is filled in. Leave it out."
            )
        lengths = {name: len(column) for name, column in columns.items()}
        if any(length != count for length in lengths.values()):
            raise RowError(f"{where} made columns of other lengths: {lengths}.")
        columns[self._source.time] = pa.array(self._times(first, count)).cast(TIMESTAMP)
        return to_table(self._source, columns)

    def _times(self, first: int, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        # Row by row from its number: how rows are grouped into pushes must not show in their times.
        numbers = np.arange(first, first + count, dtype=np.float64)
        return (self._origin_us or 0) + np.floor(numbers * 1e6 / self._kind.rows_per_s).astype(np.int64)


class FilesReader:
    """Files in the order of their names; a block of rows is a push. With `follow`, only the last may grow."""

    def __init__(self, ingest: Ingest, source: Source, kind: Files) -> None:
        self._ingest = ingest
        self._source = source
        self._kind = kind
        self._path = Path(kind.path)
        last = ingest.last(source.name, CLIENT)
        self._sequence = last.sequence + 1 if last else 0
        self._cursor = Cursor(**last.note) if last else None

    def step(self, now_us: int) -> int | None:
        name = self._source.name
        if self._ingest.closed(name):
            return None
        block = self._next_block()
        if block is not None:
            self._ingest.push(name, block.table, CLIENT, self._sequence, block.cursor.note(), now_us=now_us)
            self._sequence += 1
            self._cursor = block.cursor
        elif not self._kind.follow:
            self._ingest.close_source(name)
        self._ingest.commit()
        if self._ingest.closed(name):
            return None
        return now_us if block is not None else now_us + _POLL_US

    def _next_block(self) -> Block | None:
        files = self._files()
        names = sorted(files)
        if self._cursor is not None:
            names = [name for name in names if name >= self._cursor.file]
        for index, name in enumerate(names):
            same = self._cursor is not None and self._cursor.file == name
            cursor = self._cursor if same and self._cursor else Cursor(name)
            complete = not self._kind.follow or index < len(names) - 1
            block = next_block(self._source, self._kind.format, files[name], cursor, complete=complete)
            if block is not None:
                return block
        return None

    def _files(self) -> dict[str, Path]:
        if self._path.is_dir():
            return {
                file.name: file
                for file in self._path.iterdir()
                if file.is_file() and not file.name.startswith((".", "_"))
            }
        if self._path.is_file():
            return {self._path.name: self._path}
        if self._kind.follow:
            return {}
        raise FlowError(f"source {self._source.name!r}: there is no file or folder {self._path}.")
