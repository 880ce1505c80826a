"""Output as a folder of files, each delivered range in one: exactly once across crashes.

A file is written under a hidden name, synced, and renamed to a name that holds its range; the rename is the
moment of delivery. So the position needs no file of its own, which could disagree: it is read from the names.
What a crash leaves under hidden names was never delivered and is removed.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from understudy.core.bucket import NOTHING, BucketId
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.sinks.naming import file_name, finished_files
from understudy.runtime.sinks.writer import Delivery, undelivered

_UNFINISHED = ".unfinished-"


class FolderWriter(ABC):
    """What both formats share. A subclass writes one table to one file."""

    suffix: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._position = NOTHING

    def recover(self) -> BucketId:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for left_over in self._folder.glob(f"{_UNFINISHED}*"):
                left_over.unlink()
            files = finished_files(self._folder)
            # Found out now, not at the first delivery, minutes into a run.
            probe = self._folder / f"{_UNFINISHED}probe"
            probe.touch()
            probe.unlink()
        except OSError as problem:
            raise self._failure(problem) from problem
        self._position = max((file.through for file in files), default=NOTHING)
        return self._position

    def deliver(self, buckets: Delivery, through: BucketId) -> None:
        if through <= self._position:
            return
        fresh = undelivered(buckets, self._position, through)
        if fresh:
            table = pa.concat_tables([rows for _, rows in fresh]).combine_chunks()
            try:
                self._write_file(table, file_name(fresh[0][0], through, self.suffix))
            except OSError as problem:
                raise self._failure(problem) from problem
        self._position = through

    @abstractmethod
    def write(self, table: pa.Table, path: Path) -> None:
        """Write the table to a new file."""

    def _write_file(self, table: pa.Table, name: str) -> None:
        unfinished = self._folder / f"{_UNFINISHED}{name}"
        self.write(table, unfinished)
        _sync(unfinished)
        unfinished.rename(self._folder / name)
        _sync(self._folder)

    def _failure(self, problem: OSError) -> EnvironmentFailed:
        return EnvironmentFailed(
            f"Output cannot be written to {self._folder}: {problem}. Name a folder that may be written."
        )


class ParquetWriter(FolderWriter):
    suffix: ClassVar[str] = "parquet"

    def write(self, table: pa.Table, path: Path) -> None:
        pq.write_table(table, path)


class JsonLinesWriter(FolderWriter):
    """One object a line. Times are ISO texts in UTC, decimals texts, binaries base64."""

    suffix: ClassVar[str] = "jsonl"

    def write(self, table: pa.Table, path: Path) -> None:
        with path.open("w", encoding="utf-8") as file:
            for line in json_lines(table):
                file.write(line + "\n")


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


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
