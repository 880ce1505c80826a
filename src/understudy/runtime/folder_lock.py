"""One process at a time in a folder: a lock that its owner holds for as long as it lives.

The system lets go of the lock when its owner ends, however that happens. No process that the owner starts
holds it: those may outlive their owner for a moment.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from understudy.flow.errors import EnvironmentFailed

FILE = "lock"


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

    def take(self) -> None:
        """Hold the folder from here on."""
        if self._file >= 0:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # Python opens files so that no program that is started inherits them.
            file = os.open(self._folder / self._name, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as problem:
            raise EnvironmentFailed(f"{self._what} {self._folder} cannot be used: {problem}.") from problem
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            os.close(file)
            raise self._in_use from problem
        self._file = file

    def is_held(self) -> bool:
        """Whether a process holds the folder now, this one or another."""
        try:
            file = os.open(self._folder / self._name, os.O_RDONLY)
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
