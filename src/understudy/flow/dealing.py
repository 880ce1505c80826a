"""Dealing rows out to partitions, by a hash that Spark and plain Arrow compute alike.

A row from a source is dealt out by the gateway, which has no Spark; a row that a fragment puts out is dealt
out inside the fragment's own query (see `engine/dealing.py`). Both must come to the same number, or the two
sides of a join would miss each other. So the hash is put together from what Spark's `xxhash64` does, which is
XXH64 with the seed 42:

    column hash  = XXH64 of a string's or binary's bytes, or of a value as a 64-bit integer: a boolean is 0 or
                   1, a date its days and a timestamp its microseconds since 1970; 42 for a null
    row hash     = XXH64 of the first column's hash as a 64-bit integer; each further column's hash is hashed
                   with the outcome so far as its seed
    partition    = row hash, as a signed number, modulo the number of partitions; never negative

The number is part of what snapshots and buffered rows rely on: it must not change from release to release.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh64_intdigest

from understudy.flow.errors import FlowError
from understudy.flow.keys import key_kind

Numbers = npt.NDArray[np.int64]
_Hashes = npt.NDArray[np.uint64]

SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_LONG_BYTES = np.uint64(8)


def partition_numbers(table: pa.Table, keys: Sequence[str], count: int) -> Numbers:
    """For each row the partition, from 0 to `count` - 1, that it belongs to."""
    if count == 1:
        return np.zeros(table.num_rows, np.int64)
    hashes: _Hashes = np.full(table.num_rows, SEED, np.uint64)
    for key in keys:
        hashes = _hashed_longs(_column_hashes(key, table.column(key)), hashes)
    return hashes.view(np.int64) % count


def deal(table: pa.Table, numbers: Numbers, count: int) -> list[pa.Table]:
    """The rows of each partition, in the order they had. `numbers` says where each row belongs."""
    if count == 1:
        return [table]
    # Numpy sorts short integers by their digits, which is several times faster.
    small = numbers.astype(np.uint16) if count <= 1 << 16 else numbers
    order = np.argsort(small, kind="stable")
    cuts = np.searchsorted(small[order], np.arange(count + 1)).tolist()
    dealt = table.combine_chunks().take(pa.array(order))
    return [dealt.slice(cuts[n], cuts[n + 1] - cuts[n]) for n in range(count)]


def _column_hashes(name: str, column: pa.ChunkedArray) -> _Hashes:
    array = column.combine_chunks()
    match key_kind(array.type):
        case "string" | "binary":
            return _hashed_bytes(array)
        case "boolean":
            integers = array.cast(pa.int8())
        case "date":
            integers = array.cast(pa.int32())
        case "integer" | "timestamp":
            integers = array
        case _:
            raise FlowError(f"Rows cannot be dealt out by the column {name!r} of type {array.type}.")
    values = pc.fill_null(integers.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    hashes = _hashed_longs(values.view(np.uint64), np.full(len(values), SEED, np.uint64))
    return _with_nulls(hashes, array)


def _hashed_bytes(array: pa.Array) -> _Hashes:
    """Each distinct value is hashed once: keys repeat, and a call for each costs more than all else."""
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    encoded = array.cast(pa.large_binary() if large else pa.binary()).dictionary_encode()
    values = encoded.dictionary.to_pylist()
    distinct = np.fromiter(map(partial(xxh64_intdigest, seed=SEED), values), np.uint64, len(values))
    if not len(distinct):
        return np.full(len(array), SEED, np.uint64)
    indices = pc.fill_null(encoded.indices, 0).to_numpy(zero_copy_only=False)
    return _with_nulls(distinct[indices], array)


def _with_nulls(hashes: _Hashes, array: pa.Array) -> _Hashes:
    if array.null_count:
        hashes[array.is_null().to_numpy(zero_copy_only=False)] = SEED
    return hashes


def _hashed_longs(values: _Hashes, seeds: _Hashes) -> _Hashes:
    """XXH64 of eight bytes, for many at once. Arrays of unsigned integers wrap around, as it wants."""
    mixed = seeds + (_P5 + _LONG_BYTES)
    mixed ^= _rotated(values * _P2, 31) * _P1
    mixed = _rotated(mixed, 27) * _P1 + _P4
    mixed ^= mixed >> np.uint64(33)
    mixed *= _P2
    mixed ^= mixed >> np.uint64(29)
    mixed *= _P3
    mixed ^= mixed >> np.uint64(32)
    return mixed


def _rotated(values: _Hashes, bits: int) -> _Hashes:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))
