"""Frames: what goes into a Flight message comes out of it, and memory is let go of at both ends."""

from __future__ import annotations

import gc
import json
import struct
import subprocess
import sys
import weakref

import pyarrow as pa
import pytest

from understudy.core.errors import PeerError
from understudy.runtime.transport.parcels import parcel_of
from understudy.runtime.transport.wire import (
    BODIES,
    DEPTH_MAX,
    Bodies,
    Frame,
    frame_of,
    hello_of,
)

HEAD = {"kind": "data"}


class Counted(bytearray):
    """Bytes that tell, by a weak reference, whether anything still holds them."""


def bytes_of(bodies: Bodies) -> list[bytes | None]:
    return [None if body is None else bytes(memoryview(body)) for body in bodies]


@pytest.mark.parametrize(
    "bodies",
    [
        (b"one",),
        (b"",),
        (None,),
        (None, None),
        (b"one", None, b"", memoryview(b"four"), pa.py_buffer(b"five")),
        (None, *(bytes([n]) * n for n in range(20)), None),
    ],
    ids=["one", "an empty one", "none", "twice none", "of every kind", "many"],
)
def test_bodies_arrive_as_they_were_sent(bodies: Bodies) -> None:
    batch = Frame(HEAD, bodies).batch()
    assert batch is not None
    batch.validate(full=True)
    assert bytes_of(frame_of(Frame(HEAD).metadata(), batch).bodies) == bytes_of(bodies)


@pytest.mark.parametrize("count", [1, 3])
def test_a_message_that_was_written_keeps_none_of_its_bodies(count: int) -> None:
    bodies = [Counted(1_000) for _ in range(count)]
    held = [weakref.ref(body) for body in bodies]
    batch = Frame(HEAD, tuple(memoryview(body) for body in bodies)).batch()
    assert batch is not None
    del bodies, batch
    gc.collect()
    assert [ref() for ref in held] == [None] * count


FIRST_MESSAGE = """
import sys
from understudy.runtime.transport.wire import Frame, frame_of
frame = Frame({"kind": "data"}, (b"one", None, memoryview(b"two")))
frame_of(frame.metadata(), frame.batch())
sys.exit("pandas" in sys.modules)
"""


def test_the_first_message_of_a_process_waits_for_no_import() -> None:
    """Importing pandas takes longer than a connection may be silent on a busy machine."""
    assert subprocess.run([sys.executable, "-c", FIRST_MESSAGE], check=False).returncode == 0


def received(bodies: Bodies) -> Frame:
    """A frame whose message is in memory of Arrow's own, as one that has arrived is."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BODIES) as writer:
        writer.write_batch(Frame(HEAD, bodies).batch())
    return frame_of(Frame(HEAD).metadata(), pa.ipc.open_stream(sink.getvalue()).read_next_batch())


def test_a_small_body_does_not_keep_the_large_ones_that_came_with_it() -> None:
    large_bytes = 4 * 2**20
    before = pa.total_allocated_bytes()
    small = received((b"small", bytes(large_bytes))).bodies[0]
    gc.collect()
    assert bytes_of((small,)) == [b"small"]
    assert pa.total_allocated_bytes() - before < large_bytes / 2


def column_with_offsets(*offsets: int) -> pa.RecordBatch:
    buffers = [None, pa.py_buffer(struct.pack(f"{len(offsets)}q", *offsets)), pa.py_buffer(b"0123456789")]
    column = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
    return pa.record_batch([column], schema=BODIES)


@pytest.mark.parametrize("offsets", [(0, 2**40, 10), (0, -(2**40), 10), (0, 8, 2)])
def test_bodies_outside_their_message_are_the_peers_fault(offsets: tuple[int, ...]) -> None:
    with pytest.raises(PeerError, match="malformed"):
        frame_of(Frame(HEAD).metadata(), column_with_offsets(*offsets))


# --- heads -----------------------------------------------------------------------------------------------


def nested(levels: int) -> bytes:
    return b'{"kind":"ack","protocol":"understudy/1","number":' + b"[" * levels + b"]" * levels + b"}"


@pytest.mark.parametrize("levels", [DEPTH_MAX, 900, 5_000, 200_000])
def test_a_head_that_is_nested_too_deeply_is_the_peers_fault(levels: int) -> None:
    with pytest.raises(PeerError, match="a message's head is nested too deeply"):
        frame_of(nested(levels), None)
    with pytest.raises(PeerError, match="the opening of a connection is nested too deeply"):
        hello_of(nested(levels))


def test_a_head_may_be_long_and_somewhat_nested() -> None:
    assert frame_of(nested(DEPTH_MAX - 1), None).kind == "ack"
    wide = {"kind": "stats", "copies": {str(n): {"rows": [n]} for n in range(1_000)}}
    assert frame_of(json.dumps(wide).encode(), None).head == wide


def test_a_view_that_is_nested_too_deeply_is_the_peers_fault() -> None:
    with pytest.raises(PeerError, match="this is not a view"):
        parcel_of(Frame({"kind": "relay", "cause": 1, "view": nested(5_000).decode()}))
