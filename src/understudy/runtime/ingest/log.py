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
from understudy.runtime.ingest.frames import (
    LOST,
    RESTORE,
    FrameFile,
    Record,
    RecordKind,
    cut_off,
    frame,
    read_frames,
)

_SUFFIX = ".wal"
# Linux takes at most 1024 pieces in one call.
_PIECES_MAX = 1_000


class Log:
    """The log in `folder`, which only one process at a time may hold. Call `recover` first."""

    def __init__(self, folder: Path, *, sync: bool = True) -> None:
        self.folder = folder
        self._sync = sync
        self._queue_lock = Lock()
        self._commit_lock = Lock()
        self._queue: list[bytes | memoryview] = []
        self._appended = 0
        self._durable = 0
        self._file = -1
        self._failed = False
        # One value, so that no thread sees the size of one segment beside the number of another.
        self._end = (0, 0)
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
    def end(self) -> tuple[int, int]:
        """The number of the current segment, and how many of its bytes are on disk."""
        return self._end

    @property
    def segment(self) -> int:
        """The number of the current segment; 0 before the first."""
        return self._end[0]

    @property
    def segment_bytes(self) -> int:
        """How many bytes of the current segment are on disk."""
        return self._end[1]

    @property
    def segments(self) -> list[int]:
        """The numbers of the segments on disk, ascending."""
        return sorted(int(file.stem) for file in self.folder.glob(f"*{_SUFFIX}"))

    def opening(self) -> Record | None:
        """The state that the newest segment opens with; None without any segment. Its body is not kept."""
        numbers = self.segments
        if not numbers:
            return None
        file = self.open_segment(numbers[-1])
        try:
            record = next(file.next_frame(file.size_bytes) or iter(()), None)
        finally:
            file.close()
        if record is None or record.kind is not RecordKind.STATE:
            raise self._without_state(numbers[-1], 0)
        return Record(record.kind, record.head)

    def recover(self, replay: Callable[[int, Record], None], first: int = 0) -> None:
        """Give every record, with its segment's number, to `replay`; then be ready to append.

        Segments before `first` are not read, but none may be missing between two others. A torn tail is cut
        off. Without any segment nothing is replayed, and `roll` has to begin the first. If the log cannot be
        read, or `replay` raises, the log is closed.
        """
        try:
            for left_over in self.folder.glob(f"*{_SUFFIX}.new"):
                left_over.unlink()
            numbers = self.segments
            self._require_no_gap(numbers)
            for number in numbers:
                if number >= first:
                    self._recover_segment(number, number == numbers[-1], replay)
        except BaseException:
            self.close()
            raise

    def _require_no_gap(self, numbers: list[int]) -> None:
        for number, expected in zip(numbers, range(numbers[0] if numbers else 0, 2**63), strict=False):
            if number != expected:
                raise EnvironmentFailed(
                    f"The log {self.folder} lacks its segment {self._path(expected).name}: it was removed. "
                    f"{LOST} {RESTORE}"
                )

    def _recover_segment(self, number: int, last: bool, replay: Callable[[int, Record], None]) -> None:
        path = self._path(number)
        read = read_frames(path)
        if not read.records or read.records[0].kind is not RecordKind.STATE:
            raise self._without_state(number, read.good_bytes)
        if read.torn_bytes and not last:
            raise EnvironmentFailed(
                f"The log {path} is damaged at byte {read.good_bytes}: a record once synced is incomplete. "
                f"{LOST} {RESTORE}"
            )
        for record in read.records:
            replay(number, record)
        if last:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
            if read.torn_bytes:
                os.ftruncate(self._file, read.good_bytes)
                self._synced(self._file)
            self._end = (number, read.good_bytes)

    def _without_state(self, number: int, at: int) -> EnvironmentFailed:
        return EnvironmentFailed(
            f"The log {self._path(number)} is damaged at byte {at}: the state that it opened with is "
            f"incomplete. {LOST} {RESTORE}"
        )

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
            segment, before_bytes = self._end
            # Whatever counts as durable can be read again at once.
            self._end = (segment, before_bytes + self._write(self._file, frame(queue)))
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
                written_bytes = self._write(file, pieces)
                fresh.rename(path)
                self._sync_folder()
            except OSError as problem:
                raise self._failure(problem) from problem
            if self._file >= 0:
                os.close(self._file)
            self._file, self._end = file, (self.segment + 1, written_bytes)

    def drop_through(self, segment: int) -> None:
        """Delete the segments up to that number; never the newest one."""
        # Ascending: after a crash in between, those that are left have no gap.
        for number in self.segments[:-1]:
            if number <= segment:
                self._path(number).unlink(missing_ok=True)

    def require_size(self, number: int, size_bytes: int) -> None:
        """Refuse a segment that has not the size that it was finished with."""
        path = self._path(number)
        found_bytes = path.stat().st_size
        if found_bytes < size_bytes:
            raise cut_off(path, found_bytes, size_bytes)
        if found_bytes > size_bytes:
            raise EnvironmentFailed(
                f"The log {path} is damaged at byte {size_bytes}: it ended there when the next segment was "
                f"begun, and now has {found_bytes} bytes. {RESTORE}"
            )

    def open_segment(self, number: int) -> FrameFile:
        """A segment to read again, also while it is written."""
        return FrameFile(self._path(number))

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
                f"The log {self.folder} is closed or has failed before. Restart to read what it holds."
            )

    def _write(self, file: int, pieces: list[bytes | memoryview]) -> int:
        """Write and sync the pieces. Returns how many bytes they have."""
        try:
            for start in range(0, len(pieces), _PIECES_MAX):
                self._write_pieces(file, [memoryview(each) for each in pieces[start : start + _PIECES_MAX]])
            self._synced(file)
        except OSError as problem:
            raise self._failure(problem) from problem
        return sum(len(piece) for piece in pieces)

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
            f"The log {self.folder} cannot be written: {problem}. Free or repair the disk."
        )

    def _synced(self, file: int) -> None:
        if self._sync:
            os.fdatasync(file)

    def _sync_folder(self) -> None:
        if self._sync:
            sync(self.folder)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}{_SUFFIX}"
