"""Shares: which rows of a sealed bucket each partition takes, and the buckets of a source on their way in.

Every segment that reads a source gets each of its rows once, in the partition that has the row's keys.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.shape.partition import Partition
from understudy.core.shape.topology import Topology
from understudy.flow.dealing import deal, partition_numbers
from understudy.runtime.ingest.buckets import SealedBucket
from understudy.runtime.payload import encode

#: A sealed bucket's number, and its shares by partition.
Dealt = tuple[BucketId, dict[Partition, Bucket]]


class Dealer:
    """Deals out the buckets of one version of a flow. `keys` are the columns that split a segment, by its
    name. For any thread.
    """

    def __init__(self, topology: Topology, keys: Mapping[str, Sequence[str]]) -> None:
        self._topology = topology
        self._keys = keys

    def dealt(self, bucket: SealedBucket, only: str | None = None) -> Dealt:
        """The bucket's rows, by the partition that takes them; every partition hears of its number.

        `only` those of one segment are wanted.
        """
        shares: dict[Partition, Bucket] = {}
        all_rows: Bucket | None = None
        for partition in self._topology.consumers(Partition(bucket.source)):
            if partition in shares or only not in (None, partition.name):
                continue
            count = self._topology.counts[partition.name]
            if bucket.table is None or not bucket.table.num_rows:
                shares[partition] = Bucket(bucket.number)
            elif count == 1:
                # Encoded once, however many segments read it.
                all_rows = all_rows or _holding(bucket.number, bucket.source, bucket.table)
                shares[partition] = all_rows
            else:
                keys = self._keys[partition.name]
                parts = deal(bucket.table, partition_numbers(bucket.table, keys, count), count)
                for index, part in enumerate(parts):
                    share = _holding(bucket.number, bucket.source, part)
                    shares[Partition(partition.name, index)] = share
        return bucket.number, shares

    def share(self, bucket: SealedBucket, partition: Partition) -> Bucket:
        """The share of one partition, of a bucket that was read again."""
        return self.dealt(bucket, partition.name)[1][partition]


@dataclass
class Incoming:
    """A source's buckets on their way in."""

    waiting: deque[Dealt] = field(default_factory=deque)
    waiting_bytes: int = 0
    trimmed: BucketId = NOTHING
    forgotten: BucketId = NOTHING
    #: Whether the intake may let clients and readers push.
    room: bool = True
    #: Whether no more may wait, whoever can do without it.
    overfull: bool = False

    def add(self, dealt: Dealt) -> None:
        self.waiting.append(dealt)
        self.waiting_bytes += _size_bytes(dealt)

    def take(self, count_max: int) -> list[Dealt]:
        taken = [self.waiting.popleft() for _ in range(min(count_max, len(self.waiting)))]
        self.waiting_bytes -= sum(map(_size_bytes, taken))
        return taken


def _size_bytes(dealt: Dealt) -> int:
    return sum(share.size_bytes for share in dealt[1].values())


def _holding(number: BucketId, stream: str, table: pa.Table) -> Bucket:
    if not table.num_rows:
        return Bucket(number)
    payload = encode({stream: table})
    return Bucket(number, payload, len(payload))
