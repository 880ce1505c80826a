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
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from understudy.core.errors import PeerError

PROTOCOL = "understudy/1"

#: The one schema of every exchange: bodies, if any.
BODIES = pa.schema([pa.field("body", pa.large_binary())])

#: Buckets that are ready together go into one message up to this size.
MESSAGE_BYTES_MAX = 8 * 2**20


Bodies = tuple[bytes | memoryview | pa.Buffer | None, ...]


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
        return sum(len(memoryview(body)) for body in self.bodies if body is not None)

    def metadata(self) -> bytes:
        return json.dumps(self.head, separators=(",", ":")).encode()

    def batch(self) -> pa.RecordBatch | None:
        """The bodies as one record batch; None if there are none."""
        if not self.bodies:
            return None
        column = pa.array([None if b is None else memoryview(b) for b in self.bodies], pa.large_binary())
        return pa.record_batch([column], schema=BODIES)


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
    bodies = tuple(value.as_buffer() if value.is_valid else None for value in batch.column(0))
    return Frame(head, bodies)


def parsed(text: bytes, what: str) -> dict[str, Any]:
    """A JSON object, or `PeerError`."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise PeerError(f"{what} is not JSON: {text[:80]!r}") from error
    if not isinstance(value, dict):
        raise PeerError(f"{what} is not an object: {text[:80]!r}")
    return value


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
