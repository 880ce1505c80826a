"""Refill: a consumer's replica gets from the log what its producer no longer keeps in memory.

A source keeps in memory what some live copy lacks; its log goes further back, as far as the oldest saved
snapshot of any partition that reads it. A copy that begins again from such a snapshot attaches with a number
from long ago. The outlet has the log read again from there, piece by piece, and sends each piece on; from the
number where memory begins it goes on from memory.

At most `WINDOW_BYTES` are on their way and not acknowledged: what a consumer has received and not taken sits
in its memory, and a log may be larger than that. One piece is read at a time. A piece that was asked for
before the replica paused, detached or asked anew is recognised by the number that it follows, and dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from understudy.core.bucket import Bucket, BucketId

#: How much of the log may be on its way to one replica, and how much is read at a time.
WINDOW_BYTES = 64 * 2**20
PIECE_BYTES = 8 * 2**20


@dataclass(slots=True)
class Refill:
    """`after` is the last number that was sent; `asked` says that the log is being read from there."""

    after: BucketId
    asked: bool = False
    unacknowledged_bytes: int = 0
    _unacknowledged: deque[tuple[BucketId, int]] = field(default_factory=deque)

    @property
    def due(self) -> bool:
        """Whether the next piece may be read."""
        return not self.asked and self.unacknowledged_bytes < WINDOW_BYTES

    def sent(self, buckets: Sequence[Bucket]) -> None:
        self.after = buckets[-1].number
        self.asked = False
        size_bytes = sum(bucket.size_bytes for bucket in buckets)
        self._unacknowledged.append((self.after, size_bytes))
        self.unacknowledged_bytes += size_bytes

    def acknowledged(self, through: BucketId) -> None:
        while self._unacknowledged and self._unacknowledged[0][0] <= through:
            self.unacknowledged_bytes -= self._unacknowledged.popleft()[1]
