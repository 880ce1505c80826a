"""What the two ends of an edge say to each other, and what their hosts tell them.

Messages cross a connection, which keeps their order and loses them only when it breaks (Flux paper, 2.2). The
controller's `Fail`, `Avail` and `Activated` are in `core.view.changes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.errors import BrokenInvariant

# --- messages --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Data:
    """A run of sealed buckets with rising numbers, on its way up the dataflow."""

    buckets: tuple[Bucket, ...]

    def __post_init__(self) -> None:
        if not self.buckets:
            raise ValueError("a run of buckets has at least one")

    @property
    def through(self) -> BucketId:
        return self.buckets[-1].number


@dataclass(frozen=True, slots=True)
class Ack:
    """The consumer has this bucket and all before it."""

    through: BucketId


@dataclass(frozen=True, slots=True)
class Held:
    """The consumer on behalf of the store: a copy that begins again from any of the snapshots there needs
    nothing through this number.
    """

    through: BucketId


@dataclass(frozen=True, slots=True)
class Reverse:
    """A consumer to a producer: from now on you send. I have everything through this number."""

    through: BucketId


@dataclass(frozen=True, slots=True)
class Pause:
    """A consumer to a producer: stop sending to me; I take it from another copy of yours."""


@dataclass(frozen=True, slots=True)
class Paused:
    """The producer's answer (the paper's pause-ack): all that I sent before your `Pause` has passed you."""


Message = Data | Ack | Held | Reverse | Pause | Paused


# --- events at an end: a message with the copy that it came from, and the state of that connection --------


@dataclass(frozen=True, slots=True)
class From:
    """A message that arrived from this replica of the partition at the other end."""

    replica: int
    message: Message


@dataclass(frozen=True, slots=True)
class Attached:
    """The connection to this replica stands. A consumer has taken everything `through` a number; a producer
    has produced so far.
    """

    replica: int
    through: BucketId = NOTHING


@dataclass(frozen=True, slots=True)
class Detached:
    """The connection to this replica is gone, and with it all that was on its way."""

    replica: int


@dataclass(frozen=True, slots=True)
class Put:
    """The producer's next output for this consumer, a run of buckets."""

    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class Refilled:
    """The log's next buckets after this number, which an outlet asked for on behalf of a replica."""

    replica: int
    after: BucketId
    buckets: tuple[Bucket, ...]

    def __post_init__(self) -> None:
        if not self.buckets:
            raise ValueError("a log is read again only as far as it goes")


@dataclass(frozen=True, slots=True)
class Taken:
    """The consumer has handed everything through this number to its engine."""

    through: BucketId


# --- what an end asks for --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Put a message on the connection to this replica."""

    replica: int
    message: Message


@dataclass(frozen=True, slots=True)
class Reread:
    """Read the log again after this number, about so many bytes, for this replica; then say `Refilled`."""

    replica: int
    after: BucketId
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Take:
    """The next buckets of this inlet, for the merge."""

    buckets: tuple[Bucket, ...]


def require_rising(buckets: Sequence[Bucket], after: BucketId) -> None:
    """Raise `BrokenInvariant` unless the numbers rise, beginning after a number."""
    for bucket in buckets:
        if bucket.number <= after:
            raise BrokenInvariant(f"bucket {bucket.number} comes after {after}: numbers must rise")
        after = bucket.number
