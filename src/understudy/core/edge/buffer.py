"""The buffer of an outlet (Flux paper, section 3.1.3, figure 3): redundant store and duplicate filter in one.

It holds the buckets that some destination may still need, in order. Every destination has a **floor**, the
greatest number that it acknowledged: acknowledgements are cumulative, so one number says where a replica
stands, and one that is lost is made good by the next. A bucket goes when it is at or below the floor of every
destination that counts; so the buffer always loses a prefix. A floor may lie ahead of production: the paper's
*dangling* acknowledgements are one number here.

Some destinations only have a **reserve** here: the store, whose snapshot of the consumer would need these
buckets if every copy of the consumer were lost. What is kept for a reserve alone does not make the buffer
full. If it exceeds the same limits again, the oldest of it goes, and the buffer has a *gap*.

Every destination also has a cursor, the number through which buckets were sent to it. `rewind` moves it,
for a connection that was lost and stands again.

Invariants (`check`): numbers rise; no bucket is kept that every destination acknowledged; what was removed
was acknowledged, or given up of a reserve.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.edge.messages import require_rising
from understudy.core.errors import require

#: Removed entries at the front of the lists are cut off once there are so many, and more than are kept.
_SLACK_MAX = 512


class Buffer:
    """Buckets that were produced and that some destination may still need.

    `through`: everything through this number was produced, and is gone, before this buffer was made.
    """

    def __init__(
        self,
        destinations: Iterable[int],
        *,
        buckets_max: int = 100_000,
        bytes_max: int = 256 * 2**20,
        through: BucketId = NOTHING,
    ) -> None:
        self.buckets_max = buckets_max
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self.produced_through = through
        #: The last number that was produced and removed: nothing through it can be sent again.
        self.gone_through = through
        self.floor: dict[int, BucketId] = dict.fromkeys(destinations, through)
        self.sent: dict[int, BucketId] = dict.fromkeys(self.floor, NOTHING)
        self._numbers: list[BucketId] = []
        self._buckets: list[Bucket] = []
        #: The first entry that is kept, and the first that is kept for more than a reserve.
        self._head = 0
        self._wanted = 0
        self._wanted_bytes = 0

    def __len__(self) -> int:
        return len(self._numbers) - self._head

    def __iter__(self) -> Iterator[Bucket]:
        """The buckets that are kept, oldest first."""
        return iter(self._buckets[self._head :])

    @property
    def full(self) -> bool:
        """Whether more than reserves fills it."""
        wanted = len(self._numbers) - self._wanted
        return wanted >= self.buckets_max or self._wanted_bytes >= self.bytes_max

    @property
    def last_with_rows(self) -> BucketId:
        """The last kept bucket that has rows; NOTHING if there is none."""
        kept = self._buckets[self._head :]
        return next((bucket.number for bucket in reversed(kept) if not bucket.empty), NOTHING)

    # --- changing ----------------------------------------------------------------------------------------

    def put(
        self, buckets: Sequence[Bucket], required: Collection[int], reserved: Collection[int] = ()
    ) -> None:
        """Insert produced buckets; drop at once what every required destination has acknowledged already."""
        require_rising(buckets, self.produced_through)
        for bucket in buckets:
            self.produced_through = bucket.number
            self._numbers.append(bucket.number)
            self._buckets.append(bucket)
            self.size_bytes += bucket.size_bytes
            self._wanted_bytes += bucket.size_bytes
        self.trim(required, reserved)

    def ack(self, destination: int, through: BucketId) -> None:
        """The destination has everything through this number, produced or not. `trim` lets go of it."""
        self.floor[destination] = max(self.floor[destination], through)

    def trim(self, required: Collection[int], reserved: Collection[int] = ()) -> None:
        """Remove what every destination has acknowledged, required or reserved for.

        If none is required, everything after the reserves is wanted: whoever comes next begins there.
        """
        floors = [self.floor[destination] for destination in (*required, *reserved)]
        if not floors:
            return
        least = min(floors)
        cut = bisect_right(self._numbers, least, self._head)
        wanted = cut
        if reserved and required:
            wanted = bisect_right(self._numbers, min(self.floor[d] for d in required), self._head)
        self._want_from(max(wanted, cut))
        self._remove(max(cut, self._overflow()))

    def _want_from(self, at: int) -> None:
        for entry in range(at, self._wanted):
            self._wanted_bytes += self._buckets[entry].size_bytes
        for entry in range(self._wanted, at):
            self._wanted_bytes -= self._buckets[entry].size_bytes
        self._wanted = at

    def _overflow(self) -> int:
        """The first entry that reserves may keep within the limits."""
        first = max(self._head, self._wanted - self.buckets_max)
        excess = self.size_bytes - self._wanted_bytes - self.bytes_max
        for entry in range(self._head, self._wanted):
            if entry >= first and excess <= 0:
                return entry
            excess -= self._buckets[entry].size_bytes
        return self._wanted

    def _remove(self, cut: int) -> None:
        """Let go of all entries before this one."""
        if cut == self._head:
            return
        for at in range(self._head, cut):
            self.size_bytes -= self._buckets[at].size_bytes
        self.gone_through = self._numbers[cut - 1]
        # The payloads must not stay in memory until the lists are cut.
        self._buckets[self._head : cut] = [_GONE] * (cut - self._head)
        self._head = cut
        if self._head > _SLACK_MAX and self._head > len(self):
            del self._numbers[: self._head], self._buckets[: self._head]
            self._wanted -= self._head
            self._head = 0

    def unsent(self, destination: int) -> tuple[Bucket, ...]:
        """Everything that the destination has neither acknowledged nor been sent; it counts as sent now."""
        after = max(self.floor[destination], self.sent[destination])
        if after >= self.produced_through:
            return ()
        found = tuple(self._buckets[bisect_right(self._numbers, after, self._head) :])
        self.sent[destination] = self.produced_through
        return found

    def rewind(self, destination: int, after: BucketId) -> None:
        """Send again what comes after this number; nothing through it, even if it is produced only later."""
        self.sent[destination] = after

    def reserve(self, destination: int, like: Collection[int]) -> None:
        """A destination begins anew: keep for it what the slowest of the others has not acknowledged."""
        least = min((self.floor[other] for other in like), default=self.gone_through)
        self.floor[destination] = max(least, self.gone_through)
        self.sent[destination] = NOTHING

    def adopt(
        self,
        kept: Sequence[Bucket],
        *,
        produced_through: BucketId,
        gone_through: BucketId,
        floors: Mapping[int, BucketId],
    ) -> None:
        """Take over the contents of a replica's buffer. Only for a buffer never used."""
        require(self.produced_through == NOTHING, "a used buffer cannot adopt another one")
        require(floors.keys() <= self.floor.keys(), "a floor is of no destination here")
        last = kept[-1].number if kept else gone_through
        require(last <= produced_through, "an adopted buffer holds buckets never produced")
        self.put(kept, ())
        self.floor.update(floors)
        self.produced_through = produced_through
        self.gone_through = gone_through

    def check(self, required: Collection[int], reserved: Collection[int] = ()) -> None:
        """Raise `BrokenInvariant` unless the buffer is in order."""
        numbers = self._numbers[self._head :]
        require(numbers == sorted(set(numbers)), f"entries are out of order: {numbers}")
        require(not numbers or numbers[-1] <= self.produced_through, "an entry is ahead of what was produced")
        require(not numbers or numbers[0] > self.gone_through, "an entry that was removed is still there")
        if required and numbers:
            least = min(self.floor[destination] for destination in (*required, *reserved))
            require(numbers[0] > least, f"bucket {numbers[0]} is acknowledged by all and still kept")
        for destination in required:
            floor = self.floor[destination]
            require(
                floor >= self.gone_through, f"{self.gone_through} is gone, {destination} has only {floor}"
            )
        require(
            self.size_bytes == sum(bucket.size_bytes for bucket in self._buckets[self._head :]),
            "the size in bytes is not that of the entries",
        )
        require(
            self._wanted_bytes == sum(bucket.size_bytes for bucket in self._buckets[self._wanted :]),
            "the size of what is wanted is not that of its entries",
        )


_GONE = Bucket(NOTHING)
