"""What must outlive a loss of power, not only of a process."""

from __future__ import annotations

import os
from pathlib import Path

from understudy.flow.errors import EnvironmentFailed


def leave_mark(file: Path) -> None:
    """An empty file that is there after a loss of power, too. Its folder is made, in one that exists.

    Raises `EnvironmentFailed` if it cannot be made.
    """
    folder = file.parent
    try:
        if not folder.exists():
            folder.mkdir()
            sync(folder.parent)
        file.touch()
        sync(folder)
    except OSError as problem:
        raise EnvironmentFailed(
            f"The mark {file} cannot be made: {problem}. Free or repair the disk."
        ) from problem


def sync(path: Path) -> None:
    """A file with its contents, or a folder with the names in it, is on disk when this returns."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
