"""The bucket: the unit that every protocol counts, sends, acknowledges and trims.

Bucket k of a stream holds the rows whose time lies in [k * w, (k + 1) * w), where w is the flow's bucket
width. It is sealed when no further row of it can come; a sealed bucket never changes.

Numbers in a sequence of buckets rise but may skip: a bucket with number k also seals every number between
its predecessor and itself, and says that they are empty. So a silent day costs one message, not 864,000,
and two replicas may cut stretches of emptiness differently and still agree on every row.
"""

from __future__ import annotations

from dataclasses import dataclass, field

BucketId = int

#: Before the first bucket of any stream.
NOTHING: BucketId = -(2**62)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A sealed bucket. The payload is opaque to every machine; None means that there are no rows."""

    number: BucketId
    payload: object | None = field(default=None, repr=False)
    size_bytes: int = 0

    @property
    def empty(self) -> bool:
        return self.payload is None


def bucket_of(time_us: int, width_us: int) -> BucketId:
    """The number of the bucket that a time belongs to. Times before 1970 have negative numbers."""
    return time_us // width_us


def end_of(number: BucketId, width_us: int) -> int:
    """The first microsecond after the bucket."""
    return (number + 1) * width_us
