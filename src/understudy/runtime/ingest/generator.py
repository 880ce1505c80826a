"""Rows made by a pure function of row numbers; the same run can be made again anywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from understudy.flow.errors import FlowError, RowError, UserError
from understudy.flow.kinds import Batch, Reader, SourceKind
from understudy.flow.model import Source
from understudy.flow.schema import TIMESTAMP, parse_schema

#: (seed, first row's number, number of rows) -> those rows without their time column.
Generate = Callable[[int, int, int], "Mapping[str, Any] | pa.Table"]

_BATCH_ROWS_MAX = 50_000
_PERIOD_US = 20_000


@dataclass(frozen=True)
class Generator(SourceKind):
    """Rows made by `function(seed, first, count)`: a dict of columns, or an Arrow table, of `count` rows.

    The function must be pure: asked again for the same rows it returns the same rows. It leaves the time
    column out: row i happens at the source's start + i / `rows_per_s`. After `rows` rows the source ends;
    None means never.
    """

    schema: str
    function: Generate
    rows_per_s: float
    seed: int = 0
    rows: int | None = None

    def __post_init__(self) -> None:
        parse_schema(self.schema)
        if not callable(self.function):
            raise FlowError(f"Generator: function must be callable, not {self.function!r}.")
        if not 0 < self.rows_per_s <= 100_000_000:
            raise FlowError(
                f"Generator: rows_per_s must lie above 0 and at most 1e8, not {self.rows_per_s!r}."
            )
        if self.rows is not None and self.rows < 0:
            raise FlowError(f"Generator: rows must be None or not negative, not {self.rows!r}.")

    def open(self, source: Source, position: Any) -> Reader:
        return GeneratorReader(source, self, position)

    def describe(self) -> str:
        extent = "without end" if self.rows is None else f"{self.rows} rows"
        return f"generated at {self.rows_per_s:g} rows/s, seed {self.seed}, {extent}"


class GeneratorReader(Reader):
    """Row i happens, and is due, at origin + i / rate. The origin is the time of the first read."""

    def __init__(self, source: Source, kind: Generator, position: Any) -> None:
        self._source = source
        self._kind = kind
        self._origin_us: int | None = position["origin_us"] if position else None
        self._next = int(position["next"]) if position else 0
        self._closed = False

    def read(self, now_us: int) -> Batch:
        if self._closed:
            return Batch(ended=True)
        if self._origin_us is None:
            self._origin_us = now_us
        due = int((now_us - self._origin_us) * self._kind.rows_per_s / 1e6) + 1
        end = due if self._kind.rows is None else min(due, self._kind.rows)
        count = min(end - self._next, _BATCH_ROWS_MAX)
        rows = None
        if count > 0:
            rows = self._generated(self._next, count)
            self._next += count
        if self._next < end:
            again_us = now_us
        else:
            again_us = max(now_us + _PERIOD_US, int(self._times(self._next, 1)[0]))
        position = {"origin_us": self._origin_us, "next": self._next}
        return Batch(rows, position, again_us, ended=self._next == self._kind.rows)

    def finish(self) -> bool:
        # There is always more.
        self._closed = True
        return True

    def _generated(self, first: int, count: int) -> dict[str, Any]:
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
        return columns

    def _times(self, first: int, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        # Row by row from its number: how rows are grouped into batches must not show in their times.
        numbers = np.arange(first, first + count, dtype=np.float64)
        return (self._origin_us or 0) + np.floor(numbers * 1e6 / self._kind.rows_per_s).astype(np.int64)
