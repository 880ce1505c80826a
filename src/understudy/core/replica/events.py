"""What happens to a copy, and what it asks of its process."""

from __future__ import annotations

from dataclasses import dataclass

from understudy.core.bucket import Bucket, BucketId
from understudy.core.edge.messages import Attached, Detached, From, Message
from understudy.core.edge.outlet import OutletState
from understudy.core.errors import require
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.changes import Activated, Avail, Fail

# --- events ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AtEdge:
    """Something happened at this copy's end towards that partition."""

    partition: Partition
    event: From | Attached | Detached | Fail | Avail | Activated


@dataclass(frozen=True, slots=True)
class Produced:
    """The engine put out these buckets, a run for each consumer."""

    shares: tuple[tuple[Partition, tuple[Bucket, ...]], ...]


@dataclass(frozen=True, slots=True)
class Processed:
    """The engine has finished everything handed to it and stands still at a bucket boundary."""


@dataclass(frozen=True, slots=True)
class CopyState:
    """The state of a copy, beside the engine's own files: where its input stands, and its outlets."""

    version: int
    through: BucketId
    outlets: tuple[tuple[Partition, OutletState], ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """A standby of this partition asks for the state. `attempt` rises with every request in one seat."""

    standby: Copy
    epoch: int
    attempt: int
    #: A backup tells what it holds already.
    holds: BucketId | None = None


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """The engine's snapshot is linked; the engine may go on. Moving it happens beside the dataflow."""

    version: int


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """The engine stands still, and no snapshot could be made of it."""

    version: int
    why: str


@dataclass(frozen=True, slots=True)
class Offered:
    """This copy, which was asked, has a snapshot ready for this attempt."""

    lender: Copy
    attempt: int
    version: int


@dataclass(frozen=True, slots=True)
class Installed:
    """The state has arrived completely and the engine has started from it."""

    attempt: int
    state: CopyState


@dataclass(frozen=True, slots=True)
class Received:
    """The snapshot of this attempt has arrived for a backup, with the input through that number."""

    attempt: int
    through: BucketId


@dataclass(frozen=True, slots=True)
class ShipDue:
    """The time for the next snapshot for backups has come."""


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """The state did not arrive, or the engine would not start from it."""

    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class LimitGroups:
    """What the engine manages in a few seconds, from now on: it lends its state only between two groups.

    None: as much as the run's own limits allow.
    """

    buckets_max: int | None = None
    bytes_max: int | None = None

    def __post_init__(self) -> None:
        for most in (self.buckets_max, self.bytes_max):
            require(most is None or most > 0, f"a group cannot be limited to {most}")


@dataclass(frozen=True, slots=True)
class Progress:
    """A newcomer gets further: more of its state has arrived, or its engine works on its group."""


@dataclass(frozen=True, slots=True)
class StandbyGone:
    """This standby does not wait for this copy's state any more: it caught up, or it is dead."""

    standby: Copy


@dataclass(frozen=True, slots=True)
class SaveDue:
    """The time to save this copy's state in the store has come."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The store holds the snapshot of this version. Of all that it keeps of this partition, the oldest holds
    the input through `floor`.
    """

    version: int
    floor: BucketId


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """The snapshot of this version is not in the store."""

    version: int
    why: str


@dataclass(frozen=True, slots=True)
class LogRead:
    """The next buckets after this number of a source's log, as this copy of a consumer takes them."""

    consumer: Copy
    after: BucketId
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class Rest:
    """To a sink: another version's output is to be delivered. Finish the group in hand, then say `Rests`."""


@dataclass(frozen=True, slots=True)
class Passed:
    """To a sink that rests: the other version has delivered everything through this number."""

    through: BucketId


@dataclass(frozen=True, slots=True)
class Wake:
    """To a sink that rests: deliver what follows this number."""

    through: BucketId


# --- instructions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendTo:
    """Put a message on the edge to this copy."""

    copy: Copy
    message: Message


@dataclass(frozen=True, slots=True)
class Process:
    """Feed these buckets to the engine as one group; say `Produced` for its output, then `Processed`."""

    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Snapshot the engine, which stands still; then say `SnapshotTaken`, or `SnapshotFailed`."""

    version: int


@dataclass(frozen=True, slots=True)
class KeepSnapshot:
    """Keep the snapshot of this state's version, with the state, for a standby that will fetch it, or for the
    store.
    """

    state: CopyState


@dataclass(frozen=True, slots=True)
class Offer:
    """Tell the standby that the snapshot of this version is kept for it."""

    standby: Copy
    epoch: int
    attempt: int
    version: int


@dataclass(frozen=True, slots=True)
class DropSnapshot:
    """Neither a standby nor the store needs the snapshot of this version any more."""

    version: int


@dataclass(frozen=True, slots=True)
class SaveSnapshot:
    """Put the snapshot of this version, which is kept, into the store; then say `Saved` or `SaveFailed`."""

    version: int


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read this source's log again for a copy of a consumer, after this number; then say `LogRead`."""

    consumer: Copy
    after: BucketId
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask an active copy of this partition for its state; the host knows which can be reached."""

    attempt: int
    holds: BucketId | None = None


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetch the snapshot that this copy keeps and start the engine from it; then say `Installed`, or
    `FetchFailed`. With `hold`, start nothing; say `Received`, and keep it if `Hold` follows.
    """

    lender: Copy
    attempt: int
    version: int
    hold: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep the snapshot of this attempt, which was received, in the place of the one before."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Start the engine from the snapshot that this backup holds; then say `Began` with its state."""


@dataclass(frozen=True, slots=True)
class AskAgainLater:
    """Say `TimerFired` for this copy's next request after a moment."""


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Every active neighbour keeps what this copy needs, and its engine holds what they had put out."""


@dataclass(frozen=True, slots=True)
class MoveFailed:
    """This standby will not get its state, or it holds it and its engine does nothing."""

    why: str
    holds_state: bool = False


@dataclass(frozen=True, slots=True)
class Rests:
    """This sink, which was told to, delivers nothing after this number."""

    through: BucketId


CopyInstruction = (
    SendTo
    | Process
    | TakeSnapshot
    | KeepSnapshot
    | SaveSnapshot
    | ReadLog
    | Offer
    | DropSnapshot
    | Ask
    | Fetch
    | Hold
    | Resume
    | AskAgainLater
    | CaughtUp
    | MoveFailed
    | Rests
)
