"""The order-preserving merge of a consumer's inlets (Flux paper, section 4.1).

A consumer has several producers, each of which sends its buckets in rising order: the partitions of the
segments that it reads, and the sources. Bucket k is complete when every producer has sent k or a later
bucket. The merge hands on complete buckets in order, the same ones to all copies of the consumer, however
the arrivals interleaved.

The parts of a bucket are in the order of their producers' names; the engine then puts the rows into a
canonical order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.errors import require
from understudy.core.shape.partition import Partition


class Merge:
    """Buckets of several producers, waiting for one another."""

    def __init__(self, producers: Sequence[Partition], *, through: BucketId = NOTHING) -> None:
        require(bool(producers), "a consumer has at least one producer")
        self._queues: dict[Partition, deque[Bucket]] = {each: deque() for each in sorted(producers)}
        self._received: dict[Partition, BucketId] = dict.fromkeys(self._queues, through)
        self.handed = through
        #: Everything through this number has arrived from every producer.
        self.frontier = through

    def put(self, producer: Partition, buckets: Sequence[Bucket]) -> None:
        first, last = buckets[0].number, buckets[-1].number
        require(first > self._received[producer], f"{producer} sent {first} twice")
        self._received[producer] = last
        self._queues[producer].extend(bucket for bucket in buckets if not bucket.empty)
        self.frontier = min(self._received.values())

    @property
    def waiting(self) -> int:
        """How many buckets with rows the producer that is furthest ahead has waiting here."""
        return max(len(queue) for queue in self._queues.values())

    @property
    def ready(self) -> bool:
        return self.frontier > self.handed

    def take(self, buckets_max: int, bytes_max: int) -> tuple[Bucket, ...]:
        """The next complete buckets, at least one. The last one's number says how far they go.

        A bucket's payload is a tuple of (producer, payload) for every producer that has rows in it.
        """
        require(self.ready, "nothing is complete")
        group: list[Bucket] = []
        size_bytes = 0
        through = self.frontier
        while (number := self._next_number()) is not None:
            parts = {p: q[0] for p, q in self._queues.items() if q and q[0].number == number}
            part_bytes = sum(part.size_bytes for part in parts.values())
            if group and (len(group) == buckets_max or size_bytes + part_bytes > bytes_max):
                through = group[-1].number
                break
            for producer in parts:
                self._queues[producer].popleft()
            size_bytes += part_bytes
            payload = tuple((producer, part.payload) for producer, part in parts.items())
            group.append(Bucket(number, payload, part_bytes))
        if not group or group[-1].number < through:
            group.append(Bucket(through))
        self.handed = through
        return tuple(group)

    def drop(self, through: BucketId) -> None:
        """Hand nothing on through this number, which is complete."""
        require(self.handed < through <= self.frontier, f"{through} is not complete, or was handed on")
        for queue in self._queues.values():
            while queue and queue[0].number <= through:
                queue.popleft()
        self.handed = through

    def _next_number(self) -> BucketId | None:
        """The least number at or before the frontier that has rows."""
        least = min((queue[0].number for queue in self._queues.values() if queue), default=None)
        return least if least is not None and least <= self.frontier else None

    def check(self) -> None:
        require(self.frontier == min(self._received.values()), "the frontier is not the least of all")
        require(self.handed <= self.frontier, f"handed on {self.handed}, complete is {self.frontier}")
        for producer, queue in self._queues.items():
            numbers = [bucket.number for bucket in queue]
            require(numbers == sorted(set(numbers)), f"{producer} is out of order: {numbers}")
            require(all(n > self.handed for n in numbers), f"{producer} still holds what was handed on")
