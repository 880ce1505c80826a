"""What must outlive a loss of power, not only of a process."""

from __future__ import annotations

import os
from pathlib import Path


def leave_mark(file: Path) -> None:
    """An empty file that is there after a loss of power, too. Its folder is made, in one that exists."""
    file.parent.mkdir(exist_ok=True)
    file.touch()
    for folder in (file.parent, file.parent.parent):
        sync(folder)


def sync(path: Path) -> None:
    """A file with its contents, or a folder with the names in it, is on disk when this returns."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
