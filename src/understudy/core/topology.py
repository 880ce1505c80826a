"""The shape of a partitioned flow: which partitions there are, and who feeds whom.

Every partition of a fragment takes part of what every partition of each fragment that it reads puts out, so
between two fragments everybody is everybody's neighbour. Sources come in through one *ingress*, and what has
sinks goes out through one *egress*; the two are partitions of no fragment, and have one copy each.

A fragment's *level* is one more than that of the highest it reads. Recovery goes by levels, lowest first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from understudy.core.errors import require
from understudy.core.partition import Partition

# No fragment can have these names.
INGRESS = Partition("<ingress>")
EGRESS = Partition("<egress>")
ENDS = (INGRESS, EGRESS)


@dataclass(frozen=True)
class Topology:
    """`inputs` has every fragment after those it reads; a name that is no fragment is that of a source."""

    inputs: Mapping[str, tuple[str, ...]]
    counts: Mapping[str, int]
    sinks: frozenset[str]

    def __post_init__(self) -> None:
        require(self.inputs.keys() == self.counts.keys(), "every fragment has a number of partitions")
        require(self.sinks <= self.inputs.keys(), "a sink reads a fragment")
        for fragment, count in self.counts.items():
            require(count >= 1, f"fragment {fragment!r} must have at least one partition, not {count}")

    def partitions_of(self, fragment: str) -> list[Partition]:
        return [Partition(fragment, index) for index in range(self.counts[fragment])]

    @cached_property
    def levels(self) -> list[list[Partition]]:
        """The partitions by level, lowest first."""
        depth: dict[str, int] = {}
        for fragment, read in self.inputs.items():
            depth[fragment] = 1 + max((depth[name] for name in read if name in self.inputs), default=-1)
        levels: list[list[Partition]] = [[] for _ in range(1 + max(depth.values()))]
        for fragment, level in depth.items():
            levels[level] += self.partitions_of(fragment)
        return levels

    def reads_sources(self, fragment: str) -> bool:
        return any(name not in self.inputs for name in self.inputs[fragment])

    @cached_property
    def _producers(self) -> dict[Partition, tuple[Partition, ...]]:
        found = {EGRESS: tuple(p for name in sorted(self.sinks) for p in self.partitions_of(name))}
        for fragment, read in self.inputs.items():
            below = [INGRESS] if self.reads_sources(fragment) else []
            for name in sorted(set(read) & self.inputs.keys()):
                below += self.partitions_of(name)
            for partition in self.partitions_of(fragment):
                found[partition] = tuple(below)
        return found

    def producers(self, partition: Partition) -> tuple[Partition, ...]:
        """Whose output this partition takes."""
        return self._producers.get(partition, ())

    @cached_property
    def _consumers(self) -> dict[Partition, tuple[Partition, ...]]:
        found: dict[Partition, list[Partition]] = {}
        for partition, below in sorted(self._producers.items()):
            for producer in below:
                found.setdefault(producer, []).append(partition)
        return {partition: tuple(above) for partition, above in found.items()}

    def consumers(self, partition: Partition) -> tuple[Partition, ...]:
        """Who takes this partition's output."""
        return self._consumers.get(partition, ())

    def neighbours(self, partition: Partition) -> tuple[Partition, ...]:
        return (*self.producers(partition), *self.consumers(partition))


def chain_of(**counts: int) -> Topology:
    """A flow whose fragments read one another in the order given, with a sink on the last."""
    names = list(counts)
    inputs = {name: (names[at - 1],) if at else ("source",) for at, name in enumerate(names)}
    return Topology(inputs, counts, frozenset(names[-1:]))
