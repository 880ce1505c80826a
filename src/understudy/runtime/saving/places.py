"""A place: a file system as the store needs it, whichever it is.

A name is a path with slashes below the root of the place. Every write is whole or has not happened: a reader
never finds half a file under a name that it knows. Methods block, and raise `OSError`; `FileNotFoundError`
means for certain that the file system answered and has no such file. The store calls them through
`bounded.Bounded`; a method that moves many bytes calls `tick` after each piece.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy.runtime.saving.bounded import Tick

PIECE_BYTES = 4 * 2**20
#: Begins the name of a file that is being written.
UNFINISHED = ".unfinished-"

#: Bytes of an object in pieces, so that a large one is not copied to be written.
Parts = Sequence[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a place."""

    name: str
    """Without its folder."""
    size_bytes: int
    written_at: float
    """By the clock of the file system, which may differ from ours. Only differences mean something."""


class Place(ABC):
    """A file system, from its root."""

    #: As a user reads it, without keys and passwords.
    url: str
    #: How long a transfer may stand still.
    silence_s: float
    #: Whether contents are shared with local files, not sent.
    links: bool

    @abstractmethod
    def check(self) -> None:
        """Raise `OSError` if the file system does not answer or lacks what only its owner can make."""

    @abstractmethod
    def files(self, folder: str) -> list[Entry]:
        """The files in a folder; none if there is no such folder."""

    @abstractmethod
    def folders(self, folder: str) -> list[str]:
        """The names of the folders in a folder; none if there is no such folder."""

    @abstractmethod
    def read(self, name: str, tick: Tick) -> bytes: ...

    @abstractmethod
    def write(self, name: str, parts: Parts, tick: Tick) -> None:
        """Write a file, in place of one that has this name. Its folder exists."""

    @abstractmethod
    def upload(self, name: str, source: Path, tick: Tick) -> None:
        """Write a file that has the contents of a local one."""

    @abstractmethod
    def download(self, name: str, target: Path, tick: Tick) -> None:
        """Make the local file `target`, which does not exist yet."""

    @abstractmethod
    def move(self, name: str, to: str) -> None:
        """Give a file another name, in place of one that has it. The new folder exists."""

    @abstractmethod
    def delete(self, name: str) -> None: ...

    @abstractmethod
    def make_folder(self, folder: str) -> None:
        """Make a folder and those above it, unless they exist."""

    @abstractmethod
    def settle(self, folder: str) -> None:
        """When this returns, a loss of power does not undo what was written to this folder before."""

    def path(self, name: str) -> str:
        """A file as a user would name it."""
        return f"{self.url}/{name}"


def digest_of(parts: Parts) -> str:
    """The digest that `engine.storing` gives to files."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def digest_of_file(path: Path, tick: Tick) -> tuple[int, str]:
    """Size and digest of a local file, every byte of which is read."""
    digest = hashlib.blake2b(digest_size=16)
    size_bytes = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
            size_bytes += len(piece)
            tick()
    return size_bytes, digest.hexdigest()


def brief(problem: Exception) -> str:
    """The first line of what a library says; some go on for a hundred."""
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0].rstrip(".")
