"""What a gateway finds when it starts again: it outlives the process that writes to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from understudy.core.bucket import NOTHING, Bucket, BucketId


@dataclass(eq=False, slots=True)
class Disk:
    """The logs of a gateway's sources and what its sinks hold."""

    sealed: dict[str, int]
    trimmed: dict[str, BucketId]
    #: How much of each source's log is gone. Where state is saved, it goes further back than memory.
    forgotten: dict[str, BucketId]
    delivered: dict[str, BucketId]

    @classmethod
    def empty(cls, sources: Iterable[str], sinks: Iterable[str]) -> Disk:
        names, nothing = list(sources), dict.fromkeys(sources, NOTHING)
        return cls(dict.fromkeys(names, 0), nothing, dict(nothing), dict.fromkeys(sinks, NOTHING))

    def begins_after(self, source: str) -> BucketId:
        """The number after which the memory of a gateway that starts begins."""
        return self.trimmed[source]

    def unread(self, source: str, inputs: Sequence[Bucket]) -> int:
        """The first bucket that a gateway which starts must read again from a source's log."""
        begins_after = self.begins_after(source)
        return sum(bucket.number <= begins_after for bucket in inputs)

    def trim(self, source: str, trimmed: BucketId, needed: BucketId) -> None:
        """All live copies have a source's buckets through `trimmed`, and no copy will ever ask for anything
        through `needed` again.
        """
        self.trimmed[source] = max(self.trimmed[source], trimmed)
        self.forgotten[source] = max(self.forgotten[source], min(self.trimmed[source], needed))
