"""How frames look on the wire.

A connection is one Flight `DoExchange`. Its descriptor is the **hello**: a JSON object that names the
protocol and its version, what the connection is for, and who speaks. Every message after it is a Flight
message: a JSON **head** as metadata, and **bodies** as rows of one binary column, where there are any.
Bodies are Arrow IPC bytes made once, where rows enter; on the way they are passed on and never looked into.

A head that is not of this protocol raises `PeerError` and nothing of the message is used. What heads and
bodies mean to the protocols is in `transport.parcels`.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias, TypeGuard

import pyarrow as pa

from understudy.core.errors import PeerError

PROTOCOL = "understudy/1"

#: The one schema of every exchange: bodies, if any.
BODIES = pa.schema([pa.field("body", pa.large_binary())])

#: Buckets that are ready together go into one message up to this size and number.
MESSAGE_BYTES_MAX = 8 * 2**20
MESSAGE_BUCKETS_MAX = 4_096
#: How deeply a head may be nested. What is far deeper cannot even be printed.
DEPTH_MAX = 32

Body: TypeAlias = bytes | memoryview | pa.Buffer | None
Bodies = tuple[Body, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """One Flight message: a head and its bodies."""

    head: Mapping[str, Any]
    bodies: Bodies = field(default=(), repr=False)

    @property
    def kind(self) -> str:
        return str(self.head["kind"])

    @property
    def size_bytes(self) -> int:
        return sum(map(_size_bytes, self.bodies))

    def metadata(self) -> bytes:
        return json.dumps(self.head, separators=(",", ":")).encode()

    def batch(self) -> pa.RecordBatch | None:
        """The bodies as one record batch; None if there are none."""
        if not self.bodies:
            return None
        return pa.record_batch([_column(self.bodies)], schema=BODIES)


def _size_bytes(body: Body) -> int:
    if type(body) is bytes:
        return len(body)
    return 0 if body is None else memoryview(body).nbytes


def _column(bodies: Bodies) -> pa.Array:
    """The bodies as a column over one buffer: a body that is alone is not copied.

    `pa.array` of memoryviews would keep what they look at in memory for ever.
    """
    present = [body for body in bodies if body is not None]
    data = pa.py_buffer(present[0] if len(present) == 1 else b"".join(present))
    offsets = pa.py_buffer(array("q", accumulate(map(_size_bytes, bodies), initial=0)))
    validity = None
    if len(present) < len(bodies):
        bits = "".join("0" if body is None else "1" for body in reversed(bodies))
        validity = pa.py_buffer(int(bits, 2).to_bytes(-(-len(bodies) // 8), "little"))
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(bodies), [validity, offsets, data])


def frame_of(metadata: pa.Buffer | bytes | None, batch: pa.RecordBatch | None) -> Frame:
    """The frame that arrived. Raises `PeerError` if it is not one."""
    if metadata is None:
        raise PeerError("a message came without a head; it is not of this protocol")
    head = parsed(bytes(metadata), "a message's head")
    if not isinstance(head.get("kind"), str):
        raise PeerError(f"a message's head names no kind: {str(head)[:200]}")
    if batch is None:
        return Frame(head)
    if not batch.schema.equals(BODIES):
        raise PeerError(f"a message's bodies have the schema {batch.schema}, not {BODIES}")
    column = batch.column(0)
    try:
        # Reading by offsets that lead out of the buffer would end the process.
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise PeerError(f"a message's bodies are malformed: {error}") from error
    # Copied out: a body that is kept must not keep the memory of all that came with it.
    return Frame(head, tuple(column.to_pylist()))


def parsed(text: bytes, what: str) -> dict[str, Any]:
    """A JSON object, or `PeerError`."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise PeerError(f"{what} is nested too deeply: {text[:80]!r}") from None
    except ValueError as error:
        raise PeerError(f"{what} is not JSON: {text[:80]!r}") from error
    if not isinstance(value, dict):
        raise PeerError(f"{what} is not an object: {text[:80]!r}")
    # Only a text with that many brackets can be so deep; most have two, and are not looked through.
    if text.count(b"[") + text.count(b"{") > DEPTH_MAX and _deeper_than(value, DEPTH_MAX):
        raise PeerError(f"{what} is nested too deeply: {text[:80]!r}")
    return value


def _deeper_than(value: object, depth_max: int) -> bool:
    level: list[object] = [value]
    for _ in range(depth_max + 1):
        within = [each.values() if isinstance(each, dict) else each for each in level if _holds(each)]
        level = [inner for each in within for inner in each]
        if not within:
            return False
    return True


def _holds(value: object) -> TypeGuard[dict[str, object] | list[object]]:
    return isinstance(value, dict | list)


def hello_bytes(purpose: str, facts: Mapping[str, Any]) -> bytes:
    return json.dumps({"protocol": PROTOCOL, "purpose": purpose, **facts}, separators=(",", ":")).encode()


def hello_of(command: bytes | None) -> dict[str, Any]:
    """The hello that opened an exchange, checked to be of this protocol."""
    hello = parsed(command or b"", "the opening of a connection")
    if hello.get("protocol") != PROTOCOL:
        raise PeerError(f"the other side speaks {hello.get('protocol')!r}, this is {PROTOCOL!r}")
    if not isinstance(hello.get("purpose"), str):
        raise PeerError("the opening of a connection names no purpose")
    return hello
