"""Files in blocks: the next rows after a cursor, as a table, and the cursor behind them.

A cursor says where to go on: the file's name, the byte (for Parquet the row) and the lines before it. It goes
into the log as the note of the push that carries the rows, so reading resumes exactly behind the last logged
row. Content that does not fit is a RowError that names file and line. A file that cannot be read at all is
EnvironmentFailed: it may be read later.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from understudy.flow.errors import EnvironmentFailed, RowError
from understudy.flow.model import Source
from understudy.flow.schema import TIMESTAMP
from understudy.runtime.ingest.rows import times_from_text, to_table

_BLOCK_BYTES = 1 << 20
_LINE_BYTES_MAX = 64 << 20
_BLOCK_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Cursor:
    """Everything before byte (or row) `at` of `file` has been read: `line` lines of it."""

    file: str
    at: int = 0
    line: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """Rows, and the cursor behind them."""

    table: pa.Table
    cursor: Cursor


class NotParquet(RowError):
    """A file that cannot be read as Parquet: it is incomplete, damaged or something else."""


class HalfLine(RowError):
    """The last line of a file does not fit, and has no line break: perhaps it is only half of one."""


def next_block(source: Source, kind: str, path: Path, cursor: Cursor, *, complete: bool) -> Block | None:
    """The next rows of the file, or None at its end.

    Unless the file is `complete`, a last line without a line break may still be growing and is left alone. A
    Parquet file that is still being written raises NotParquet, as does one that will never be one.
    """
    try:
        if kind == "parquet":
            return _parquet_block(source, path, cursor)
        return _text_block(source, kind, path, cursor, complete)
    except OSError as problem:
        raise EnvironmentFailed(f"source {source.name!r}: {path} cannot be read: {problem}.") from problem


def _parquet_block(source: Source, path: Path, cursor: Cursor) -> Block | None:
    try:
        # Opened here: Arrow takes only names in UTF-8, and does not say which error is the disk's.
        with path.open("rb") as opened, pq.ParquetFile(opened) as file:
            groups, skip = list(range(file.num_row_groups)), cursor.at
            while groups and skip >= file.metadata.row_group(groups[0]).num_rows:
                skip -= file.metadata.row_group(groups.pop(0)).num_rows
            if not groups:
                return None
            # One group at a time: a block must not depend on how a batch would straddle two of them.
            rows = file.read_row_group(groups[0]).slice(skip, _BLOCK_ROWS)
    except (pa.ArrowException, OSError) as problem:
        # Arrow tells of bytes that it cannot read by an OSError without a number; others are the disk's.
        if isinstance(problem, OSError) and problem.errno is not None:
            raise
        why = " ".join(str(problem).split()).rstrip(".")
        raise NotParquet(f"source {source.name!r}: {path} is not a Parquet file: {why}.") from problem
    try:
        table = to_table(source, rows)
    except RowError as problem:
        raise RowError(f"{path}, rows from {cursor.at}: {problem}") from None
    return Block(table, replace(cursor, at=cursor.at + rows.num_rows))


def _text_block(source: Source, kind: str, path: Path, cursor: Cursor, complete: bool) -> Block | None:
    header: list[str] = []
    with path.open("rb") as file:
        if file.seek(0, 2) < cursor.at:
            raise RowError(f"source {source.name!r}: {path} is now shorter than what was read of it.")
        if kind == "csv":
            file.seek(0)
            first = file.readline()
            if not first.endswith(b"\n") and not complete:
                return None
            with _telling_half_lines(first):
                header = _csv_header(source, path, first)
            if cursor.at == 0:
                cursor = replace(cursor, at=len(first), line=1)
        file.seek(cursor.at)
        data = _complete_lines(path, file, complete)
    if not data:
        return None
    lines = data.splitlines()
    with _telling_half_lines(data):
        texts = {
            cursor.line + 1 + index: _text(path, cursor.line + 1 + index, line)
            for index, line in enumerate(lines)
            if line.strip()
        }
        if kind == "csv":
            table = _csv_table(source, path, header, texts)
        else:
            rows = {number: _json_row(path, number, text) for number, text in texts.items()}
            table = _checked(source, path, list(rows), list(rows.values()))
    return Block(table, replace(cursor, at=cursor.at + len(data), line=cursor.line + len(lines)))


@contextmanager
def _telling_half_lines(data: bytes) -> Iterator[None]:
    """Within the block, what does not fit is a HalfLine if these lines do not end in a line break."""
    try:
        yield
    except RowError as problem:
        if data.endswith(b"\n"):
            raise
        # A last line without a line break comes alone, so it is the one that does not fit.
        raise HalfLine(str(problem)) from None


def _complete_lines(path: Path, file: Any, complete: bool) -> bytes:
    """Complete lines from here on, about a block of them.

    If the file is complete, a last line without a line break comes after them, alone.
    """
    data = b""
    while True:
        more: bytes = file.read(_BLOCK_BYTES)
        data += more
        end = data.rfind(b"\n") + 1
        if not more:
            return data if complete else data[:end]
        if end:
            return data[:end]
        if len(data) > _LINE_BYTES_MAX:
            raise RowError(f"{path}: a line is longer than {_LINE_BYTES_MAX} bytes. Is it a file of lines?")


def _text(path: Path, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as problem:
        raise RowError(f"{path}, line {number}: not UTF-8 text: {problem}.") from None


def _json_row(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except ValueError as problem:
        raise RowError(f"{path}, line {number}: not JSON: {problem}: {text[:80]!r}.") from None
    if not isinstance(row, dict):
        raise RowError(f"{path}, line {number}: expected a JSON object, not {text[:80]!r}.")
    return row


def _checked(source: Source, path: Path, numbers: list[int], rows: list[dict[str, Any]]) -> pa.Table:
    try:
        return to_table(source, rows)
    except RowError:
        for number, row in zip(numbers, rows, strict=True):
            try:
                to_table(source, [row])
            except RowError as problem:
                raise RowError(f"{path}, line {number}: {problem}") from None
        raise


def _csv_header(source: Source, path: Path, line: bytes) -> list[str]:
    names = next(csv.reader([_text(path, 1, line.strip())]), [])
    unknown = [name for name in names if name not in source.arrow_schema.names]
    if not names or unknown or len(set(names)) != len(names):
        raise RowError(
            f"{path}, line 1: a csv file starts with the names of its columns, but {names} are not distinct "
            f"fields of source {source.name!r}. It has {', '.join(source.arrow_schema.names)}."
        )
    return names


def _csv_table(source: Source, path: Path, header: list[str], texts: dict[int, str]) -> pa.Table:
    columns: list[list[str]] = [[] for _ in header]
    for number, text in texts.items():
        try:
            # Line by line: a quoted line break would make the rows of a block depend on where it ends.
            (values,) = csv.reader([text], strict=True)
        except csv.Error as problem:
            raise RowError(f"{path}, line {number}: {problem}: {text[:80]!r}.") from None
        if len(values) != len(header):
            raise RowError(f"{path}, line {number}: {len(values)} values for the {len(header)} columns.")
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    arrays = {
        name: _csv_column(source, path, name, list(texts), column)
        for name, column in zip(header, columns, strict=True)
    }
    try:
        return to_table(source, arrays)
    except RowError as problem:
        raise RowError(f"{path}, in the rows from line {next(iter(texts), 1)} on: {problem}") from None


def _csv_column(source: Source, path: Path, name: str, numbers: list[int], values: list[str]) -> pa.Array:
    kind = source.arrow_schema.field(name).type
    if pa.types.is_string(kind):
        return pa.array(values, pa.string())
    try:
        return _typed(values, kind)
    except (pa.ArrowException, RowError):
        for number, value in zip(numbers, values, strict=True):
            try:
                _typed([value], kind)
            except (pa.ArrowException, RowError):
                raise RowError(
                    f"{path}, line {number}: source {source.name!r}, field {name!r}: {value!r} does not fit "
                    f"the type {kind}."
                ) from None
        raise


def _typed(values: Iterable[str], kind: pa.DataType) -> pa.Array:
    array = pa.array([value.strip() or None for value in values], pa.string())
    return times_from_text(array) if kind == TIMESTAMP else array.cast(kind)
