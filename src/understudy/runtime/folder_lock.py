"""One process at a time in a folder: a lock that its owner holds for as long as it lives.

The system lets go of the lock when its owner ends, however that happens. No process that the owner starts
holds it: those may outlive their owner for a moment.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.flow.flow import Flow
from understudy.runtime.durable import make_path

FILE = "lock"
#: Hidden, so that no program takes it for output.
OUTPUT_LOCK = ".lock"
#: Whoever asks whether a folder is held holds it itself for a moment.
LOOKING_S = 0.3


class FolderLock:
    """The lock on one folder, which is made if need be. Not for several threads at once.

    `what` names the folder in messages; `in_use` is raised if another process holds it. `file` is what the
    lock is on.
    """

    def __init__(self, folder: Path, what: str, in_use: Exception, file: str = FILE) -> None:
        self._folder = folder
        self._name = file
        self._what = what
        self._in_use = in_use
        self._file = -1

    @property
    def file(self) -> Path:
        return self._folder / self._name

    def take(self) -> None:
        """Hold the folder from here on."""
        if self._file >= 0:
            return
        try:
            # What is kept in it must not be lost with its name.
            make_path(self._folder)
            # Python opens files so that no program that is started inherits them.
            file = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o644)
        except (FileExistsError, NotADirectoryError) as problem:
            raise EnvironmentFailed(
                f"{self._what} {self._folder} cannot be used: a file is in its place, or above it."
            ) from problem
        except OSError as problem:
            raise EnvironmentFailed(f"{self._what} {self._folder} cannot be used: {problem}.") from problem
        deadline = time.monotonic() + LOOKING_S
        while not _locked(file):
            if time.monotonic() > deadline:
                os.close(file)
                raise self._in_use
            time.sleep(0.01)
        self._file = file
        with suppress(OSError):  # On a full disk the folder is held all the same.
            # As wide as any, so that nothing of a longer number before stays behind it.
            os.pwrite(file, f"{os.getpid():<20}\n".encode(), 0)

    def holder(self) -> int | None:
        """The process that holds the folder now; None if none does, or if it could not leave its number."""
        if not self.is_held():
            return None
        try:
            return int(self.file.read_text())
        except (OSError, ValueError):
            return None

    def is_held(self) -> bool:
        """Whether a process holds the folder now, this one or another."""
        try:
            file = os.open(self.file, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_of_run(folder: Path) -> FolderLock:
    """For the process that starts the others: one run at a time in a folder."""
    in_use = UserError(
        f"{folder} is in use by another run, which is still running. Stop it with "
        f"`understudy stop {folder}`, or name another folder with --folder."
    )
    return FolderLock(folder, "The run's folder", in_use)


def locks_of_outputs(flow: Flow) -> list[FolderLock]:
    """Also for the process that starts the others: one run at a time writes to a folder.

    The output of an earlier run is seen in the folder. One that has just begun leaves no other trace.
    """

    def lock(sink: str, folder: Path) -> FolderLock:
        in_use = UserError(
            f"sink {sink!r}: another run writes to {folder}. Let the sink write to another place, or wait "
            "until that run has ended."
        )
        return FolderLock(folder, f"sink {sink!r}:", in_use, OUTPUT_LOCK)

    return [lock(sink.name, folder) for sink in flow.sinks.values() for folder in sink.kind.folders()]
