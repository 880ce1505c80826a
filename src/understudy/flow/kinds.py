"""Kinds of sources: where a source's rows come from. All are data; reading happens in the runtime.

- `Push`: clients push rows to the gateway and repeat a push until it is acknowledged.
- `Generator`: a pure function of row numbers; the same run can be made again anywhere.
- `Files`: a file, or a folder whose files are read in the order of their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from understudy.flow.errors import FlowError
from understudy.flow.schema import parse_schema

FORMATS = ("jsonl", "csv", "parquet")

#: (seed, first row's number, number of rows) -> those rows without their time column.
Generate = Callable[[int, int, int], "Mapping[str, Any] | pa.Table"]


@dataclass(frozen=True)
class Push:
    """Rows that clients push. `schema` is Spark DDL, such as "user string, ts timestamp"."""

    schema: str

    def __post_init__(self) -> None:
        parse_schema(self.schema)


@dataclass(frozen=True)
class Generator:
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


@dataclass(frozen=True)
class Files:
    """Rows from the file `path`, or from the files of the folder `path` in the order of their names.

    With `follow`, the source goes on when the last file grows or a file with a greater name appears; without
    it, the source ends with the last file. Names that start with "." or "_" are skipped. A csv file has a
    header line; an empty field is null, except in a string column.
    """

    path: str | Path
    schema: str
    format: str = "jsonl"
    follow: bool = False

    def __post_init__(self) -> None:
        schema = parse_schema(self.schema)
        if self.format not in FORMATS:
            raise FlowError(
                f"Files({str(self.path)!r}): format {self.format!r} is not one of {', '.join(FORMATS)}."
            )
        for field in schema:
            if self.format == "csv" and (pa.types.is_nested(field.type) or pa.types.is_binary(field.type)):
                raise FlowError(
                    f"Files({str(self.path)!r}): a csv file cannot hold field {field.name!r}, {field.type}. "
                    "Use jsonl or parquet."
                )


Kind = Push | Generator | Files
