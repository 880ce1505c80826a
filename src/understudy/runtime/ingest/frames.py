"""Frames: how records lie in a segment file, and how to tell a crash from damage.

One commit writes one frame and syncs it before the next frame is begun:

    magic | crc32 of the body | length of the body | crc32 of those three | body: record, record, ...
    record: kind, length of the head, length of the body | head (JSON) | body (bytes)

So only the last frame of the last segment can be torn by a crash; it was never acknowledged, and is cut off.
A bad frame with another frame behind it was once complete: the disk has damaged it, and going on would lose
rows that were acknowledged. The header has a checksum of its own so that a damaged length is not taken for a
torn tail.

A recovery reads a segment without knowing how much of it was synced (`read_frames`). Where that is known,
nothing can be torn, and frames are read one at a time (`FrameFile`).
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any
from zlib import crc32

from understudy.flow.errors import EnvironmentFailed

_MAGIC = b"\xf5UWL"
_FRONT = struct.Struct("<4sIQ")
_CRC = struct.Struct("<I")
HEADER_BYTES = _FRONT.size + _CRC.size
_RECORD = struct.Struct("<BIQ")

#: What damage means, and what to do about it.
LOST = "Rows that were acknowledged cannot be recovered without it."
RESTORE = "Restore the file from a copy, or start the run in a new folder."


class RecordKind(IntEnum):
    """What a record says. The numbers are on disk: never renumber them."""

    STATE = 1
    PUSH = 2
    SEAL = 3
    TRIM = 4
    FORGET = 5


@dataclass(frozen=True, slots=True)
class Record:
    kind: RecordKind
    head: dict[str, Any]
    body: bytes | memoryview = b""

    def encoded(self) -> list[bytes | memoryview]:
        """The record in pieces: bodies are large, and joining them would copy them."""
        # In ASCII: a position may hold the name of a file, which need not be UTF-8.
        head = json.dumps(self.head, separators=(",", ":")).encode()
        return [_RECORD.pack(self.kind, len(head), len(self.body)) + head, self.body]


@dataclass(frozen=True, slots=True)
class Read:
    """A segment's records, and how much of the file they are: the rest is a torn tail."""

    records: list[Record]
    good_bytes: int
    torn_bytes: int


def frame(pieces: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """One frame around the pieces of encoded records, itself in pieces."""
    checksum = 0
    for piece in pieces:
        checksum = crc32(piece, checksum)
    front = _FRONT.pack(_MAGIC, checksum, sum(len(piece) for piece in pieces))
    return [front + _CRC.pack(crc32(front)), *pieces]


def read_frames(file: Path) -> Read:
    """Every complete frame of a segment. Damage that no crash explains is EnvironmentFailed."""
    data = memoryview(_contents(file))
    records: list[Record] = []
    at = 0
    while at < len(data):
        length = _body_length(data, at)
        if length is None:
            _require_torn(file, data, at)
            break
        start, end = at + HEADER_BYTES, at + HEADER_BYTES + length
        if end > len(data):
            break
        if crc32(data[start:end]) != _FRONT.unpack_from(data, at)[1]:
            # The next frame is begun only after this one was synced.
            if end < len(data):
                raise _damage(file, at, end)
            break
        # Copies of their own: aligned, and they do not keep all of the segment in memory.
        records += [Record(each.kind, each.head, bytes(each.body)) for each in _records(data[start:end])]
        at = end
    return Read(records, at, len(data) - at)


class FrameFile:
    """The frames of one segment, one after the other. Whatever is not as it was written is damage.

    The file stays readable after its segment was dropped. For one thread at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = 0
        try:
            self._file = os.open(path, os.O_RDONLY)
        except OSError as problem:
            raise _unreadable(path, problem) from problem

    @property
    def size_bytes(self) -> int:
        return os.fstat(self._file).st_size

    def next_frame(self, synced_bytes: int) -> Iterator[Record] | None:
        """The records of the next frame; None once the first `synced_bytes` of the file are read.

        The records are made as they are asked for, and their bodies share the frame's memory.
        """
        at = self._at
        if at >= synced_bytes:
            return None
        header = memoryview(self._bytes(at, HEADER_BYTES, synced_bytes))
        length = _body_length(header, 0)
        if length is None:
            raise _damage(self.path, at)
        body = memoryview(self._bytes(at + HEADER_BYTES, length, synced_bytes))
        if crc32(body) != _FRONT.unpack_from(header)[1]:
            raise _damage(self.path, at)
        self._at = at + HEADER_BYTES + length
        return _records(body)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _bytes(self, at: int, count: int, synced_bytes: int) -> bytes:
        if at + count > synced_bytes:
            raise _damage(self.path, self._at)
        pieces: list[bytes] = []
        while count:
            try:
                piece = os.pread(self._file, count, at)
            except OSError as problem:
                raise _unreadable(self.path, problem) from problem
            if not piece:
                raise cut_off(self.path, at, synced_bytes)
            pieces.append(piece)
            at, count = at + len(piece), count - len(piece)
        # A frame nearly always comes in one piece, which is not copied then.
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _contents(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as problem:
        raise _unreadable(file, problem) from problem


def _body_length(data: memoryview, at: int) -> int | None:
    """The length that a valid header at `at` gives; None if there is no valid header."""
    if at + HEADER_BYTES > len(data):
        return None
    magic, _, length = _FRONT.unpack_from(data, at)
    front = data[at : at + _FRONT.size]
    if magic != _MAGIC or _CRC.unpack_from(data, at + _FRONT.size)[0] != crc32(front):
        return None
    return int(length)


def _require_torn(file: Path, data: memoryview, at: int) -> None:
    """Raise if a valid header follows the bad one at `at`."""
    rest = bytes(data[at:])
    found = rest.find(_MAGIC, 1)
    while found >= 0:
        if _body_length(data, at + found) is not None:
            raise _damage(file, at, at + found)
        found = rest.find(_MAGIC, found + 1)


def _unreadable(file: Path, problem: OSError) -> EnvironmentFailed:
    return EnvironmentFailed(f"The log {file} cannot be read: {problem}. {LOST} {RESTORE}")


def _damage(file: Path, at: int, after: int | None = None) -> EnvironmentFailed:
    others = "" if after is None else f", and others follow at byte {after}"
    return EnvironmentFailed(
        f"The log {file} is damaged at byte {at}: a record there is not what was written{others}. {LOST} "
        f"{RESTORE}"
    )


def cut_off(file: Path, at: int, written_bytes: int) -> EnvironmentFailed:
    """A file that ends at `at` although more of it was synced."""
    return EnvironmentFailed(
        f"The log {file} is cut off at byte {at}: {written_bytes} bytes of it were written and synced. "
        f"{LOST} {RESTORE}"
    )


def _records(body: memoryview) -> Iterator[Record]:
    at = 0
    while at < len(body):
        kind, head_bytes, body_bytes = _RECORD.unpack_from(body, at)
        start = at + _RECORD.size
        at = start + head_bytes + body_bytes
        head = json.loads(bytes(body[start : start + head_bytes]))
        yield Record(RecordKind(kind), head, body[start + head_bytes : at])
