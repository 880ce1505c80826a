"""What processes of a flow send each other, what happens to a host, and what it asks of its process.

Between two processes there is one connection, however many copies sit at its two ends. An **edge** is the
part of it that belongs to one producer and one consumer. The consumer opens it (`Attach`) and the producer
answers (`Welcome`); everything that follows over the edge names the number of that attempt, so that
leftovers of an earlier attempt are recognised. A copy that has its state says that it is `Here`, for
consumers that tried before.

A view goes ahead of everything that its sender does because of it (`Relay`).
"""

from __future__ import annotations

from dataclasses import dataclass

from understudy.core.bucket import Bucket, BucketId
from understudy.core.edge.messages import Message
from understudy.core.replica.events import CopyState
from understudy.core.shape.partition import Copy
from understudy.core.timers import SetTimer, TimerFired
from understudy.core.view.events import Report
from understudy.core.view.view import View

# --- parcels ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Here:
    """This copy, in its seat since `epoch`, has its state and takes connections."""

    copy: Copy
    epoch: int


@dataclass(frozen=True, slots=True)
class Attach:
    """A consumer to a producer: I have taken everything through this number. Both are named with the epochs
    of their seats.
    """

    sender: Copy
    epoch: int
    to: Copy
    to_epoch: int
    serial: int
    through: BucketId


@dataclass(frozen=True, slots=True)
class Welcome:
    """The producer's answer: I have produced everything through this number, and keep what you lack."""

    sender: Copy
    to: Copy
    serial: int
    through: BucketId


@dataclass(frozen=True, slots=True)
class Lacking:
    """The producer's answer to a consumer that begins again from a snapshot: I do not keep what you lack."""

    sender: Copy
    to: Copy
    serial: int


@dataclass(frozen=True, slots=True)
class Say:
    """A message over an edge."""

    sender: Copy
    to: Copy
    serial: int
    message: Message


@dataclass(frozen=True, slots=True)
class Relay:
    """The view that the sender acts on."""

    view: View


@dataclass(frozen=True, slots=True)
class Request:
    """A standby to an active copy of its partition: I need your state. A backup tells what it holds."""

    sender: Copy
    epoch: int
    to: Copy
    attempt: int
    holds: BucketId | None = None


@dataclass(frozen=True, slots=True)
class Offering:
    """The answer: the snapshot of this version is kept for you."""

    sender: Copy
    epoch: int
    to: Copy
    to_epoch: int
    attempt: int
    version: int


Parcel = Here | Attach | Welcome | Lacking | Say | Relay | Request | Offering


# --- events at a host ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ViewSeen:
    """The controller published this view."""

    view: View


@dataclass(frozen=True, slots=True)
class PeerUp:
    """A connection to this process stands. Of two connections to one process, the greater serial counts."""

    node: str
    serial: int


@dataclass(frozen=True, slots=True)
class PeerDown:
    """That connection to this process is gone, and with it all that was on its way."""

    node: str
    serial: int


@dataclass(frozen=True, slots=True)
class ParcelFrom:
    """This came over that connection. Of an own parcel, the node is the host itself and the serial 0.

    `cause` is the number of the event at its sender that led to it, for the story.
    """

    node: str
    serial: int
    parcel: Parcel
    cause: int = 0


@dataclass(frozen=True, slots=True)
class Began:
    """The engine of this copy, in its seat since `epoch`, stands ready: with the state that was saved last,
    or with nothing in it if none ever was.
    """

    copy: Copy
    epoch: int
    saved: CopyState | None = None


@dataclass(frozen=True, slots=True)
class Inside:
    """Something happened to a copy within its process: to its engine, its state's movement, or its sink."""

    copy: Copy
    epoch: int
    event: object


HostEvent = ViewSeen | PeerUp | PeerDown | ParcelFrom | Began | Inside | TimerFired


# --- what a host asks for --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Put a parcel on the connection to this process; if that is the host itself, give it back in turn."""

    node: str
    parcel: Parcel


@dataclass(frozen=True, slots=True)
class Start:
    """Set up an engine for this copy, from the store's newest snapshot if there is one; then say `Began`."""

    copy: Copy
    epoch: int


@dataclass(frozen=True, slots=True)
class Await:
    """This copy is a standby here: it will fetch its state. Nothing to do yet."""

    copy: Copy
    epoch: int


@dataclass(frozen=True, slots=True)
class FetchState:
    """Fetch the snapshot of this version from that copy on that node, and start an engine from it; then say
    `Inside` with `Installed` or `FetchFailed`. With `hold`, start nothing; say `Received`, and keep it if
    `HoldState` follows.
    """

    copy: Copy
    epoch: int
    node: str
    lender: Copy
    attempt: int
    version: int
    hold: bool = False


@dataclass(frozen=True, slots=True)
class HoldState:
    """Keep the snapshot of this attempt, which was received, in the place of the one that the backup held."""

    copy: Copy
    epoch: int
    attempt: int


@dataclass(frozen=True, slots=True)
class StartHeld:
    """Start an engine from the snapshot that this backup holds; then say `Began` with its state."""

    copy: Copy
    epoch: int


@dataclass(frozen=True, slots=True)
class Leave:
    """This copy is no longer here: end its engine. All that it still says is void."""

    copy: Copy
    epoch: int


@dataclass(frozen=True, slots=True)
class Work:
    """Feed these buckets to the copy's engine as one group."""

    copy: Copy
    epoch: int
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class Snap:
    """Take a snapshot of the copy's engine, which stands still."""

    copy: Copy
    epoch: int
    version: int


@dataclass(frozen=True, slots=True)
class Lend:
    """Keep the snapshot of this state's version, with the state, for a standby that will fetch it, or for the
    store.
    """

    copy: Copy
    epoch: int
    state: CopyState


@dataclass(frozen=True, slots=True)
class Unlend:
    """Neither a standby nor the store needs the snapshot of this version any more."""

    copy: Copy
    epoch: int
    version: int


@dataclass(frozen=True, slots=True)
class Save:
    """Put the snapshot of this version, which is kept, into the store; then say `Inside` with `Saved` or
    `SaveFailed`.
    """

    copy: Copy
    epoch: int
    version: int


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """Read the log of this source again, after this number, for a copy of a consumer; then say `Inside` with
    `LogRead`.
    """

    source: Copy
    consumer: Copy
    after: BucketId
    bytes_max: int


@dataclass(frozen=True, slots=True)
class SinkRests:
    """This sink delivers nothing after this number: another version of the flow may."""

    sink: Copy
    through: BucketId


@dataclass(frozen=True, slots=True)
class Tell:
    """Report this to the controller."""

    report: Report


@dataclass(frozen=True, slots=True)
class Cut:
    """Close that connection to this process. With `breach`, because the process broke the protocol."""

    node: str
    serial: int
    why: str
    breach: bool = False


HostInstruction = (
    Dispatch
    | Start
    | Await
    | FetchState
    | HoldState
    | StartHeld
    | Leave
    | Work
    | Snap
    | Lend
    | Unlend
    | Save
    | ReadAgain
    | SinkRests
    | Tell
    | Cut
    | SetTimer
)
