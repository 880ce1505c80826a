"""Reading what a run wrote, in the order of its buckets."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.runtime.folder_lock import OUTPUT_LOCK
from understudy.runtime.sinks.folder import FolderSink
from understudy.runtime.sinks.json_lines import JsonLines
from understudy.runtime.sinks.naming import OutputFile, finished_files
from understudy.runtime.sinks.parquet import Parquet

_FORMATS: dict[str, type[FolderSink]] = {f".{each.suffix}": each for each in (Parquet, JsonLines)}


def read_output(path: str | Path) -> pa.Table:
    """The rows that a Parquet or JsonLines sink has written to the folder `path`, in order.

    May be called while the run goes on: it sees complete deliveries only. Types of JSON lines are inferred,
    and a text stays a text: times, dates, decimals and binaries are texts there, and a map is a struct. A
    folder to which a sink has not written yet gives a table without columns.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"{path}: there is no such folder. Name the folder that the sink writes to.")
    tables = [_read(file) for file in finished_files(folder) if file.path.suffix in _FORMATS]
    if not tables and not (folder / OUTPUT_LOCK).exists():
        raise UserError(f"{path} is not a folder that a sink writes to. Name that one.{_meant(folder)}")
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})


def _meant(folder: Path) -> str:
    below = sorted(each for each in folder.iterdir() if each.is_dir() and (each / OUTPUT_LOCK).exists())
    return f" Below it there are: {', '.join(map(str, below))}." if below else ""


def _read(file: OutputFile) -> pa.Table:
    try:
        return _FORMATS[file.path.suffix].read(file.path)
    except (OSError, pa.ArrowException) as problem:
        raise EnvironmentFailed(f"The output file {file.path} cannot be read: {problem}.") from problem
