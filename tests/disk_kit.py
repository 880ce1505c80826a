"""What the code under test asks of the disk, in order. Every call still happens."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class DiskRecord:
    """Syncs, renames and cuts of files in `folder`; names are relative to it, "." is the folder itself."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder.resolve()
        #: A test may add a step of its own, such as an answer.
        self.steps: list[str] = []
        #: What each file held when it was last synced, by its name at that time.
        self.synced: dict[str, bytes] = {}
        #: Called with a file's name while it is being synced.
        self.during_sync: Callable[[str], None] = lambda _name: None
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._syncing(getattr(os, name)))
        for name in ("rename", "replace"):
            monkeypatch.setattr(os, name, self._renaming(getattr(os, name)))
        monkeypatch.setattr(os, "ftruncate", self._cutting(os.ftruncate))

    def _name(self, path: Any) -> str | None:
        absolute = Path(path).absolute()
        return str(absolute.relative_to(self._folder)) if absolute.is_relative_to(self._folder) else None

    def _open_name(self, file: int) -> str | None:
        return self._name(Path(f"/proc/self/fd/{file}").readlink())

    def _syncing(self, honest: Callable[[int], None]) -> Callable[[int], None]:
        def sync(file: int) -> None:
            name = self._open_name(file)
            if name is None:
                honest(file)
                return
            # Read before the sync: what is written while it runs may miss it.
            held = None if stat.S_ISDIR(os.fstat(file).st_mode) else (self._folder / name).read_bytes()
            self.during_sync(name)
            honest(file)
            if held is not None:
                self.synced[name] = held
            self.steps.append(f"sync {name}")

        return sync

    def _renaming(self, honest: Callable[..., None]) -> Callable[..., None]:
        def rename(source: Any, target: Any, **options: Any) -> None:
            honest(source, target, **options)
            if (name := self._name(source)) is not None:
                self.steps.append(f"rename {name} to {self._name(target)}")

        return rename

    def _cutting(self, honest: Callable[[int, int], None]) -> Callable[[int, int], None]:
        def cut(file: int, length: int) -> None:
            honest(file, length)
            if (name := self._open_name(file)) is not None:
                self.steps.append(f"cut {name}")

        return cut
