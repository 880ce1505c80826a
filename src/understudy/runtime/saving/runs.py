"""A run: consecutive buckets that an outlet keeps, as the bytes of one object.

    magic, count of buckets             8 bytes, 64 bits
    number, size, length                for each bucket, 64 bits each; the length of an empty one is -1
    payloads                            one after the other

All numbers are little-endian. The digest in the object's name shows damage, so a run has none of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import cast

import numpy as np

from understudy.core.bucket import Bucket
from understudy.runtime.saving.places import Parts

_MAGIC = b"USBKTS1\n"
_HEAD = struct.Struct("<8sq")
_EMPTY = -1


def view_of(payload: object) -> memoryview:
    """The bytes of a payload: bytes, a memoryview or a buffer of Arrow."""
    return memoryview(cast(bytes, payload)).cast("B")


def encode_run(buckets: Sequence[Bucket]) -> Parts:
    """The pieces of a run. Payloads are not copied."""
    payloads = [None if bucket.empty else view_of(bucket.payload) for bucket in buckets]
    table = np.array(
        [
            (bucket.number, bucket.size_bytes, _EMPTY if payload is None else payload.nbytes)
            for bucket, payload in zip(buckets, payloads, strict=True)
        ],
        dtype="<i8",
    )
    return [_HEAD.pack(_MAGIC, len(buckets)), table.tobytes(), *(p for p in payloads if p is not None)]


def decode_run(run: bytes) -> list[Bucket]:
    """The buckets of a run. Raises `ValueError` for anything else."""
    if len(run) < _HEAD.size:
        raise ValueError("it is too short for a run of buckets")
    magic, count = _HEAD.unpack_from(run)
    at = _HEAD.size + 24 * count
    if magic != _MAGIC or count < 0 or at > len(run):
        raise ValueError("it is no run of buckets")
    table = np.frombuffer(run, dtype="<i8", count=3 * count, offset=_HEAD.size).reshape(count, 3)
    buckets = []
    for number, size_bytes, length in table.tolist():
        if length == _EMPTY:
            buckets.append(Bucket(number, None, size_bytes))
            continue
        if length < 0 or at + length > len(run):
            raise ValueError("a bucket reaches beyond the end of its run")
        buckets.append(Bucket(number, run[at : at + length], size_bytes))
        at += length
    if at != len(run):
        raise ValueError("a run has bytes that belong to no bucket")
    return buckets
