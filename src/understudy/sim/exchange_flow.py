"""The flow of a simulated exchange: its shape, its partitions' engine, and what must come out of it.

Every level adds up numbers: a row (key, value) goes to the partition that its key belongs to, is added to
that key's sum, and leaves as (next key, sum). So a bucket that is lost, repeated or out of order anywhere
changes what comes after it, and one engine for each partition, fed in one go, says what must arrive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from understudy.core.bucket import Bucket, BucketId
from understudy.core.partition import Partition

Row = tuple[int, int]


@dataclass(frozen=True)
class Shape:
    """How large the flow is and how much may go wrong."""

    partitions: tuple[int, ...] = (2, 2)
    nodes: int = 4
    spares: int = 2
    buckets: int = 30
    faults: int = 6
    group_buckets_max: int = 3
    output_buckets_max: int = 6


class Sums:
    """One partition's engine: a running sum per key."""

    def __init__(self) -> None:
        self.sums: dict[int, int] = {}

    def advance(self, rows: Iterable[Row]) -> list[Row]:
        out: list[Row] = []
        for key, value in sorted(rows):
            self.sums[key] = self.sums.get(key, 0) + value
            out.append(((key * 7 + self.sums[key]) % 11, self.sums[key] % 101))
        return out


def share(rows: Iterable[Row], partitions: list[Partition]) -> dict[Partition, tuple[Row, ...]]:
    """Which rows go to which partition: by key."""
    shares: dict[Partition, list[Row]] = {partition: [] for partition in partitions}
    for row in rows:
        shares[partitions[row[0] % len(partitions)]].append(row)
    return {partition: tuple(sorted(own)) for partition, own in shares.items()}


def reference(levels: list[list[Partition]], inputs: list[Bucket]) -> dict[BucketId, tuple[Row, ...]]:
    """What must be delivered, bucket by bucket: every level in one go."""
    engines = {partition: Sums() for level in levels for partition in level}
    out: dict[BucketId, tuple[Row, ...]] = {}
    for bucket in inputs:
        rows: list[Row] = list(bucket.payload) if isinstance(bucket.payload, tuple) else []
        for level in levels:
            rows = [row for p, own in share(rows, level).items() for row in engines[p].advance(own)]
        if rows:
            out[bucket.number] = tuple(sorted(rows))
    return out


def shape_of(seed: int) -> Shape:
    """A small flow of this seed's own making."""
    random = Random(f"shape/{seed}")
    levels = random.choice([1, 2, 2, 3])
    return Shape(
        partitions=tuple(random.randint(1, 3) for _ in range(levels)),
        nodes=random.randint(2, 5),
        spares=random.randint(0, 3),
        buckets=random.randint(5, 40),
        faults=random.randint(0, 10),
        group_buckets_max=random.randint(1, 5),
        output_buckets_max=random.randint(3, 12),
    )
