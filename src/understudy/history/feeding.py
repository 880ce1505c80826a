"""Whether everything that sources sealed was given to every version of the flow: a part of the evidence.

Every row of a sealed bucket goes to one partition of every segment that reads the source. A source records
what it puts out. Three things look like a loss there and are none:

* What was sealed last may still be on its way when a history stops.
* A later version is fed from some bucket on, while its copies begin with older states. They read what lies in
  between again from the log, and no source records that. The same happens when the gateway begins again in
  the middle of an upgrade.
* A version that is replaced or taken back is fed no more.

So a source must have put out for a version all of every **stretch**: from the first bucket to the newest that
it put out for that version between two beginnings of the gateway. For buckets before and between stretches
the copies are the witnesses. If they have gone past such a bucket in all partitions of a segment, one of them
must have taken rows of it. After the last stretch, only versions that are live when the run ends in good
order must have been given everything.

The first version is there from the beginning. Until it is replaced, every gateway puts out again for it what
its copies may lack, so all of its input is one stretch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from understudy.core.bucket import NOTHING, BucketId
from understudy.history.records import (
    HandedRecord,
    ProducedRecord,
    SealedRecord,
    partition_of,
    version_of,
)

#: A process, and how often it had begun.
Session = tuple[str, int]


@dataclass(slots=True)
class _Feed:
    """What a producer put out for one version of the flow."""

    segments: set[str] = field(default_factory=set)
    #: By the gateway's session, the first bucket and the newest. All sessions of the first version are one.
    stretches: dict[Session | None, tuple[BucketId, BucketId]] = field(default_factory=dict)
    newest: BucketId = NOTHING

    def add(self, segment: str, number: BucketId, session: Session | None) -> None:
        self.segments.add(segment)
        # Only the first version is there from the beginning.
        first, newest = self.stretches.get(session, (NOTHING if session is None else number, number))
        self.stretches[session] = min(first, number), max(newest, number)
        self.newest = max(self.newest, number)

    def within(self, number: BucketId) -> bool:
        """Whether it lies in a stretch. The newest does not: it may have been put out in part."""
        return any(first <= number < newest for first, newest in self.stretches.values())


@dataclass(slots=True)
class _Taken:
    """What the copies of one partition took: in which ranges (after, through], and which had rows."""

    ranges: list[tuple[BucketId, BucketId]] = field(default_factory=list)
    numbers: set[BucketId] = field(default_factory=set)

    def add(self, record: HandedRecord) -> None:
        if self.ranges and self.ranges[-1][1] == record.after:
            self.ranges[-1] = self.ranges[-1][0], record.through
        else:
            self.ranges.append((record.after, record.through))
        self.numbers.update(record.numbers)

    def went_past(self, number: BucketId) -> bool:
        return any(after < number <= through for after, through in self.ranges)


class Feeding:
    """Takes in what was put out and what copies took; then says what is wrong with a sealed bucket's way."""

    def __init__(self) -> None:
        #: By producing partition and version.
        self._feeds: dict[str, dict[int, _Feed]] = {}
        #: By partition, of later versions only.
        self._taken: dict[str, _Taken] = {}
        #: By segment.
        self._partitions: dict[str, set[str]] = {}
        self.versions: set[int] = set()

    def put_out(self, record: ProducedRecord, session: Session) -> None:
        """A producer put a bucket out for a partition of a segment."""
        version = version_of(record.to)
        self.versions.add(version)
        self.seated(record.to)
        feed = self._feeds.setdefault(partition_of(record.of), {}).setdefault(version, _Feed())
        feed.add(_segment(record.to), record.number, None if version == 1 else session)

    def took(self, record: HandedRecord) -> None:
        """A copy took input."""
        partition = partition_of(record.of)
        self.seated(partition)
        if version_of(partition) > 1:
            self._taken.setdefault(partition, _Taken()).add(record)

    def seated(self, partition: str) -> None:
        """There is this partition."""
        self._partitions.setdefault(_segment(partition), set()).add(partition)

    def wrong_with(
        self, sealed: SealedRecord, left: Mapping[str, int], complete: Collection[int]
    ) -> Iterator[tuple[str, str]]:
        """The invariants that a sealed bucket's way breaks, each with a sentence.

        `left` are the rows that left the source for each segment; `complete` are the versions that must have
        been given everything, if there are any.
        """
        number = sealed.number
        feeds = self._feeds.get(f"{sealed.source}/0", {})
        for version, feed in feeds.items():
            if feed.within(number) or (version in complete and number >= feed.newest):
                for segment in sorted(feed.segments):
                    yield from _unlike(sealed, left.get(segment, 0), segment)
            elif number < feed.newest:
                for segment in sorted(filter(lambda each: self._passed_over(each, number), feed.segments)):
                    what = f"of bucket {number} of {sealed.source}, no copy of {segment} took any row"
                    yield "input-loss-free", f"{what}; {sealed.rows} were sealed"
        given_to_none = all(number > feed.newest for feed in feeds.values())
        if complete and given_to_none and feeds.keys().isdisjoint(complete):
            yield from _unlike(sealed, 0, "any segment")

    def _passed_over(self, segment: str, number: BucketId) -> bool:
        """Whether copies of all partitions have gone past this bucket, and none took any row of it."""
        taken = [self._taken.get(partition, _Taken()) for partition in self._partitions[segment]]
        return all(each.went_past(number) and number not in each.numbers for each in taken)


def _unlike(sealed: SealedRecord, gone: int, segment: str) -> Iterator[tuple[str, str]]:
    if gone != sealed.rows:
        invariant = "input-loss-free" if gone < sealed.rows else "input-dup-free"
        what = f"{gone} rows left {sealed.source} for {segment}; {sealed.rows} were sealed"
        yield invariant, f"of bucket {sealed.number}, {what}"


def _segment(partition: str) -> str:
    return partition.rpartition("/")[0]
