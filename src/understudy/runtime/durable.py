"""What must outlive a loss of power, not only of a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
        make_path(folder)


def make_path(folder: Path) -> None:
    """The same for a folder with those above it. Raises `OSError`."""
    if not folder.is_dir():
        if not folder.parent.exists():
            make_path(folder.parent)
        # Another process may make it at the same moment.
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


@contextmanager
def written(file: Path) -> Iterator[None]:
    """Trouble in here, where a file is written, is the environment's."""
    try:
        yield
    except OSError as problem:
        raise EnvironmentFailed(f"{file} cannot be written: {problem}. Free or repair the disk.") from problem


def write_whole(file: Path, text: str, *, private: bool = False) -> None:
    """Write a file that is there whole or as it was before, also after a loss of power. Raises `OSError`.

    One that is `private` no other user may read.
    """
    half = file.with_suffix(".half")
    _write(half, text, private=private)
    half.replace(file)
    sync(file.parent)


def write_once(file: Path, text: str) -> None:
    """Write a file if there is none, whichever process comes first. It is there whole, or not at all, also
    after a loss of power. Raises `OSError`.
    """
    if not file.exists():
        own = file.with_name(f"{file.name}.{os.getpid()}")
        try:
            _write(own, text)
            try:
                os.link(own, file)
            except FileExistsError:
                pass
            except OSError:
                # A file system without links. Processes that begin at the same time write the same.
                own.replace(file)
        finally:
            own.unlink(missing_ok=True)
    # Whoever wrote it may have been killed before it had done this.
    sync(file.parent)


def _write(file: Path, text: str, *, private: bool = False) -> None:
    with open(file, "w", opener=_private if private else None) as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())


def _private(file: str, flags: int) -> int:
    opened = os.open(file, flags, 0o600)
    # It may have been there. A file system without modes keeps what it has.
    with suppress(OSError):
        os.fchmod(opened, 0o600)
    return opened


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
