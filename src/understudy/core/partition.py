"""Partitions and their copies: the names that a partitioned flow is spoken of in.

A *partition* is one share of one part of the flow: of a fragment, or of the ingress or egress around them.
Every partition of a fragment has two *copies*, one per slot; the copies in one slot make up one dataflow of
the pair.
"""

from __future__ import annotations

from dataclasses import dataclass

from understudy.core.errors import require
from understudy.core.view import Slot


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """One share of a fragment. Partitions order by fragment, then index."""

    fragment: str
    index: int = 0

    def __post_init__(self) -> None:
        require(bool(self.fragment), "a partition names its fragment")
        require(self.index >= 0, f"partitions count from 0, not {self.index}")

    def __str__(self) -> str:
        return f"{self.fragment}/{self.index}"

    @classmethod
    def of(cls, text: str) -> Partition:
        """The partition that is written so. Anything else raises `ValueError`."""
        fragment, slash, index = text.rpartition("/")
        if not fragment or not slash or not index.isdecimal():
            raise ValueError(f"{text!r} is no partition; write it like sessions/0")
        return cls(fragment, int(index))


@dataclass(frozen=True, slots=True)
class Copy:
    """One of the two replicas of a partition."""

    partition: Partition
    slot: Slot

    @property
    def other(self) -> Copy:
        return Copy(self.partition, self.slot.other)

    def __str__(self) -> str:
        return f"{self.partition}:{self.slot.value}"

    @classmethod
    def of(cls, text: str) -> Copy:
        """The copy that is written so. Anything else raises `ValueError`."""
        partition, _, slot = text.rpartition(":")
        return cls(Partition.of(partition), Slot(slot))
