"""The marked buffer of the Flux paper (section 3.1.3, figure 3): redundant store and duplicate filter in
one.

An entry is a number, the bucket with that number, and marks. The mark PROD says that the bucket was
produced here: it is there if, and only if, the entry holds its bucket. The marks PRIM and SEC say that the
destination in that slot has acknowledged the number. A number that was acknowledged before it was produced
has no bucket yet; the paper calls it *dangling*. It waits in the buffer, and the bucket is dropped the
moment it is put.

`required` (the paper's `del`) names the destinations whose marks, besides PROD, an entry needs to be
removed.

Every destination has a cursor on its first undelivered bucket. `reset(dest)` gives a destination the marks
of the other one and points its cursor at the first bucket that is not acknowledged: from there a copy of
the other one's state must go on. `rewind(dest)` moves the cursor alone, for a connection that was lost and
stands again; what the destination already received it may leave out without letting go of it.

Acknowledgements count in one of two ways. With `Acks.EACH` each names one number, as in the figure. With
`Acks.CUMULATIVE` one means all numbers up to it, which the paper sketches as an optimisation: dangling
numbers are then one *floor* per destination instead of a set, an acknowledgement that is lost is made good
by the next one, and a number is all it takes to say where a replica stands.

Invariants (`check`): produced numbers rise; nothing that could be removed is still there; every cursor
points at a bucket that is there and is not acknowledged; dangling numbers are ahead of what is produced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.errors import require
from understudy.core.view import Slot


class Acks(Enum):
    """How acknowledgements count."""

    EACH = "each"
    CUMULATIVE = "cumulative"


@dataclass(slots=True)
class _Entry:
    bucket: Bucket
    marks: set[Slot] = field(default_factory=set)


class MarkedBuffer:
    """Produced buckets that some destination may still need, and numbers acknowledged ahead of production."""

    def __init__(
        self,
        destinations: Sequence[Slot],
        acks: Acks = Acks.CUMULATIVE,
        *,
        buckets_max: int = 100_000,
        bytes_max: int = 256 * 2**20,
    ) -> None:
        self.destinations = tuple(destinations)
        self.acks = acks
        self.buckets_max = buckets_max
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self.produced_through = NOTHING
        self._entries: dict[BucketId, _Entry] = {}
        self._dangling: dict[BucketId, set[Slot]] = {}
        self._floor: dict[Slot, BucketId] = dict.fromkeys(self.destinations, NOTHING)
        self._delivered: dict[Slot, BucketId] = dict.fromkeys(self.destinations, NOTHING)
        self._undelivered: dict[Slot, deque[BucketId]] = {dest: deque() for dest in self.destinations}

    # --- reading -----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Bucket]:
        """The buckets that are kept, oldest first."""
        return (entry.bucket for entry in self._entries.values())

    @property
    def full(self) -> bool:
        return len(self._entries) >= self.buckets_max or self.size_bytes >= self.bytes_max

    @property
    def trimmed_through(self) -> BucketId:
        """Everything through this number has been produced and is gone."""
        oldest = next(iter(self._entries), None)
        return self.produced_through if oldest is None else oldest - 1

    @property
    def dangling(self) -> tuple[BucketId, ...]:
        """Numbers acknowledged one by one whose buckets are not produced yet."""
        return tuple(sorted(self._dangling))

    def floor(self, dest: Slot) -> BucketId:
        """The greatest number that the destination acknowledged cumulatively."""
        return self._floor[dest]

    def acknowledged(self, number: BucketId, dest: Slot) -> bool:
        """Whether the destination acknowledged this number, which is in the buffer."""
        if number <= self._floor[dest]:
            return True
        entry = self._entries.get(number)
        return dest in (entry.marks if entry is not None else self._dangling.get(number, ()))

    def peek(self, dest: Slot) -> Bucket | None:
        """The first undelivered bucket for the destination, or None."""
        undelivered = self._undelivered[dest]
        return self._entries[undelivered[0]].bucket if undelivered else None

    # --- changing ----------------------------------------------------------------------------------------

    def advance(self, dest: Slot) -> None:
        """Move the destination's cursor past the bucket that `peek` returned."""
        self._undelivered[dest].popleft()
        self._skip_acknowledged(dest)

    def put(self, bucket: Bucket, required: Iterable[Slot]) -> None:
        """Insert a produced bucket; drop it at once if all required marks are already there."""
        require(
            bucket.number > self.produced_through,
            f"bucket {bucket.number} was produced after {self.produced_through}: numbers must rise",
        )
        marks = self._dangling.pop(bucket.number, set())
        self.produced_through = bucket.number
        self._entries[bucket.number] = _Entry(bucket, marks)
        self.size_bytes += bucket.size_bytes
        for dest in self.destinations:
            if bucket.number > self._delivered[dest] and not self.acknowledged(bucket.number, dest):
                self._undelivered[dest].append(bucket.number)
        self._remove_if_done(bucket.number, frozenset(required))

    def ack(self, number: BucketId, dest: Slot, required: Iterable[Slot]) -> None:
        """Mark the number, or with cumulative acks every number up to it, as acknowledged by `dest`."""
        if self.acks is Acks.CUMULATIVE:
            self.ack_through(number, dest, required)
        elif number in self._entries:
            self._entries[number].marks.add(dest)
            self._skip_acknowledged(dest)
            self._remove_if_done(number, frozenset(required))
        elif number > self.produced_through:
            self._dangling.setdefault(number, set()).add(dest)

    def ack_through(self, number: BucketId, dest: Slot, required: Iterable[Slot]) -> None:
        """Mark every number up to this one, produced or not, whichever way single acks count."""
        if number <= self._floor[dest]:
            return
        self._floor[dest] = number
        for dangling in [n for n, marks in self._dangling.items() if n <= number and dest in marks]:
            self._unmark_dangling(dangling, dest)
        self._skip_acknowledged(dest)
        self._remove_done(frozenset(required))

    def ack_all(self, dest: Slot, required: Iterable[Slot]) -> None:
        """Count everything as acknowledged by a destination that is gone, and forget what it acked ahead."""
        self._floor[dest] = max(self._floor[dest], self.produced_through)
        for number in [n for n, marks in self._dangling.items() if dest in marks]:
            self._unmark_dangling(number, dest)
        self._undelivered[dest].clear()
        self._remove_done(frozenset(required))

    def reset(
        self, dest: Slot, like: Slot, required: Iterable[Slot], *, through: BucketId | None = None
    ) -> None:
        """Give `dest` the marks of `like`; point its cursor at the first bucket not acknowledged.

        With cumulative acks `through` says where that is, whatever `like` has acknowledged since. It may lie
        before all that is kept: then everything is.
        """
        if through is None or self.acks is Acks.EACH:
            self._floor[dest] = self._floor[like]
        else:
            self._floor[dest] = through
        for entry in self._entries.values():
            entry.marks.discard(dest)
            if like in entry.marks:
                entry.marks.add(dest)
        for number, marks in list(self._dangling.items()):
            marks.discard(dest)
            if like in marks:
                marks.add(dest)
            if not marks:
                del self._dangling[number]
        self.rewind(dest)
        self._remove_done(frozenset(required))

    def rewind(self, dest: Slot, *, after: BucketId = NOTHING) -> None:
        """Point the cursor at the first bucket that the destination has not acknowledged.

        It has received what comes up to `after`: none of that is sent to it, even if it is produced only
        later. But only an acknowledgement lets go of a bucket.
        """
        self._delivered[dest] = after
        self._undelivered[dest] = deque(
            n for n in self._entries if n > after and not self.acknowledged(n, dest)
        )

    def install(
        self,
        unacked: Iterable[Bucket],
        acked: Iterable[BucketId],
        dest: Slot,
        *,
        produced_through: BucketId,
        acked_through: BucketId,
    ) -> None:
        """Take over the contents of another buffer with one destination. Only for a buffer never used."""
        require(
            self.produced_through == NOTHING and not self._dangling, "a used buffer cannot be installed into"
        )
        kept = tuple(unacked)
        require(
            not kept or kept[-1].number <= produced_through,
            "an installed buffer holds buckets never produced",
        )
        self._floor[dest] = acked_through
        self._dangling = {number: {dest} for number in acked}
        for bucket in kept:
            self.put(bucket, self.destinations)
        self.produced_through = produced_through

    def adopt(
        self, kept: Iterable[Bucket], *, produced_through: BucketId, acked_through: Mapping[Slot, BucketId]
    ) -> None:
        """Take over the contents of a replica's buffer with cumulative acks. Only for a buffer never used."""
        require(self.produced_through == NOTHING, "a used buffer cannot adopt another one")
        require(acked_through.keys() <= set(self.destinations), "a mark is of no destination here")
        self._floor.update(acked_through)
        for bucket in kept:
            self.put(bucket, acked_through.keys())
        require(self.produced_through <= produced_through, "an adopted buffer holds buckets never produced")
        self.produced_through = produced_through

    # --- inside ------------------------------------------------------------------------------------------

    def _unmark_dangling(self, number: BucketId, dest: Slot) -> None:
        self._dangling[number].discard(dest)
        if not self._dangling[number]:
            del self._dangling[number]

    def _skip_acknowledged(self, dest: Slot) -> None:
        undelivered = self._undelivered[dest]
        while undelivered and self.acknowledged(undelivered[0], dest):
            undelivered.popleft()

    def _done(self, number: BucketId, required: frozenset[Slot]) -> bool:
        return all(self.acknowledged(number, dest) for dest in required)

    def _remove_if_done(self, number: BucketId, required: frozenset[Slot]) -> None:
        if self._done(number, required):
            self._remove(number)

    def _remove_done(self, required: frozenset[Slot]) -> None:
        if self.acks is Acks.CUMULATIVE:
            # Floors alone decide, so what can go is a prefix.
            while self._entries and self._done(next(iter(self._entries)), required):
                self._remove(next(iter(self._entries)))
        else:
            for number in [n for n in self._entries if self._done(n, required)]:
                self._remove(number)

    def _remove(self, number: BucketId) -> None:
        entry = self._entries.pop(number)
        self.size_bytes -= entry.bucket.size_bytes
        for undelivered in self._undelivered.values():
            if undelivered and undelivered[0] == number:
                undelivered.popleft()
            elif number in undelivered:
                undelivered.remove(number)

    def check(self, required: Iterable[Slot]) -> None:
        """Raise `BrokenInvariant` unless the buffer is in order."""
        needed = frozenset(required)
        numbers = list(self._entries)
        require(numbers == sorted(numbers), f"entries are out of order: {numbers}")
        require(not numbers or numbers[-1] <= self.produced_through, "an entry is ahead of what was produced")
        require(all(n > self.produced_through for n in self._dangling), f"{self.dangling} are not ahead")
        for number in numbers:
            require(not self._done(number, needed), f"bucket {number} is acknowledged by all and still kept")
        for dest, undelivered in self._undelivered.items():
            for number in undelivered:
                require(number in self._entries, f"the cursor of {dest} points at {number}, which is gone")
        require(
            self.size_bytes == sum(entry.bucket.size_bytes for entry in self._entries.values()),
            "the size in bytes is not that of the entries",
        )
