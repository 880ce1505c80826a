"""Rows from a file, or from a folder whose files are read in the order of their names."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from understudy.flow.errors import FlowError, RowError
from understudy.flow.kinds import Batch, Reader, SourceKind
from understudy.flow.model import Source
from understudy.flow.schema import parse_schema
from understudy.runtime.ingest.file_blocks import Block, Cursor, HalfLine, NotParquet, next_block

FORMATS = ("jsonl", "csv", "parquet")
_POLL_US = 200_000
#: A followed Parquet file that is incomplete and has not changed for this long will not be completed.
UNCHANGED_US_MAX = 600_000_000

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Files(SourceKind):
    """Rows from the file `path`, or from the files of the folder `path` in the order of their names.

    With `follow`, the source goes on when the last file grows or a file with a greater name appears, until a
    client closes it; without it, the source ends with the last file. Names that start with "." or "_" are
    skipped. An empty file has no rows. A csv file has a header line; an empty field is null, except in a
    string column. With `follow`, a Parquet file that is still being written holds back the files behind it
    until it is complete.
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

    def open(self, source: Source, position: Any) -> Reader:
        return FilesReader(source, self, position)

    def missing(self) -> str | None:
        there = self.follow or Path(self.path).exists()
        return None if there else f"there is no file or folder {Path(self.path).absolute()}"

    def describe(self) -> str:
        return f"{self.format} files at {self.path}{', followed' if self.follow else ''}"


@dataclass(slots=True)
class _Incomplete:
    """A file that could not be read yet, and how many times in a row it was found as it is."""

    path: Path
    size_bytes: int
    changed_ns: int
    looks: int = 0


class FilesReader(Reader):
    """A block of rows at a time. With `follow`, only the last file may grow."""

    def __init__(self, source: Source, kind: Files, position: Any) -> None:
        self._source = source
        self._kind = kind
        self._path = Path(kind.path)
        self._cursor = Cursor(**position) if position else None
        self._incomplete: _Incomplete | None = None
        #: Whether files may still grow, and others appear.
        self._grows = kind.follow
        #: The files that the last look found; None before the first one with a position.
        self._known: frozenset[str] | None = None
        #: Whether the last look came upon a file that is still being written.
        self._waits = False

    def read(self, now_us: int) -> Batch:
        self._waits = False
        block = self._next_block()
        if block is None:
            return Batch(again_us=now_us + _POLL_US, ended=not self._grows and not self._waits)
        self._cursor = block.cursor
        return Batch(block.table, asdict(block.cursor), now_us)

    def finish(self) -> bool:
        self._grows = False
        return True

    def _next_block(self) -> Block | None:
        files = self._files()
        names = sorted(files)
        if self._cursor is not None:
            self._warn_of_passed(names, self._cursor.file)
            names = [name for name in names if name >= self._cursor.file]
        for index, name in enumerate(names):
            same = self._cursor is not None and self._cursor.file == name
            cursor = self._cursor if same and self._cursor else Cursor(name)
            complete = not self._grows or index < len(names) - 1
            closed = self._kind.follow and not self._grows
            if not cursor.at and self._is_without_rows(files[name], complete):
                continue
            try:
                block = next_block(self._source, self._kind.format, files[name], cursor, complete=complete)
            except NotParquet as problem:
                if not self._kind.follow:
                    raise
                self._wait_for(files[name], problem)
                self._waits = True
                return None
            except HalfLine as problem:
                if not closed:
                    raise
                raise RowError(
                    f"{problem} (The source was closed while the last line of {name} had no end.)"
                ) from None
            if block is not None:
                return block
        return None

    def _is_without_rows(self, path: Path, complete: bool) -> bool:
        """Whether a file is passed over because it has no rows: whatever its format, an empty file has none.

        The last file that is followed is looked at again, and may have rows then. An empty Parquet file that
        is followed and has others behind it is waited for, like any that is still being written: they may be
        written at the same time, and the reader does not come back from a later file.
        """
        if self._kind.format == "parquet" and self._grows and complete:
            return False
        try:
            # Not by its size: that of a special file is 0.
            with path.open("rb") as file:
                return not file.read(1)
        except OSError:
            # Reading it says why.
            return False

    def _warn_of_passed(self, names: Sequence[str], current: str) -> None:
        """Files are read in the order of their names: one that appears before those already read is not."""
        # At the first look after a start nobody knows what appeared since.
        known = names if self._known is None else self._known
        for name in names:
            if name < current and name not in known:
                log.warning(
                    "source %r: %s is not read, for it appeared after %s, which sorts behind it.",
                    self._source.name,
                    self._path / name,
                    current,
                )
        self._known = frozenset(names)

    def _wait_for(self, path: Path, problem: NotParquet) -> None:
        """Note that a file is not complete yet; raise the problem if it has not changed for too long."""
        stat = path.stat()
        now = _Incomplete(path, stat.st_size, stat.st_mtime_ns)
        before, self._incomplete = self._incomplete, now
        if before is None or before.path != path:
            log.warning("%s It may still be written: it and the files behind it are waited for.", problem)
        elif (before.size_bytes, before.changed_ns) == (now.size_bytes, now.changed_ns):
            # Counted, not measured: a wall clock that is set forward is not time that has passed.
            now.looks = before.looks + 1
        if now.looks * _POLL_US >= UNCHANGED_US_MAX:
            raise problem

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
