"""What a machine asks its driver to do. Instructions are carried out in the order in which they are given."""

from __future__ import annotations

from dataclasses import dataclass

from understudy.core.bucket import Bucket, BucketId
from understudy.core.messages import Installed, Message, PartitionState
from understudy.core.partition import Copy
from understudy.core.view import Slot


@dataclass(frozen=True, slots=True)
class Send:
    """Put a message on the connection to the replica in this slot."""

    slot: Slot
    message: Message


@dataclass(frozen=True, slots=True)
class Take:
    """The next bucket of this inlet, for the merge."""

    bucket: Bucket


@dataclass(frozen=True, slots=True)
class SendIngress:
    """Put a message on this replica's connection to ingress."""

    message: Message


@dataclass(frozen=True, slots=True)
class SendEgress:
    """Put a message on this replica's connection to egress."""

    message: Message


@dataclass(frozen=True, slots=True)
class Trimmed:
    """No replica will ever ask for input through this number again: the log may let go of it."""

    through: BucketId


@dataclass(frozen=True, slots=True)
class FoldedIn:
    """This end of the dataflow has folded the slot's new replica in."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand the bucket to the sink; say `Delivered` once it is durable."""

    bucket: Bucket


@dataclass(frozen=True, slots=True)
class Process:
    """Feed these buckets to the engine as one group; say `Produced` for its output, then `Processed`."""

    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class RequestMove:
    """Tell the state mover that this replica is ready to send its state, or to receive one."""

    sending: bool


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Snapshot the engine, which stands still, together with S-Prod's buffer; then say `SnapshotTaken`."""

    version: int
    through: BucketId


@dataclass(frozen=True, slots=True)
class ShipState:
    """Give the mover the last snapshot together with this: a standby's state is the two of them."""

    state: Installed


@dataclass(frozen=True, slots=True)
class SendTo:
    """Put a message on the connection to this copy of a partition."""

    copy: Copy
    message: Message


@dataclass(frozen=True, slots=True)
class ShipPartition:
    """Give the mover the last snapshot together with this: a standby's state is the two of them."""

    state: PartitionState


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Every active neighbour has folded this replica in: the controller may call it active."""

    version: int


Instruction = (
    Send
    | Take
    | SendIngress
    | SendEgress
    | Trimmed
    | FoldedIn
    | Deliver
    | Process
    | RequestMove
    | TakeSnapshot
    | ShipState
    | SendTo
    | ShipPartition
    | CaughtUp
)
