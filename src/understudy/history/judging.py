"""Judges histories: the same invariants as in the simulator, read from what a run wrote down.

    in-order        what the sink was given rises, within each record and from one to the next
    loss-free       each delivery follows on the one before it: `after` is the previous `through`; a delivered
                    bucket has the part of every partition that made rows of it for the sinks
    dup-free        no delivery begins before the end of an earlier one, and a bucket has each part once
    contents        a delivered bucket has no other part, each is what a copy of its partition produced under
                    that number, and rows add up
    replicas-agree  copies of a partition never made different rows of one bucket for one consumer
    input-loss-free, input-dup-free
                    what a copy's engine took follows on what that copy took or was given before, and leaves
                    out no bucket of which some producer made rows for its partition. A bucket that was
                    sealed with rows left the ingress with rows. Several fragments may read one source, so
                    the numbers of rows need not be the same
    sealed-once     a number is sealed once, and numbers rise
    views-rise      the controller's epochs rise

A history does not hold the input's rows, so the judge cannot recompute results. It relies on what copies
agree on, and on digests.

There is one kind of history. A whole flow is one partition without a name, to which the ingress gives what
was sealed; a delivered bucket is its one part.

**What is missing** is not held against a run, and not passed over either. Where records were removed on
purpose, the oldest parts, the header that follows tells up to which bucket records may be gone: what would
need those is not judged. Where records are damaged or were never written, positions begin anew, and the
verdict is not clean. A process that was killed may have had more to write: its successor may repeat what it
recorded, and a delivered bucket that nobody has recorded as produced counts against the run only if copies
have gone past it, or every process that held one has ended in good order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

from understudy.core.bucket import NOTHING, BucketId
from understudy.history.evidence import WHOLE, Evidence, who
from understudy.history.reading import Damage, by_process, entries
from understudy.history.records import (
    DeliveredRecord,
    EndedRecord,
    HandedRecord,
    Header,
    InstalledRecord,
    ViewRecord,
    partition_of,
    parts_of,
)
from understudy.history.verdict import Verdict


def judge(paths: str | Path | Iterable[str | Path]) -> Verdict:
    """Read the histories of one run, all files of all processes, and judge them together."""
    files = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    evidence = Evidence()
    for process, parts in by_process(files).items():
        evidence.take(process, entries(parts))
    evidence.close()
    _Passage(evidence).go()
    return evidence.verdict


class _Passage:
    """Goes through the records that have positions, in their order."""

    def __init__(self, known: Evidence) -> None:
        self._known = known
        self._verdict = known.verdict
        self._find = known.find
        #: None: unknown, any position is as good.
        self._delivered_through: BucketId | None = NOTHING
        self._view: ViewRecord | None = None
        self._positions: dict[tuple[str, str, str], BucketId] = {}
        #: Processes of which records are missing: a position that was not heard of may be any.
        self._blind = {name for name, process in known.processes.items() if process.headless}
        self._deliverers = {name for name, record in known.later if isinstance(record, DeliveredRecord)}
        self._begun = set(self._blind)
        #: Processes that have begun again, until their first delivery or view.
        self._fresh_delivery: set[str] = set()
        self._fresh_view: set[str] = set()
        if self._deliverers & self._blind:
            self._delivered_through = None

    def go(self) -> None:
        for name, entry in self._known.later:
            match entry:
                case Header():
                    self._begin(name)
                case Damage():
                    self._forget(name)
                    self._blind.add(name)
                    if name in self._deliverers:
                        self._delivered_through = None
                case DeliveredRecord():
                    self._delivered(name, entry)
                case HandedRecord():
                    self._handed(name, entry)
                case InstalledRecord():
                    self._positions[name, entry.by, entry.of] = entry.through
                case ViewRecord():
                    self._viewed(name, entry)
                case EndedRecord():
                    self._ended(name, entry)

    def _begin(self, name: str) -> None:
        self._forget(name)
        self._blind.discard(name)
        if name in self._begun:
            self._fresh_delivery.add(name)
            self._fresh_view.add(name)
        self._begun.add(name)

    def _forget(self, name: str) -> None:
        self._positions = {key: value for key, value in self._positions.items() if key[0] != name}

    def _viewed(self, name: str, record: ViewRecord) -> None:
        self._verdict.views += 1
        before, self._view = self._view, record
        if before is not None and record.epoch <= before.epoch:
            again = name in self._fresh_view and (record.epoch, record.seats) == (before.epoch, before.seats)
            if not again:
                self._find("views-rise", f"epoch {record.epoch} came after {before.epoch}", record)
        self._fresh_view.discard(name)

    # --- deliveries --------------------------------------------------------------------------------------

    def _delivered(self, name: str, record: DeliveredRecord) -> None:
        self._follows(name, record)
        numbers = [number for number, _, _ in record.buckets]
        if numbers != sorted(set(numbers)) or any(not record.after < n <= record.through for n in numbers):
            what = f"buckets {numbers} do not rise from {record.after} to {record.through}"
            self._find("in-order", what, record)
        present = set(numbers)
        for number in self._results(record.after, record.through):
            if number not in present:
                rows = sum(made.rows for made in self._known.parts[number].values())
                self._find("loss-free", f"bucket {number} has {rows} rows and is left out", record)
        for bucket in record.buckets:
            self._contents(record, *bucket)
        self._verdict.delivered += len(numbers)

    def _follows(self, name: str, record: DeliveredRecord) -> None:
        through = self._delivered_through
        fresh = name in self._fresh_delivery
        self._fresh_delivery.discard(name)
        self._delivered_through = record.through if through is None else max(through, record.through)
        if through is None:
            return
        if record.after < through:
            what = f"after {through} was delivered, a delivery begins after {record.after}"
            self._find("dup-free", what, record)
        elif record.after > through and not (fresh and not self._results(through, record.after)):
            what = f"deliveries stop at {through} and go on after {record.after}"
            self._find("loss-free", what, record)

    def _results(self, after: BucketId, through: BucketId) -> list[BucketId]:
        """The buckets in (after, through] that have rows for the sinks."""
        results = self._known.results
        return results[bisect_right(results, after) : bisect_right(results, through)]

    def _contents(self, record: DeliveredRecord, number: BucketId, rows: int, digest: str) -> None:
        due = {part: made for part, made in self._known.parts.get(number, {}).items() if made.rows}
        try:
            listed = self._listed(rows, digest)
        except ValueError as problem:
            self._find("contents", f"bucket {number}: {problem}", record)
            return
        given = dict(listed)
        if len(given) < len(listed):
            self._find("dup-free", f"bucket {number} has a part twice", record)
        for part in sorted(due.keys() - given.keys()):
            what = f"bucket {number} lacks the {due[part].rows} rows of {_name(part)}"
            self._find("loss-free", what, record)
        for part in sorted(given):
            if part not in due:
                if self._known.may_have_made(part, number):
                    self._verdict.unwitnessed += 1
                else:
                    what = f"no copy of {_name(part)} produced bucket {number} for the sinks"
                    self._find("contents", what, record)
            elif given[part] != due[part].digest:
                what = f"bucket {number}: the part of {_name(part)} is not what {who(due[part])} produced"
                self._find("contents", what, record)
        made = sum(each.rows for each in due.values())
        if given.keys() == due.keys() and len(given) == len(listed) and rows != made:
            self._find("contents", f"bucket {number} has {rows} rows, its parts have {made}", record)

    def _listed(self, rows: int, digest: str) -> list[tuple[str, str]]:
        if self._known.copies:
            return parts_of(digest)
        return [(WHOLE, digest)] if rows else []

    def _ended(self, name: str, record: EndedRecord) -> None:
        """A process that delivers and says that nothing is left to do has delivered all that was produced."""
        through, results = self._delivered_through, self._known.results
        if name in self._deliverers and results and through is not None and results[-1] > through:
            what = f"the run ended with {through} delivered, and bucket {results[-1]} has rows"
            self._find("loss-free", what, record)

    # --- input -------------------------------------------------------------------------------------------

    def _handed(self, name: str, record: HandedRecord) -> None:
        key = name, record.by, record.of
        position = self._positions.get(key, None if name in self._blind else NOTHING)
        self._positions[key] = record.through
        taker = who(record)
        if position is not None and record.after < position:
            self._find("input-dup-free", f"{taker} had {position} and took from {record.after}", record)
        elif position is not None and record.after > position:
            self._find("input-loss-free", f"{taker} had {position}, not {record.after}", record)
        with_rows = self._known.inputs.get(partition_of(record.of), [])
        first, last = bisect_right(with_rows, record.after), bisect_right(with_rows, record.through)
        missing = set(with_rows[first:last]) - set(record.numbers)
        if not missing:
            return
        # A copy of a partition that was given no state takes its input from the very first bucket on.
        began = record.after != NOTHING or bool(record.of)
        if began or min(missing) >= min(record.numbers, default=min(missing)):
            self._find("input-loss-free", f"{taker} never took buckets {sorted(missing)}", record)


def _name(partition: str) -> str:
    return partition or "the flow"
