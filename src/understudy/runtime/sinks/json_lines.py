"""Output as files of JSON lines."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.json as pj

from understudy.runtime.sinks.folder import FolderSink

#: Read in blocks of this size, or of the longest line: Arrow wants a line to fit into one.
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class JsonLines(FolderSink):
    """A folder of files with one JSON object a line. Exactly once across crashes.

    Times are ISO texts in UTC, decimals texts, binaries base64.
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
    return [
        json.dumps(row, default=_as_json, ensure_ascii=False, separators=(", ", ": "))
        for row in table.to_pylist(maps_as_pydicts="lossy")
    ]


def _as_json(value: Any) -> object:
    match value:
        case datetime.datetime():
            utc = value.astimezone(datetime.UTC) if value.tzinfo else value
            return utc.isoformat(timespec="microseconds").replace("+00:00", "Z")
        case datetime.date():
            return value.isoformat()
        case decimal.Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            return str(value)
