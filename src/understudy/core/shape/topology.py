"""The topology of a flow: which partitions there are, and which of them feed which.

Every partition of a segment takes part of the output of every partition of each segment that it reads, so
between two segments all partitions are neighbours. A source feeds the partitions of the segments that read
it. A sink takes the output of all partitions of one segment. Sources and sinks are the **ends**: they have
one partition with one copy, on the gateway.

A segment's *level* is one more than that of the highest segment it reads. Recovery goes by levels, lowest
first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from understudy.core.errors import require
from understudy.core.shape.partition import Copy, Partition


@dataclass(frozen=True)
class Topology:
    """`inputs` has every segment after those it reads; a name there that is no segment is a source.

    `sinks` says which segment feeds each sink. Segments, sources and sinks have different names.
    """

    inputs: Mapping[str, tuple[str, ...]]
    counts: Mapping[str, int]
    sinks: Mapping[str, str]

    def __post_init__(self) -> None:
        require(bool(self.inputs), "a flow has at least one segment")
        require(self.inputs.keys() == self.counts.keys(), "every segment has a number of partitions")
        require(set(self.sinks.values()) <= self.inputs.keys(), "a sink reads a segment")
        require(not self.sinks.keys() & {*self.inputs, *self.sources}, "a sink has the name of a stream")
        known: set[str] = set(self.sources)
        for name, read in self.inputs.items():
            require(bool(read) and set(read) <= known, f"segment {name!r} comes before what it reads: {read}")
            require(self.counts[name] >= 1, f"segment {name!r} needs at least one partition")
            known.add(name)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The names that are read and are no segments."""
        return tuple(sorted({name for read in self.inputs.values() for name in read} - self.inputs.keys()))

    @cached_property
    def ends(self) -> frozenset[Partition]:
        return frozenset(Partition(name) for name in (*self.sources, *self.sinks))

    def partitions_of(self, name: str) -> tuple[Partition, ...]:
        """The partitions of a segment, a source or a sink."""
        return tuple(Partition(name, index) for index in range(self.counts.get(name, 1)))

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        """The partitions of all segments, lowest level first."""
        return tuple(partition for level in self.levels for partition in level)

    @cached_property
    def levels(self) -> tuple[tuple[Partition, ...], ...]:
        """The partitions of segments by level, lowest first."""
        depth: dict[str, int] = {}
        for name, read in self.inputs.items():
            depth[name] = 1 + max((depth[each] for each in read if each in self.inputs), default=-1)
        levels: list[list[Partition]] = [[] for _ in range(1 + max(depth.values()))]
        for name, level in depth.items():
            levels[level] += self.partitions_of(name)
        return tuple(tuple(level) for level in levels)

    @cached_property
    def _producers(self) -> dict[Partition, tuple[Partition, ...]]:
        found = {Partition(sink): self.partitions_of(name) for sink, name in self.sinks.items()}
        for name, read in self.inputs.items():
            below = tuple(partition for each in sorted(set(read)) for partition in self.partitions_of(each))
            for partition in self.partitions_of(name):
                found[partition] = below
        return found

    def producers(self, partition: Partition) -> tuple[Partition, ...]:
        """The partitions whose output this partition takes."""
        return self._producers.get(partition, ())

    @cached_property
    def _consumers(self) -> dict[Partition, tuple[Partition, ...]]:
        found: dict[Partition, list[Partition]] = {}
        for partition, below in sorted(self._producers.items()):
            for producer in below:
                found.setdefault(producer, []).append(partition)
        return {partition: tuple(above) for partition, above in found.items()}

    def consumers(self, partition: Partition) -> tuple[Partition, ...]:
        """The partitions that take this partition's output."""
        return self._consumers.get(partition, ())

    def copies(self, replicas: int) -> tuple[Copy, ...]:
        """Every copy of every partition of a segment, lowest level first."""
        return tuple(Copy(partition, r) for partition in self.partitions for r in range(replicas))


def chain_of(**counts: int) -> Topology:
    """A flow whose segments read one another in the order given: one source, a sink on the last."""
    names = list(counts)
    inputs = {name: (names[at - 1],) if at else ("source",) for at, name in enumerate(names)}
    return Topology(inputs, counts, {"sink": names[-1]})
