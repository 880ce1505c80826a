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

**Versions.** Where a flow is upgraded, two versions of it run side by side (`records`), and each sink turns
from one to the other at a number of its own, perhaps back again. The invariants hold with this in mind:

* Positions of deliveries run on from one version to the next. Within a delivery only the rows of its own
  version count: those that the other one made of the same buckets are dropped, so they are neither missing
  there nor allowed. When the run ends, the version that a sink was given last has nothing left for it.
  A state that a later version begins with may hold output of the one before that a sink has not taken yet. If
  the sink turns before it has, such a bucket is delivered as the later version's, with the rows of the other.
* Copies agree with the copies of their own version, which their names see to.
* The first version is given every bucket of the sources it reads, a later one every bucket from the first
  that a source put out for it. For a version that was replaced or taken back this ends with the last bucket
  that it was given. A version that is live when the run ends must have been given everything.
* A copy of a later version begins with the state that a copy of the one before had saved. Between that state
  and the first bucket that a source put out for its version, it takes its input from the log. No record says
  which of these buckets have rows for the copy. So only its positions are judged there, and that the copies
  of a segment did not all pass over a bucket that a source sealed (`feeding`).
* Epochs rise within each version. A flow is lost if the version that delivered last is.

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
    versioned,
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
        #: By sink, the version that it was given last.
        self._live: dict[str, int] = {}
        self._delivered_last: int | None = None
        #: By version of the flow.
        self._views: dict[int, ViewRecord] = {}
        self._positions: dict[tuple[str, str, str], BucketId] = {}
        #: Processes of which records are missing: a position that was not heard of may be any.
        self._blind = {name for name, process in known.processes.items() if process.headless}
        self._gateways = {name for name, process in known.processes.items() if process.at_the_ends}
        self._begun = set(self._blind)
        #: Processes that have begun again, with the sinks they have delivered to since.
        self._since_begun: dict[str, set[str]] = {}
        #: The same processes, with the versions they have published a view of since.
        self._viewed_since_begun: dict[str, set[int]] = {}
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
        self._verdict.lost = self._lost()

    def _lost(self) -> tuple[str, ...]:
        """The partitions of the live version of which no copy is left."""
        version = self._delivered_last
        if version is None:
            # No sink has turned away from the version that the run began with.
            version = min(self._views, default=1)
        seats = self._views[version].seats if version in self._views else ()
        living = {partition_of(copy) for copy, _, _, status in seats if status != Status.DEAD.name}
        return tuple(sorted({partition_of(copy) for copy, *_ in seats} - living))

    def _begin(self, name: str) -> None:
        self._forget(name)
        self._blind.discard(name)
        if name in self._begun:
            self._since_begun[name] = set()
            self._viewed_since_begun[name] = set()
        self._begun.add(name)

    def _forget(self, name: str) -> None:
        self._positions = {key: value for key, value in self._positions.items() if key[0] != name}

    def _viewed(self, name: str, record: ViewRecord) -> None:
        self._verdict.views += 1
        version = record.version
        before, self._views[version] = self._views.get(version), record
        since = self._viewed_since_begun.get(name)
        if before is not None and record.epoch <= before.epoch:
            fresh = since is not None and version not in since
            again = fresh and (record.epoch, record.seats) == (before.epoch, before.seats)
            if not again:
                what = f"epoch {record.epoch} came after {before.epoch}"
                of = "" if version == 1 else f" of version {version}"
                self._find("views-rise", f"{what}{of}", record)
        if since is not None:
            since.add(version)

    # --- deliveries --------------------------------------------------------------------------------------

    def _delivered(self, name: str, record: DeliveredRecord) -> None:
        self._follows(name, record)
        numbers = [number for number, _, _ in record.buckets]
        if numbers != sorted(set(numbers)) or any(not record.after < n <= record.through for n in numbers):
            what = f"buckets {numbers} do not rise from {_place(record.after)} to {record.through}"
            self._find("in-order", what, record)
        present = set(numbers)
        for number in self._results(record.sink, record.version, record.after, record.through):
            if number not in present:
                parts = self._known.parts[_to(record.sink), record.version][number]
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
        before, self._live[sink] = self._live.get(sink, record.version), record.version
        self._delivered_last = record.version
        self._delivered_through[sink] = record.through if through is None else max(through, record.through)
        if through is None:
            return
        if record.after < through:
            what = f"after {through} was delivered to {sink}, a delivery begins after {_place(record.after)}"
            self._find("dup-free", what, record)
        elif record.after > through and not (
            fresh and self._may_be_unrecorded(sink, before, record.version, through, record.after)
        ):
            what = f"deliveries to {sink} stop at {_place(through)} and go on after {record.after}"
            self._find("loss-free", what, record)

    def _may_be_unrecorded(
        self, sink: str, before: int, version: int, after: BucketId, through: BucketId
    ) -> bool:
        """Whether a delivery of (after, through] had no rows, wherever the sink turned to this version."""
        missing = self._results(sink, version, after, through)
        if before == version:
            return not missing
        others = self._results(sink, before, after, through)
        return not (missing and others) or missing[-1] < others[0]

    def _results(self, sink: str, version: int, after: BucketId, through: BucketId) -> list[BucketId]:
        """The buckets in (after, through] of which this version made rows for this sink."""
        results = self._known.results.get((_to(sink), version), [])
        return results[bisect_right(results, after) : bisect_right(results, through)]

    def _contents(self, record: DeliveredRecord, number: BucketId, rows: int, digest: str) -> None:
        sink = _to(record.sink)
        parts = self._known.parts.get((sink, record.version), {}).get(number, {})
        due = {part: made for part, made in parts.items() if made.rows}
        try:
            listed = [(versioned(part, record.version), each) for part, each in parts_of(digest)]
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
            by = due.get(part) or self._known.taken_over(part, sink, number)
            if by is None:
                if self._known.may_have_made(part, sink, number):
                    self._verdict.unwitnessed += 1
                else:
                    what = f"no copy of {part} produced bucket {number} for {record.sink}"
                    self._find("contents", what, record)
            elif given[part] != by.digest:
                what = f"bucket {number}: the part of {part} is not what {who(by)} produced"
                self._find("contents", what, record)
        made = sum(each.rows for each in due.values())
        if given.keys() == due.keys() and len(given) == len(listed) and rows != made:
            self._find("contents", f"bucket {number} has {rows} rows, its parts have {made}", record)

    def _ended(self, name: str, record: EndedRecord) -> None:
        """A gateway that says that nothing is left to do has delivered all that the live version produced."""
        if name not in self._gateways:
            return
        for partition in sorted({partition for partition, _ in self._known.results}):
            sink = partition.removeprefix(SINK).rpartition("/")[0]
            through = self._delivered_through.get(sink, self._delivered_first)
            results = self._known.results.get((partition, self._live_for(sink, partition)), [])
            if results and through is not None and results[-1] > through:
                short = f"the run ended with {sink} at {_place(through)}"
                self._find("loss-free", f"{short}, and bucket {results[-1]} has rows for it", record)

    def _live_for(self, sink: str, partition: str) -> int:
        """The version that a sink was given last, or should be given if it was given nothing."""
        if sink in self._live:
            return self._live[sink]
        if self._delivered_last is not None:
            return self._delivered_last
        return min(version for whose, version in self._known.results if whose == partition)

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
