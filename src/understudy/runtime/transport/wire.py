"""How messages look on the wire.

A connection is one Flight `DoExchange`. Its descriptor is the **hello**: a JSON object that names the
protocol and its version, what the connection is for, and who speaks. Every message after it is a Flight
message: a JSON **head** as metadata, and **bodies** as rows of one binary column, where there are any.
Bodies are Arrow IPC bytes made once, where rows enter; on the way they are passed on and never looked into.

Each head carries the epoch of its sender's seat. Buckets that are ready together travel in one message. A
head that is not of this protocol raises `PeerError` and nothing of the message is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from understudy.core.bucket import Bucket
from understudy.core.errors import PeerError
from understudy.core.messages import (
    Ack,
    CSync,
    Data,
    Folded,
    Message,
    Pause,
    Paused,
    PSync,
    Reverse,
)

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


def frames_of(messages: Sequence[Message], epoch: int) -> list[Frame]:
    """Protocol messages as frames, in order; runs of buckets share a frame.

    `epoch` is that of the sender's seat.
    """
    return [Frame({**frame.head, "epoch": epoch}, frame.bodies) for frame in _frames_of(messages)]


def _frames_of(messages: Sequence[Message]) -> list[Frame]:
    frames: list[Frame] = []
    run: list[Bucket] = []
    for message in messages:
        if isinstance(message, Data):
            if run and sum(b.size_bytes for b in run) + message.bucket.size_bytes > MESSAGE_BYTES_MAX:
                frames.append(_data_frame(run))
                run = []
            run.append(message.bucket)
            continue
        if run:
            frames.append(_data_frame(run))
            run = []
        frames.append(_control_frame(message))
    if run:
        frames.append(_data_frame(run))
    return frames


def _data_frame(buckets: Sequence[Bucket]) -> Frame:
    numbers = [bucket.number for bucket in buckets]
    bodies = tuple(bucket.payload for bucket in buckets)
    return Frame({"kind": "data", "numbers": numbers}, bodies)


def _control_frame(message: Message) -> Frame:
    match message:
        case Ack(number):
            return Frame({"kind": "ack", "number": number})
        case Reverse(through):
            return Frame({"kind": "reverse", "through": through})
        case CSync(version, through):
            return Frame({"kind": "csync", "version": version, "through": through})
        case PSync(version):
            return Frame({"kind": "psync", "version": version})
        case Pause():
            return Frame({"kind": "pause"})
        case Paused():
            return Frame({"kind": "paused"})
        case Folded(version, through):
            return Frame({"kind": "folded", "version": version, "through": through})
    raise PeerError(f"{message} has no form on the wire")


def messages_of(frame: Frame) -> list[Message]:
    """The protocol messages of a frame. Raises `PeerError` if it is malformed."""
    head = frame.head
    try:
        match frame.kind:
            case "data":
                numbers = [_int(n) for n in head["numbers"]]
                if len(numbers) != len(frame.bodies):
                    raise PeerError(f"{len(numbers)} numbers came with {len(frame.bodies)} bodies")
                return [Data(_bucket(n, body)) for n, body in zip(numbers, frame.bodies, strict=True)]
            case "ack":
                return [Ack(_int(head["number"]))]
            case "reverse":
                return [Reverse(_int(head["through"]))]
            case "csync":
                return [CSync(_int(head["version"]), _int(head["through"]))]
            case "psync":
                return [PSync(_int(head["version"]))]
            case "pause":
                return [Pause()]
            case "paused":
                return [Paused()]
            case "folded":
                return [Folded(_int(head["version"]), _int(head["through"]))]
    except (KeyError, TypeError, ValueError) as error:
        raise PeerError(f"a malformed {frame.kind!r} message: {str(dict(head))[:200]} ({error})") from error
    raise PeerError(f"there is no message of the kind {frame.kind!r}")


def _bucket(number: int, body: bytes | memoryview | pa.Buffer | None) -> Bucket:
    if body is None:
        return Bucket(number)
    return Bucket(number, body, len(memoryview(body)))


def _int(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value
