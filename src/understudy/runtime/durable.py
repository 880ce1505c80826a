"""What must outlive a loss of power, not only of a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from understudy.flow.errors import EnvironmentFailed


def leave_mark(file: Path) -> None:
    """An empty file that is there after a loss of power, too. Raises `EnvironmentFailed` if it cannot be."""
    with _made("mark", file):
        file.touch()
        sync(file.parent)


def make_folder(folder: Path) -> None:
    """A folder that is there after a loss of power, too. Raises `EnvironmentFailed` if it cannot be."""
    with _made("folder", folder):
        if not folder.is_dir():
            folder.mkdir()
            sync(folder.parent)


def write_whole(file: Path, text: str) -> None:
    """Write a file that is there whole or as it was before, also after a loss of power. Raises `OSError`."""
    half = file.with_suffix(".half")
    with half.open("w") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    half.replace(file)
    sync(file.parent)


@contextmanager
def _made(what: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise EnvironmentFailed(
            f"The {what} {path} cannot be made: {problem}. Free or repair the disk."
        ) from problem


def sync(path: Path) -> None:
    """A file with its contents, or a folder with the names in it, is on disk when this returns."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
