"""A place in a file system that `pyarrow.fs` opens: S3, Google Cloud Storage, HDFS.

In the first two an object appears when its upload is complete, never in part. An upload that fails half way
may still be completed by pyarrow, with what it had (it has no way to take a stream back); so the contents are
checked before the first byte is sent, and whatever a failed upload leaves is recognised by its size.

HDFS shows a file while it grows. There a file is written under an unfinished name and moved.

These services answer for what they have confirmed; there is nothing to sync.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from understudy.runtime.saving.bounded import Tick
from understudy.runtime.saving.places import PIECE_BYTES, UNFINISHED, Entry, Parts, Place


class RemotePlace(Place):
    """A folder of a remote file system and what is below it."""

    silence_s = 30.0
    links = False

    def __init__(
        self, files: pafs.FileSystem, root: str, url: str, *, in_buckets: bool, whole_on_close: bool
    ) -> None:
        """`in_buckets`: the first part of `root` is a bucket, which must exist."""
        self._files = files
        self._root = root.rstrip("/")
        self.url = url
        self._bucket = self._root.split("/", 1)[0] if in_buckets else None
        self._whole_on_close = whole_on_close

    def check(self) -> None:
        known = self._files.get_file_info(self._bucket or self._root)
        if self._bucket is not None and known.type == pafs.FileType.NotFound:
            # A listing would call it empty, and a run would begin from nothing.
            raise FileNotFoundError(f"there is no bucket {self._bucket}")
        if known.type == pafs.FileType.File:
            raise NotADirectoryError(f"{self.url} is a file, not a folder")

    def files(self, folder: str) -> list[Entry]:
        return [
            Entry(info.base_name, info.size, (info.mtime_ns or 0) / 1e9)
            for info in self._infos(folder)
            if info.type == pafs.FileType.File
        ]

    def folders(self, folder: str) -> list[str]:
        return [info.base_name for info in self._infos(folder) if info.type == pafs.FileType.Directory]

    def _infos(self, folder: str) -> list[pafs.FileInfo]:
        found: list[pafs.FileInfo] = self._files.get_file_info(
            pafs.FileSelector(self._at(folder), allow_not_found=True)
        )
        return found

    def read(self, name: str, tick: Tick) -> bytes:
        return b"".join(self._pieces(name, tick))

    def _pieces(self, name: str, tick: Tick) -> Iterator[bytes]:
        with self._telling_if_gone(name), self._opened(name) as stream:
            while piece := stream.read(PIECE_BYTES):
                tick()
                yield piece

    def _opened(self, name: str) -> pa.NativeFile:
        return self._files.open_input_stream(self._at(name), compression=None)

    def write(self, name: str, parts: Parts, tick: Tick) -> None:
        self._finish(name, parts, tick)

    def upload(self, name: str, source: Path, tick: Tick) -> None:
        with source.open("rb") as file:
            self._finish(name, iter(lambda: file.read(PIECE_BYTES), b""), tick)

    def _finish(self, name: str, pieces: Iterable[bytes | memoryview], tick: Tick) -> None:
        folder = name.rpartition("/")[0]
        unfinished = name if self._whole_on_close else f"{folder}/{UNFINISHED}{uuid.uuid4().hex}"
        with self._files.open_output_stream(self._at(unfinished), compression=None) as stream:
            for piece in pieces:
                view = memoryview(piece).cast("B")
                for start in range(0, view.nbytes, PIECE_BYTES):
                    stream.write(view[start : start + PIECE_BYTES])
                    tick()
        if unfinished != name:
            tick()
            self.move(unfinished, name)

    def download(self, name: str, target: Path, tick: Tick) -> None:
        with target.open("wb") as file:
            for piece in self._pieces(name, tick):
                file.write(piece)

    def move(self, name: str, to: str) -> None:
        try:
            with self._telling_if_gone(name):
                self._files.move(self._at(name), self._at(to))
        except FileNotFoundError:
            raise
        except OSError:
            # HDFS refuses to move a file onto another one.
            if self._files.get_file_info(self._at(to)).type != pafs.FileType.File:
                raise
            self._files.delete_file(self._at(to))
            self._files.move(self._at(name), self._at(to))

    def delete(self, name: str) -> None:
        self._files.delete_file(self._at(name))

    def make_folder(self, folder: str) -> None:
        # In a bucket, a folder is nothing but the beginning of names.
        if self._bucket is None:
            self._files.create_dir(self._at(folder), recursive=True)

    def settle(self, folder: str) -> None:
        pass

    @contextlib.contextmanager
    def _telling_if_gone(self, name: str) -> Iterator[None]:
        """Raise `FileNotFoundError` also if another process deletes the file in the middle, which S3 reports
        in other words.
        """
        try:
            yield
        except (FileNotFoundError, TimeoutError):
            raise
        except OSError as problem:
            if self._files.get_file_info(self._at(name)).type != pafs.FileType.NotFound:
                raise
            raise FileNotFoundError(f"{self.path(name)} is gone") from problem

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root
