"""Output as files of JSON lines."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from understudy.runtime.sinks.folder import FolderSink

#: Read in blocks of this size, or of the longest line: Arrow wants a line to fit into one.
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class JsonLines(FolderSink):
    """A folder of files with one JSON object a line. Exactly once across crashes.

    Times are ISO texts in UTC, dates ISO texts, decimals texts, binaries base64. Maps are objects, whose keys
    are the texts of their values.
    """

    path: str | Path
    suffix: ClassVar[str] = "jsonl"

    def write(self, rows: pa.Table, file: Path) -> None:
        with file.open("w", encoding="utf-8") as stream:
            for line in json_lines(rows):
                stream.write(line + "\n")

    @staticmethod
    def read(file: Path) -> pa.Table:
        with file.open("rb") as lines:
            longest = max(map(len, lines), default=0)
        blocks = pj.ReadOptions(block_size=max(_BLOCK_BYTES, longest))
        table = pj.read_json(file, blocks)
        texts = pa.schema([field.with_type(_without_times(field.type)) for field in table.schema])
        if texts.equals(table.schema):
            return table
        return pj.read_json(file, blocks, pj.ParseOptions(explicit_schema=texts))


def _without_times(inferred: pa.DataType) -> pa.DataType:
    """The type with texts for times, which Arrow infers if all texts of a file happen to look like times."""
    if pa.types.is_timestamp(inferred):
        return pa.string()
    if pa.types.is_list(inferred):
        return pa.list_(_without_times(inferred.value_type))
    if pa.types.is_struct(inferred):
        return pa.struct([field.with_type(_without_times(field.type)) for field in inferred])
    return inferred


def json_lines(table: pa.Table) -> list[str]:
    """Each row as one JSON object."""
    columns = [_column(column) for column in table.columns]
    return [
        json.dumps(
            dict(zip(table.column_names, row, strict=True)),
            default=str,
            ensure_ascii=False,
            separators=(", ", ": "),
        )
        for row in zip(*columns, strict=True)
    ]


def _column(column: pa.ChunkedArray) -> list[Any]:
    return [value for chunk in column.chunks for value in _plain(chunk)]


def _plain(array: pa.Array) -> list[Any]:
    """The values as JSON has them: what it has no form for is a text. Spark's years go beyond Python's."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        times = array.to_numpy(zero_copy_only=False).astype("datetime64[us]")
        return _present(array, [f"{text}{zone}" for text in np.datetime_as_string(times).tolist()])
    if pa.types.is_date32(kind):
        days = array.to_numpy(zero_copy_only=False)
        return _present(array, np.datetime_as_string(days).tolist())
    if pa.types.is_decimal(kind):
        return [None if value is None else str(value) for value in array.to_pylist()]
    if pa.types.is_binary(kind):
        return [None if value is None else base64.b64encode(value).decode() for value in array.to_pylist()]
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        fields = [_plain(array.field(index)) for index in range(len(names))]
        return _present(
            array,
            [dict(zip(names, (field[at] for field in fields), strict=True)) for at in range(len(array))],
        )
    if pa.types.is_list(kind):
        return _present(array, _runs(array, array.values))
    if pa.types.is_map(kind):
        pairs = zip(_runs(array, array.keys), _runs(array, array.items), strict=True)
        return _present(array, [dict(zip(map(_key, keys), items, strict=True)) for keys, items in pairs])
    return array.to_pylist()  # type: ignore[no-any-return]


def _present(array: pa.Array, values: list[Any]) -> list[Any]:
    """The values, None where the array has none."""
    if not array.null_count:
        return values
    return [
        value if there else None for value, there in zip(values, array.is_valid().to_pylist(), strict=True)
    ]


def _runs(array: pa.Array, values: pa.Array) -> list[list[Any]]:
    """The part of the values that each list or map of the array has."""
    offsets = array.offsets.to_pylist()
    plain = _plain(values.slice(offsets[0], offsets[-1] - offsets[0]))
    return [plain[first - offsets[0] : end - offsets[0]] for first, end in pairwise(offsets)]


def _key(value: Any) -> Any:
    """A map's key as JSON takes it: the text of its value, of a nested one as JSON writes it."""
    if isinstance(value, dict | list):
        return json.dumps(value, default=str, ensure_ascii=False)
    return value if isinstance(value, str | int | float) else str(value)
