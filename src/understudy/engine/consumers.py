"""The consumers of a fragment's output outside its segment, and the share of it that each takes.

A sink takes every row, and so does a consumer with one partition: all of these get the same table. To a
consumer with several partitions rows are dealt out by the numbers that came out of the query itself (see
`dealing`), so dealing is one sort and one copy of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from understudy.core.bucket import BucketId
from understudy.core.shape.partition import Partition
from understudy.engine.dealing import hidden_column
from understudy.flow.dealing import deal


@dataclass(frozen=True)
class Consumers:
    """`sinks` are the sinks' partitions, `counts` the numbers of partitions of the segments that read it."""

    columns: tuple[str, ...]
    """Of the fragment's output, without hidden ones."""
    sinks: tuple[Partition, ...]
    counts: Mapping[str, int]

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        """All of them, in order."""
        return tuple(
            sorted([*self.sinks, *(Partition(name, n) for name, c in self.counts.items() for n in range(c))])
        )

    def shares(self, rows: Mapping[BucketId, pa.Table]) -> dict[Partition, dict[BucketId, pa.Table]]:
        """What each takes of these buckets; no share is empty."""
        shares: dict[Partition, dict[BucketId, pa.Table]] = {}
        for number in sorted(rows):
            for partition, share in self._dealt(rows[number]):
                if share.num_rows:
                    shares.setdefault(partition, {})[number] = share
        return shares

    def _dealt(self, table: pa.Table) -> list[tuple[Partition, pa.Table]]:
        # By position: names may come twice.
        rows = table.select(list(range(len(self.columns))))
        found = [(sink, rows) for sink in self.sinks]
        for consumer, count in self.counts.items():
            if count == 1:
                found.append((Partition(consumer), rows))
                continue
            parts = deal(rows, table.column(hidden_column(consumer)).to_numpy(), count)
            found += [(Partition(consumer, index), part) for index, part in enumerate(parts)]
        return found
