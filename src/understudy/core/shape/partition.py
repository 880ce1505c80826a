"""Partitions and their copies: the names of the parts of a running flow.

A flow runs as **segments**: a segment is one fragment, or several connected ones that run in one engine. A
**partition** is one share of a segment, and it has one **copy** for each replica that the policy asks for. A
source is a partition with one copy, and so is a sink: they are the ends of the flow.

Where a run saves its state, a partition has one more copy, which does not work: the snapshots in the
**store**. Producers count it like a replica, under the number `STORE`.
"""

from __future__ import annotations

from dataclasses import dataclass

from understudy.core.errors import require

#: The replica number under which producers count what the store holds of a partition.
STORE = -1


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """One share of a segment, or an end of the flow. Partitions order by name, then index."""

    name: str
    index: int = 0

    def __post_init__(self) -> None:
        require(bool(self.name), "a partition has a name")
        require(self.index >= 0, f"partitions count from 0, not {self.index}")

    def __str__(self) -> str:
        return f"{self.name}/{self.index}"

    @classmethod
    def of(cls, text: str) -> Partition:
        """The partition that is written so. Anything else raises `ValueError`."""
        name, slash, index = text.rpartition("/")
        if not name or not slash or not index.isdecimal():
            raise ValueError(f"{text!r} is no partition; write it like sessions/0")
        return cls(name, int(index))


@dataclass(frozen=True, slots=True, order=True)
class Copy:
    """One replica of a partition. Replicas count from 0; replica r of every partition makes dataflow r."""

    partition: Partition
    replica: int = 0

    def __post_init__(self) -> None:
        require(self.replica >= 0, f"replicas count from 0, not {self.replica}")

    def __str__(self) -> str:
        return f"{self.partition}:{self.replica}"

    @classmethod
    def of(cls, text: str) -> Copy:
        """The copy that is written so. Anything else raises `ValueError`."""
        partition, _, replica = text.rpartition(":")
        if not replica.isdecimal():
            raise ValueError(f"{text!r} is no copy of a partition; write it like sessions/0:1")
        return cls(Partition.of(partition), int(replica))
