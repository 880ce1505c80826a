"""What machines say to each other, and what their own process tells them.

Messages cross a connection; the connection keeps their order and loses them only when it breaks (paper,
2.2). Local events come from the machine's own process: its engine, its state mover, its sink, the state of
a connection. The controller's `Fail` and `Avail` are in `understudy.core.view`.
"""

from __future__ import annotations

from dataclasses import dataclass

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.partition import Partition
from understudy.core.view import Slot


def _whole(version: int, what: str) -> None:
    if version < 0:
        raise ValueError(f"{what} must not be negative, got {version}")


# --- messages --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Data:
    """One sealed bucket, on its way up the dataflow."""

    bucket: Bucket


@dataclass(frozen=True, slots=True)
class Ack:
    """The consumer has this bucket; with cumulative acks, this one and all before it."""

    number: BucketId


@dataclass(frozen=True, slots=True)
class Reverse:
    """A receiver to a producer: from now on you send. I have everything through this number."""

    through: BucketId


@dataclass(frozen=True, slots=True)
class CSync:
    """S-Cons to ingress: my state is checkpoint `version`, which holds the input through `through`."""

    version: int
    through: BucketId

    def __post_init__(self) -> None:
        _whole(self.version, "a checkpoint's version")


@dataclass(frozen=True, slots=True)
class PSync:
    """S-Prod to egress: my buffer is that of checkpoint `version`."""

    version: int

    def __post_init__(self) -> None:
        _whole(self.version, "a checkpoint's version")


@dataclass(frozen=True, slots=True)
class Pause:
    """Consumer to producer: stop sending to me; I take it from your replica."""


@dataclass(frozen=True, slots=True)
class Paused:
    """Producer to consumer (the paper's pause-ack): what I sent before your `Pause` is behind you now."""


@dataclass(frozen=True, slots=True)
class Folded:
    """To a newcomer: this end of the connection has folded in the one with checkpoint `version`.

    A producer has produced everything `through` a number by then: so far the newcomer has to catch up.
    """

    version: int
    through: BucketId = NOTHING

    def __post_init__(self) -> None:
        _whole(self.version, "a checkpoint's version")


Message = Data | Ack | Reverse | CSync | PSync | Pause | Paused | Folded


# --- events at the gateway: a message with the slot it came from, and the state of that connection -------


@dataclass(frozen=True, slots=True)
class From:
    """A message that arrived from the replica in a slot."""

    slot: Slot
    message: Message


@dataclass(frozen=True, slots=True)
class Attached:
    """A replica's connection stands. It has taken in all input `through` a number.

    Its last checkpoint, which a standby may have been given, is `version` and holds the input through
    `checkpoint`.
    """

    slot: Slot
    through: BucketId = NOTHING
    version: int = 0
    checkpoint: BucketId = NOTHING

    def __post_init__(self) -> None:
        _whole(self.version, "a checkpoint's version")


@dataclass(frozen=True, slots=True)
class Detached:
    """A replica's connection is gone, and with it whatever was on its way."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class Sealed:
    """The next bucket of the input, safe in the log."""

    bucket: Bucket


@dataclass(frozen=True, slots=True)
class Delivered:
    """The sink holds everything through this number, durably."""

    through: BucketId


@dataclass(frozen=True, slots=True)
class Taken:
    """The consumer has handed everything through this number to its engine."""

    through: BucketId


# --- events at a replica ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IngressUp:
    """The connection to ingress stands."""


@dataclass(frozen=True, slots=True)
class IngressDown:
    """The connection to ingress is gone."""


@dataclass(frozen=True, slots=True)
class EgressUp:
    """The connection to egress stands."""


@dataclass(frozen=True, slots=True)
class EgressDown:
    """The connection to egress is gone."""


@dataclass(frozen=True, slots=True)
class Produced:
    """The engine's next output bucket."""

    bucket: Bucket


@dataclass(frozen=True, slots=True)
class Processed:
    """The engine has finished with everything handed to it and stands still at a bucket boundary."""


@dataclass(frozen=True, slots=True)
class PairFailed:
    """The controller says that the other replica is dead."""


@dataclass(frozen=True, slots=True)
class PairAvailable:
    """The controller says that a standby sits in the other slot."""


@dataclass(frozen=True, slots=True)
class MoverReady:
    """The state movers have met (`sm_ready` in the paper): a snapshot may be taken."""


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """The engine's snapshot is linked; the engine may go on. Moving it happens beside the dataflow."""


@dataclass(frozen=True, slots=True)
class Sync:
    """S-Cons to its own S-Prod: the checkpoint of this version stands; tell egress."""

    version: int

    def __post_init__(self) -> None:
        _whole(self.version, "a checkpoint's version")


@dataclass(frozen=True, slots=True)
class AboveChanged:
    """S-Prod has changed: it may have room again, or be the sender now."""


@dataclass(frozen=True, slots=True)
class SeatConfirmed:
    """The controller's view calls this replica active: both ends have folded it in."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A standby's state arrived whole (`sm_done`): the engine and S-Prod's buffer of one checkpoint."""

    version: int
    through: BucketId
    unacked: tuple[Bucket, ...]
    acked: tuple[BucketId, ...]
    produced_through: BucketId
    acked_through: BucketId

    def __post_init__(self) -> None:
        _whole(self.version, "a checkpoint's version")


@dataclass(frozen=True, slots=True)
class OutletState:
    """What is kept for one pair of consumers, and how far each of the two has acknowledged."""

    kept: tuple[Bucket, ...]
    produced_through: BucketId
    acked_through: tuple[tuple[Slot, BucketId], ...]


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A standby's state has arrived whole: the engine and the outlets of one checkpoint."""

    version: int
    through: BucketId
    outlets: tuple[tuple[Partition, OutletState], ...]

    def __post_init__(self) -> None:
        _whole(self.version, "a checkpoint's version")
