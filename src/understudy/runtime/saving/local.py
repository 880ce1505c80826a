"""A place in a local folder, which may be a mounted one.

A new file gets its contents under an unfinished name, is synced, and is then renamed; `settle` syncs the
folder. So whatever a synced manifest names outlives a loss of power.

Objects are hard links to the engine's files where the file system has links, and a restored snapshot is hard
links to objects. This is sound because neither side ever changes a file in place. Spark writes each file of a
checkpoint under a temporary name and renames it; `revive_checkpoint` links the saved files into a working
checkpoint and unlinks the only one that it rewrites; the engine's own files of rows are written once, into a
new snapshot. A link is only a second name: it does not matter which side deletes its own first.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path

from understudy.runtime.durable import sync
from understudy.runtime.saving.bounded import Tick
from understudy.runtime.saving.places import PIECE_BYTES, UNFINISHED, Entry, Parts, Place

#: A copy is synced in between, so that the sync at its end takes a bounded time.
_SYNC_BYTES = 64 * PIECE_BYTES


class LocalPlace(Place):
    """A folder and what is below it."""

    #: A sync of a large file is one call without any sign of progress.
    silence_s = 120.0
    links = True

    def __init__(self, root: Path) -> None:
        self._root = root
        self.url = str(root)

    def check(self) -> None:
        if self._root.exists() and not self._root.is_dir():
            raise NotADirectoryError(f"{self._root} is a file, not a folder")

    def files(self, folder: str) -> list[Entry]:
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._root / folder) as entries:
            for entry in entries:
                # Another process may have deleted it meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file(follow_symlinks=False):
                        facts = entry.stat(follow_symlinks=False)
                        # A link has the time of its contents; the time of its inode is that of the link.
                        found.append(Entry(entry.name, facts.st_size, max(facts.st_mtime, facts.st_ctime)))
        return found

    def folders(self, folder: str) -> list[str]:
        try:
            with os.scandir(self._root / folder) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []

    def read(self, name: str, tick: Tick) -> bytes:
        return (self._root / name).read_bytes()

    def write(self, name: str, parts: Parts, tick: Tick) -> None:
        def fill(unfinished: Path) -> None:
            with unfinished.open("wb") as file:
                for part in parts:
                    file.write(part)
                    tick()

        self._finish(name, fill)

    def upload(self, name: str, source: Path, tick: Tick) -> None:
        self._finish(name, lambda unfinished: _link(source, unfinished, tick))

    def _finish(self, name: str, fill: Callable[[Path], None]) -> None:
        target = self._root / name
        unfinished = target.with_name(f"{UNFINISHED}{uuid.uuid4().hex}")
        try:
            fill(unfinished)
            sync(unfinished)
            unfinished.rename(target)
        finally:
            # After a rename onto another link of the same file, the old name is still there.
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)

    def download(self, name: str, target: Path, tick: Tick) -> None:
        _link(self._root / name, target, tick)

    def move(self, name: str, to: str) -> None:
        (self._root / name).rename(self._root / to)

    def delete(self, name: str) -> None:
        (self._root / name).unlink()

    def make_folder(self, folder: str) -> None:
        path = self._root / folder
        missing = [each for each in (path, *path.parents) if not each.is_dir()]
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            sync(each.parent)

    def settle(self, folder: str) -> None:
        sync(self._root / folder)


def _link(source: Path, target: Path, tick: Tick) -> None:
    """Hard-link, or copy where the file system has no links or the target is on another one."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        with source.open("rb") as contents, target.open("xb") as file:
            unsynced_bytes = 0
            while piece := contents.read(PIECE_BYTES):
                file.write(piece)
                unsynced_bytes += len(piece)
                if unsynced_bytes >= _SYNC_BYTES:
                    file.flush()
                    os.fsync(file.fileno())
                    unsynced_bytes = 0
                tick()
