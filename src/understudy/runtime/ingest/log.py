"""The write-ahead log: accepted pushes, in order, on disk before they are acknowledged.

The log is a folder of segments `00000001.wal`, `00000002.wal`, ... Each opens with a STATE record: all that
its owner knew at that moment. So a log can be read from the start of any segment, and older ones go as soon
as nothing in them is needed. A new segment is written under another name, synced and renamed: a segment that
exists has its state.

`append` only queues a record and gives its position. `commit` writes all that is queued in one frame and
syncs it once. While one thread syncs, others queue; the next `commit` takes all of theirs together (group
commit). After a failed write or sync the contents of the disk are unknown, so the log refuses to go on; a
restart reads it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from understudy.core.errors import require
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.durable import sync
from understudy.runtime.folder_lock import FolderLock
from understudy.runtime.ingest.frames import Record, RecordKind, frame, read_frames

_SUFFIX = ".wal"
# Linux takes at most 1024 pieces in one call.
_PIECES_MAX = 1_000


class Log:
    """The log in `folder`, which only one process at a time may hold. Call `recover` first."""

    def __init__(self, folder: Path, *, sync: bool = True) -> None:
        self._folder = folder
        self._sync = sync
        self._queue_lock = Lock()
        self._commit_lock = Lock()
        self._queue: list[bytes | memoryview] = []
        self._appended = 0
        self._durable = 0
        self._file = -1
        self._failed = False
        self.segment = 0
        self.segment_bytes = 0
        in_use = f"The log folder {folder} is in use by another process. Stop it, or use another folder."
        self._lock = FolderLock(folder, "The log folder", EnvironmentFailed(in_use))
        self._lock.take()

    @property
    def durable(self) -> int:
        """The position through which every record is on disk."""
        return self._durable

    @property
    def appended(self) -> int:
        """The position of the last record that was appended."""
        return self._appended

    @property
    def disk_bytes(self) -> int:
        """What all segments take on disk."""
        return sum(file.stat().st_size for file in self._folder.glob(f"*{_SUFFIX}"))

    @property
    def segments(self) -> list[int]:
        """The numbers of the segments on disk, ascending."""
        return sorted(int(file.stem) for file in self._folder.glob(f"*{_SUFFIX}"))

    def recover(self, replay: Callable[[int, Record], None]) -> None:
        """Give every record, with its segment's number, to `replay`; then be ready to append.

        A torn tail is cut off. Without any segment nothing is replayed, and `roll` has to begin the first. If
        the log cannot be read, or `replay` raises, the log is closed.
        """
        try:
            for left_over in self._folder.glob(f"*{_SUFFIX}.new"):
                left_over.unlink()
            self._recover_segments(self.segments, replay)
        except BaseException:
            self.close()
            raise

    def _recover_segments(self, numbers: list[int], replay: Callable[[int, Record], None]) -> None:
        for number, expected in zip(numbers, range(numbers[0] if numbers else 0, 2**63), strict=False):
            if number != expected:
                raise EnvironmentFailed(
                    f"The log {self._folder} lacks its segment {self._path(expected).name}: it was removed. "
                    "Restore it, or start the run in a new folder."
                )
            self._recover_segment(number, number == numbers[-1], replay)

    def _recover_segment(self, number: int, last: bool, replay: Callable[[int, Record], None]) -> None:
        path = self._path(number)
        read = read_frames(path)
        opened = bool(read.records) and read.records[0].kind is RecordKind.STATE
        if (read.torn_bytes and not last) or not opened:
            raise EnvironmentFailed(
                f"The log {path} is damaged at byte {read.good_bytes}: a record once synced is incomplete. "
                "Restore the file from a copy, or start the run in a new folder."
            )
        for record in read.records:
            replay(number, record)
        if last:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
            if read.torn_bytes:
                os.ftruncate(self._file, read.good_bytes)
                self._synced(self._file)
            self.segment, self.segment_bytes = number, read.good_bytes

    def append(self, record: Record) -> int:
        """Queue a record. Returns its position: it is safe once `durable` has reached that."""
        encoded = record.encoded()
        with self._queue_lock:
            require(self._file >= 0, "a log was appended to before it was recovered")
            self._queue += encoded
            self._appended += 1
            return self._appended

    def commit(self, position: int | None = None) -> None:
        """Return once everything up to `position` (by default everything appended so far) is on disk."""
        wanted = self._appended if position is None else position
        with self._commit_lock:
            if self._durable >= wanted:
                return
            self._require_sound()
            with self._queue_lock:
                queue, self._queue = self._queue, []
                through = self._appended
            self._write(self._file, frame(queue))
            self._durable = through

    def roll(self, state: Record) -> None:
        """Begin the next segment with `state`. All records must be committed; none may be appended now."""
        require(state.kind is RecordKind.STATE, f"a segment was begun with {state.kind.name}")
        with self._commit_lock:
            self._require_sound()
            require(not self._queue, "a segment was begun with records waiting for the last one")
            path = self._path(self.segment + 1)
            fresh = path.with_name(path.name + ".new")
            pieces = frame(state.encoded())
            try:
                file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
                self._write(file, pieces)
                fresh.rename(path)
                self._sync_folder()
            except OSError as problem:
                raise self._failure(problem) from problem
            if self._file >= 0:
                os.close(self._file)
            self._file, self.segment, self.segment_bytes = file, self.segment + 1, os.fstat(file).st_size

    def drop_through(self, segment: int) -> None:
        """Delete the segments up to that number; never the current one."""
        for number in self.segments:
            if number <= segment and number != self.segment:
                self._path(number).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the files. What was not committed is lost, as in a crash."""
        with self._commit_lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1
            self._lock.release()
            self._failed = True

    def _require_sound(self) -> None:
        if self._failed:
            raise EnvironmentFailed(
                f"The log {self._folder} is closed or has failed before. Restart to read what it holds."
            )

    def _write(self, file: int, pieces: list[bytes | memoryview]) -> None:
        try:
            for start in range(0, len(pieces), _PIECES_MAX):
                self._write_pieces(file, [memoryview(each) for each in pieces[start : start + _PIECES_MAX]])
            self._synced(file)
        except OSError as problem:
            raise self._failure(problem) from problem
        self.segment_bytes += sum(len(piece) for piece in pieces)

    def _write_pieces(self, file: int, pieces: list[memoryview]) -> None:
        written = os.writev(file, pieces)
        # The system may write less than it was given; the rest is written piece by piece.
        for piece in pieces:
            rest = piece[min(written, len(piece)) :]
            written -= len(piece) - len(rest)
            while rest:
                rest = rest[os.write(file, rest) :]

    def _failure(self, problem: OSError) -> EnvironmentFailed:
        self._failed = True
        return EnvironmentFailed(
            f"The log {self._folder} cannot be written: {problem}. Free or repair the disk."
        )

    def _synced(self, file: int) -> None:
        if self._sync:
            os.fdatasync(file)

    def _sync_folder(self) -> None:
        if self._sync:
            sync(self._folder)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}{_SUFFIX}"
