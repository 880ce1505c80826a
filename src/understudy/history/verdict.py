"""What the judge says of the histories of one run."""

from __future__ import annotations

from dataclasses import dataclass, field

from understudy.core.bucket import BucketId
from understudy.history.reading import Damage


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken invariant, and the record that shows it."""

    invariant: str
    what: str
    record: str


@dataclass(slots=True)
class Verdict:
    """What the histories of one run showed."""

    flow: str = ""
    records: int = 0
    sealed: int = 0
    delivered: int = 0
    deliveries: int = 0
    """How often a sink got further, with rows or without."""
    finished: bool = False
    """Whether the run ended because every source had ended and everything was delivered."""
    lost: tuple[str, ...] = ()
    """The partitions of which the last view of the live version knows no living copy."""
    views: int = 0
    partitions: int = 0
    copies: int = 0
    findings: list[Finding] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    """Records that were written and cannot be read, or should have been written and were not."""
    unfinished: list[Damage] = field(default_factory=list)
    """Last lines of processes that were killed."""
    judged_from: BucketId | None = None
    """Of buckets before this one only some records are left; None: nothing was removed."""
    unwitnessed: int = 0
    """Delivered buckets that are not on record as produced, where a process may have had more to write."""
    left_out: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By stream, the columns whose values digests do not cover."""

    @property
    def clean(self) -> bool:
        """Whether every invariant holds, and nothing is missing that would be needed to say so."""
        return not self.findings and not self.damages
