"""A bucket's payload as bytes: named tables, each an Arrow IPC stream, behind a small directory.

    magic, directory length | directory: JSON [[name, offset, length], ...] | stream | stream | ...

Equal tables under equal names give equal bytes, so a digest of the bytes tells whether two replicas hold the
same bucket. Every part starts on a multiple of 64 bytes: decoding copies nothing.

In a partitioned flow a bucket comes together from several producers, each with a payload of its own.
`merged` makes one of them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from hashlib import blake2b

import pyarrow as pa

from understudy.core.errors import PeerError, require
from understudy.core.shape.partition import Partition
from understudy.engine.digest import canonical_order, digest_of
from understudy.engine.times import path_of, times_of

#: What one producer has in a bucket.
Part = tuple[Partition, bytes]

_MAGIC = b"UBK1"
_OPENING = struct.Struct("<4sI")
_ALIGNMENT = 64
#: What reading bytes that are no payload may raise.
_UNREADABLE = (
    struct.error,
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
    OSError,
    pa.ArrowException,
)


def encode(tables: Mapping[str, pa.Table]) -> bytes:
    """The tables as bytes, in the order of their names. Chunking and schema metadata do not matter."""
    streams = {name: _stream(tables[name]) for name in sorted(tables)}
    directory: list[tuple[str, int, int]] = []
    at = 0
    for name, stream in streams.items():
        directory.append((name, at, stream.size))
        at = _aligned(at + stream.size)
    listing = json.dumps(directory, ensure_ascii=False, separators=(",", ":")).encode()
    parts: list[bytes | memoryview] = [_OPENING.pack(_MAGIC, len(listing)), listing]
    length = _OPENING.size + len(listing)
    for stream in streams.values():
        parts.append(bytes(_aligned(length) - length))
        parts.append(memoryview(stream))
        length = _aligned(length) + stream.size
    return b"".join(parts)


def decode(payload: bytes | memoryview | pa.Buffer) -> dict[str, pa.Table]:
    """The tables that `encode` was given. They keep the payload's memory alive and share it."""
    buffer = payload if isinstance(payload, pa.Buffer) else pa.py_buffer(payload)
    view = memoryview(buffer)
    try:
        magic, length = _OPENING.unpack_from(view)
        if magic != _MAGIC:
            raise PeerError(f"A payload of {len(view)} bytes does not start like one.")
        start = _OPENING.size + length
        directory = json.loads(bytes(view[_OPENING.size : start]))
        base = _aligned(start)
        return {
            name: pa.ipc.open_stream(buffer.slice(base + at, size)).read_all() for name, at, size in directory
        }
    except _UNREADABLE as problem:
        raise PeerError(f"A payload of {len(view)} bytes cannot be read: {problem}") from problem


def merged(parts: Sequence[Part], time: Mapping[str, str]) -> dict[str, pa.Table]:
    """The rows of all parts, by stream, in the canonical order; `time` names each stream's time column.

    How the parts are ordered makes no difference. Rows that one part alone has stay as they are.
    """
    pieces: dict[str, list[pa.Table]] = {}
    for _, payload in sorted(parts, key=lambda part: part[0]):
        for name, table in decode(payload).items():
            pieces.setdefault(name, []).append(table)
    return {name: merged_tables(name, tables, time) for name, tables in sorted(pieces.items())}


def merged_tables(name: str, tables: Sequence[pa.Table], time: Mapping[str, str]) -> pa.Table:
    """The rows of one stream's parts in the canonical order."""
    if len(tables) == 1:
        return tables[0]
    require(name in time, f"the time column of {name!r} is not known")
    try:
        together = pa.concat_tables(tables).combine_chunks()
    except pa.ArrowInvalid as problem:
        raise PeerError(f"The parts of {name!r} do not have the same columns: {problem}") from problem
    return canonical_order(together, times_of(together, path_of(time[name], together.column_names)))


def digest(payload: bytes) -> str:
    """32 hexadecimal digits that differ for different payloads."""
    return blake2b(payload, digest_size=16).hexdigest()


def rows_and_digest(tables: Mapping[str, pa.Table]) -> tuple[int, str]:
    """How many rows a payload's tables have, and their digest as histories show it: without floats."""
    rows = sum(table.num_rows for table in tables.values())
    # No comma: that is what stands between the parts of a bucket.
    return rows, "+".join(f"{name}:{digest_of(tables[name], floats=False)}" for name in sorted(tables))


def _stream(table: pa.Table) -> pa.Buffer:
    plain = table.replace_schema_metadata(None).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, plain.schema) as writer:
        writer.write_table(plain)
    return sink.getvalue()


def _aligned(at: int) -> int:
    return -(-at // _ALIGNMENT) * _ALIGNMENT
