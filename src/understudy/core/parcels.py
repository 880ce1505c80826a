"""What processes of a partitioned flow send each other, and what a host asks of its process.

Between two processes there is one connection, however many copies of partitions sit at its two ends. An
**edge** is the part of it that belongs to one producer and one consumer. The consumer opens it (`Attach`)
and the producer answers (`Welcome`); the number of that attempt is named by everything that follows over the
edge, so what is left of an earlier attempt is known for what it is. A copy that has its state says that it
is `Here`, for whoever tried before.

A view goes ahead of what its sender does because of it (`Relay`).
"""

from __future__ import annotations

from dataclasses import dataclass

from understudy.core.bucket import BucketId
from understudy.core.flux_view import FluxView
from understudy.core.instructions import Instruction
from understudy.core.messages import Message
from understudy.core.partition import Copy
from understudy.core.view import Status


@dataclass(frozen=True, slots=True)
class Here:
    """This copy, in its seat since `epoch`, has its state and takes connections."""

    copy: Copy
    epoch: int


@dataclass(frozen=True, slots=True)
class Attach:
    """A consumer to a producer: this is where I stand. Both are named with the epochs of their seats."""

    sender: Copy
    epoch: int
    to: Copy
    to_epoch: int
    serial: int
    through: BucketId
    version: int
    checkpoint: BucketId


@dataclass(frozen=True, slots=True)
class Welcome:
    """The producer's answer. `version` is that of its last checkpoint."""

    sender: Copy
    to: Copy
    serial: int
    version: int


@dataclass(frozen=True, slots=True)
class Say:
    """Messages over an edge, in order."""

    sender: Copy
    to: Copy
    serial: int
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Relay:
    """The view that the sender acts on."""

    view: FluxView


Parcel = Here | Attach | Welcome | Say | Relay


# --- events at a host ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ViewSeen:
    """The controller published this view."""

    view: FluxView


@dataclass(frozen=True, slots=True)
class PeerUp:
    """The connection to this process stands."""

    node: str


@dataclass(frozen=True, slots=True)
class PeerDown:
    """The connection to this process is gone, and with it whatever was on its way."""

    node: str


@dataclass(frozen=True, slots=True)
class ParcelFrom:
    """This came over the connection to that process. Of an own parcel, the node is the host itself."""

    node: str
    parcel: Parcel


@dataclass(frozen=True, slots=True)
class Began:
    """The engine of this copy, in its seat since `epoch`, stands ready with nothing in it."""

    copy: Copy
    epoch: int


@dataclass(frozen=True, slots=True)
class Inside:
    """Things happened to a copy within its process, in this order: to its engine, its mover or its sink."""

    copy: Copy
    epoch: int
    events: tuple[object, ...]


HostEvent = ViewSeen | PeerUp | PeerDown | ParcelFrom | Began | Inside


# --- what a host asks for --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Put a parcel on the connection to this process; if that is the host itself, give it back in turn."""

    node: str
    parcel: Parcel


@dataclass(frozen=True, slots=True)
class Carry:
    """A copy's own instruction: work for its engine, its mover, its sink or the controller."""

    copy: Copy
    epoch: int
    instruction: Instruction


@dataclass(frozen=True, slots=True)
class TakeSeat:
    """Set up an engine for this copy: empty for an ACTIVE one, then say `Began`; for a standby, fetch its
    state and say `Inside` with it.
    """

    copy: Copy
    epoch: int
    status: Status


@dataclass(frozen=True, slots=True)
class LeaveSeat:
    """This copy is no longer here: end its engine. Whatever it still says is void."""

    copy: Copy
    epoch: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Close the connection to this process: it broke the protocol."""

    node: str
    why: str


HostInstruction = Dispatch | Carry | TakeSeat | LeaveSeat | Cut
