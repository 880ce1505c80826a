"""Judges histories: the same invariants as in the simulator, read from what a run wrote down.

    in-order        what a sink was given rises, within each record and from one to the next
    loss-free       each delivery follows on the one before it: `after` is the previous `through`; a delivered
                    bucket has the part of every partition that made rows of it for the sinks
    dup-free        no delivery begins before the end of an earlier one, and a bucket has each part once
    contents        a delivered bucket has no other part, each is what a copy of its partition produced under
                    that number, and rows add up
    replicas-agree  copies of a partition never made different rows of one bucket for one consumer
    input-loss-free, input-dup-free
                    what a copy's engine took follows on what that copy took or was given before, and leaves
                    out no bucket of which some producer made rows for its partition. Every row that a source
                    sealed went to one partition of every segment that reads the source
    sealed-once     a source seals a number once, and its numbers rise
    views-rise      the controller's epochs rise

A history does not hold the input's rows, so the judge cannot recompute results. It relies on the agreement
between copies, and on digests.

**Missing records** are not held against a run, and not passed over either. Where the oldest parts were
removed on purpose, the header that follows says up to which bucket records may be gone, and the judge does
not judge those buckets. Where records are damaged or were never written, positions begin anew, and the
verdict is not clean. A process that was killed may have had more to write: its successor may repeat what it
recorded, and a delivered bucket that no process has recorded as produced counts against the run only if
copies have gone past it, or every process that held a copy has ended in good order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.view.view import Status
from understudy.history.evidence import SINK, Evidence, who
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
        #: By sink. None: unknown, any position is as good.
        self._delivered_through: dict[str, BucketId | None] = {}
        self._delivered_first: BucketId | None = NOTHING
        self._view: ViewRecord | None = None
        self._positions: dict[tuple[str, str, str], BucketId] = {}
        #: Processes of which records are missing: a position that was not heard of may be any.
        self._blind = {name for name, process in known.processes.items() if process.headless}
        self._gateways = {name for name, process in known.processes.items() if process.at_the_ends}
        self._begun = set(self._blind)
        #: Processes that have begun again, with the sinks they have delivered to since.
        self._since_begun: dict[str, set[str]] = {}
        self._fresh_view: set[str] = set()
        if self._gateways & self._blind:
            self._delivered_first = None

    def go(self) -> None:
        for name, entry in self._known.later:
            match entry:
                case Header():
                    self._begin(name)
                case Damage():
                    self._forget(name)
                    self._blind.add(name)
                    if name in self._gateways:
                        self._delivered_through = dict.fromkeys(self._delivered_through)
                        self._delivered_first = None
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
        if self._view is not None:
            living = {
                partition_of(copy) for copy, _, _, status in self._view.seats if status != Status.DEAD.name
            }
            partitions = {partition_of(copy) for copy, *_ in self._view.seats}
            self._verdict.lost = tuple(sorted(partitions - living))

    def _begin(self, name: str) -> None:
        self._forget(name)
        self._blind.discard(name)
        if name in self._begun:
            self._since_begun[name] = set()
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
            what = f"buckets {numbers} do not rise from {_place(record.after)} to {record.through}"
            self._find("in-order", what, record)
        present = set(numbers)
        for number in self._results(record.sink, record.after, record.through):
            if number not in present:
                parts = self._known.parts[_to(record.sink)][number]
                rows = sum(made.rows for made in parts.values())
                what = f"bucket {number} has {rows} rows for {record.sink} and is left out"
                self._find("loss-free", what, record)
        for bucket in record.buckets:
            self._contents(record, *bucket)
        self._verdict.delivered += len(numbers)

    def _follows(self, name: str, record: DeliveredRecord) -> None:
        sink = record.sink
        through = self._delivered_through.get(sink, self._delivered_first)
        fresh = name in self._since_begun and sink not in self._since_begun[name]
        self._since_begun.setdefault(name, set()).add(sink)
        self._delivered_through[sink] = record.through if through is None else max(through, record.through)
        if through is None:
            return
        if record.after < through:
            what = f"after {through} was delivered to {sink}, a delivery begins after {_place(record.after)}"
            self._find("dup-free", what, record)
        elif record.after > through and not (fresh and not self._results(sink, through, record.after)):
            what = f"deliveries to {sink} stop at {_place(through)} and go on after {record.after}"
            self._find("loss-free", what, record)

    def _results(self, sink: str, after: BucketId, through: BucketId) -> list[BucketId]:
        """The buckets in (after, through] that have rows for this sink."""
        results = self._known.results.get(_to(sink), [])
        return results[bisect_right(results, after) : bisect_right(results, through)]

    def _contents(self, record: DeliveredRecord, number: BucketId, rows: int, digest: str) -> None:
        sink = _to(record.sink)
        parts = self._known.parts.get(sink, {}).get(number, {})
        due = {part: made for part, made in parts.items() if made.rows}
        try:
            listed = parts_of(digest)
        except ValueError as problem:
            self._find("contents", f"bucket {number}: {problem}", record)
            return
        given = dict(listed)
        if len(given) < len(listed):
            self._find("dup-free", f"bucket {number} has a part twice", record)
        for part in sorted(due.keys() - given.keys()):
            what = f"bucket {number} of {record.sink} lacks the {due[part].rows} rows of {part}"
            self._find("loss-free", what, record)
        for part in sorted(given):
            if part not in due:
                if self._known.may_have_made(part, sink, number):
                    self._verdict.unwitnessed += 1
                else:
                    what = f"no copy of {part} produced bucket {number} for {record.sink}"
                    self._find("contents", what, record)
            elif given[part] != due[part].digest:
                what = f"bucket {number}: the part of {part} is not what {who(due[part])} produced"
                self._find("contents", what, record)
        made = sum(each.rows for each in due.values())
        if given.keys() == due.keys() and len(given) == len(listed) and rows != made:
            self._find("contents", f"bucket {number} has {rows} rows, its parts have {made}", record)

    def _ended(self, name: str, record: EndedRecord) -> None:
        """A gateway that says that nothing is left to do has delivered all that was produced."""
        if name not in self._gateways:
            return
        for partition, results in self._known.results.items():
            sink = partition.removeprefix(SINK).rpartition("/")[0]
            through = self._delivered_through.get(sink, self._delivered_first)
            if results and through is not None and results[-1] > through:
                short = f"the run ended with {sink} at {_place(through)}"
                self._find("loss-free", f"{short}, and bucket {results[-1]} has rows for it", record)

    # --- input -------------------------------------------------------------------------------------------

    def _handed(self, name: str, record: HandedRecord) -> None:
        key = name, record.by, record.of
        position = self._positions.get(key, None if name in self._blind else NOTHING)
        self._positions[key] = record.through
        taker = who(record)
        if position is not None and record.after < position:
            self._find(
                "input-dup-free", f"{taker} was at {position} and took from {_place(record.after)}", record
            )
        elif position is not None and record.after > position:
            self._find("input-loss-free", f"{taker} was at {_place(position)}, not at {record.after}", record)
        with_rows = self._known.inputs.get(partition_of(record.of), [])
        first, last = bisect_right(with_rows, record.after), bisect_right(with_rows, record.through)
        missing = set(with_rows[first:last]) - set(record.numbers)
        if not missing:
            return
        self._find("input-loss-free", f"{taker} never took buckets {sorted(missing)}", record)


def _place(number: BucketId) -> str:
    return "the beginning" if number == NOTHING else str(number)


def _to(sink: str) -> str:
    """The partition that a sink is."""
    return f"{SINK}{sink}/0"
