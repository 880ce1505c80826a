"""What all versions of a flow have in common at their gateway: the sources, with one log and one tap each.

**The log** goes as far as every version lets it. A version whose ends are not here yet has nothing in memory,
so it holds up no trimming. But the states that it is to begin with may need all that the log has, so it does
hold up forgetting.

**A source waits** for the versions whose output some sink takes. For another one it waits only when too
much waits for that one already: who upgrades the run lets go of such a version long before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from understudy.core.bucket import BucketId
from understudy.runtime.gateway.edition import Edition
from understudy.runtime.ingest.buckets import SealedBucket


class Intake(Protocol):
    """What sources need of their gateway. None of these may block."""

    def trim(self, source: str, through: BucketId) -> None: ...

    def forget(self, source: str, through: BucketId) -> None: ...

    def room(self, source: str, there_is: bool) -> None: ...


class SharedSources:
    """`trimmed` and `forgotten` say how far the log is, `recovered` what was sealed since. Belongs to the
    boundaries' actor.
    """

    def __init__(
        self,
        intake: Intake,
        trimmed: Mapping[str, BucketId],
        forgotten: Mapping[str, BucketId],
        recovered: Sequence[SealedBucket],
    ) -> None:
        self._intake = intake
        #: What the intake was told last.
        self.trimmed = dict(trimmed)
        self.forgotten = dict(forgotten)
        self._room = dict.fromkeys(trimmed, True)
        #: By source, the last bucket that was put in.
        self.sealed_through = dict(trimmed)
        self.note_sealed(recovered)

    def note_sealed(self, buckets: Iterable[SealedBucket]) -> None:
        """These are put into every version whose ends are here."""
        for bucket in buckets:
            self.sealed_through[bucket.source] = bucket.number

    def let_go(self, editions: Iterable[Edition]) -> None:
        """Let the log go as far as every version does."""
        editions = list(editions)
        for source, before in list(self.trimmed.items()):
            readers = [each for each in editions if each.reads(source)]
            claims = [each.trimmed[source] for each in readers if each.boundary is not None]
            through = max(before, min(claims, default=before))
            if through > before:
                self.trimmed[source] = through
                self._intake.trim(source, through)
            gone = min([through, *(each.forgotten[source] for each in readers)])
            if gone > self.forgotten[source]:
                self.forgotten[source] = gone
                self._intake.forget(source, gone)

    def make_room(self, taken: Iterable[Edition], others: Iterable[Edition]) -> None:
        """A source waits for the versions that sinks take; for the others only if too much waits already."""
        crowded = {source for each in taken for source in each.crowded}
        crowded |= {source for each in others for source in each.overfull}
        for source, before in self._room.items():
            room = source not in crowded
            if room != before:
                self._room[source] = room
                self._intake.room(source, room)
