"""Output as a folder of files, each delivered range in one: exactly once across crashes.

A file is written under a hidden name, synced, and renamed to a name that holds its range; the rename is the
moment of delivery. So the position needs no file of its own, which could disagree: it is read from the names.
What a crash leaves under hidden names was never delivered and is removed.
"""

from __future__ import annotations

import errno
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from understudy.flow.errors import EnvironmentFailed
from understudy.flow.writers import SinkKind, Writer
from understudy.runtime.durable import make_path, sync
from understudy.runtime.sinks.naming import file_name, finished_files

_UNFINISHED = ".unfinished-"


class FolderSink(SinkKind):
    """A kind of sink that writes files of one format. A subclass writes and reads one file."""

    path: str | Path
    suffix: ClassVar[str]

    @abstractmethod
    def write(self, rows: pa.Table, file: Path) -> None:
        """Write the rows to a new file."""

    @staticmethod
    @abstractmethod
    def read(file: Path) -> pa.Table:
        """The rows of a file that was written so."""

    def open(self, sink: str, folder: Path) -> Writer:
        return FolderWriter(self)

    def describe(self) -> str:
        return f"{type(self).__name__} files in {self.path}"

    def folders(self) -> Sequence[Path]:
        return (Path(self.path),)

    def earlier_output(self) -> str | None:
        folder = Path(self.path)
        return str(folder) if folder.is_dir() and finished_files(folder) else None


class FolderWriter(Writer):
    """Writes each range to a file of its own."""

    def __init__(self, kind: FolderSink) -> None:
        self._kind = kind
        self._folder = Path(kind.path)

    def recover(self) -> int | None:
        try:
            make_path(self._folder)
            for left_over in self._folder.glob(f"{_UNFINISHED}*"):
                left_over.unlink()
            files = finished_files(self._folder)
            # Found out now, not at the first delivery, minutes into a run.
            probe = self._folder / f"{_UNFINISHED}probe"
            probe.touch()
            probe.unlink()
        except OSError as problem:
            raise self._failure(problem) from problem
        return max((file.through for file in files), default=None)

    def deliver(self, rows: pa.Table, first: int, through: int) -> None:
        name = file_name(first, through, self._kind.suffix)
        unfinished = self._folder / f"{_UNFINISHED}{name}"
        try:
            self._kind.write(rows, unfinished)
            sync(unfinished)
            unfinished.rename(self._folder / name)
            sync(self._folder)
        except OSError as problem:
            raise self._failure(problem) from problem

    def _failure(self, problem: OSError) -> EnvironmentFailed:
        full = problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        then = "Free the disk." if full else "Name a folder that may be written."
        return EnvironmentFailed(f"Output cannot be written to {self._folder}: {problem}. {then}")
