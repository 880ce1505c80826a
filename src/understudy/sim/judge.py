"""Judges histories: the same invariants as in the simulator, read from what a run wrote down.

    in-order        what the sink was given rises, within each record and from one to the next
    loss-free       each delivery follows on the one before it: `after` is the previous `through`
    dup-free        no delivery begins before the end of an earlier one
    contents        what was delivered is what a replica produced under that number
    replicas-agree  two replicas never made different rows of one bucket
    input-loss-free, input-dup-free
                    what a replica's engine took follows on what it took or was given before, and leaves out
                    no bucket that was sealed with rows
    sealed-once     a number is sealed once, and numbers rise
    views-rise      the controller's epochs rise

A history does not hold the input's rows, so the judge cannot recompute results. It relies on what two
replicas agree on, and on digests.

Of a partitioned flow the same is asked, partition by partition:

    loss-free       a delivered bucket has the part of every partition that made rows of it for the sinks
    dup-free        it has each part once
    contents        it has no other part, each is what a copy of its partition produced, and rows add up
    replicas-agree  the copies of a partition never made different rows of one bucket for one consumer
    input-loss-free, input-dup-free
                    what a copy's engine took follows on what that copy took or was given before, and leaves
                    out no bucket of which some producer made rows for its partition. A bucket that was
                    sealed with rows left the ingress with rows. Several fragments may read one source, so
                    the numbers of rows need not be the same
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from understudy.core.bucket import NOTHING
from understudy.core.history import (
    DeliveredRecord,
    EndedRecord,
    HandedRecord,
    Header,
    HistoryError,
    InstalledRecord,
    ProducedRecord,
    Record,
    SealedRecord,
    SnapshotRecord,
    ViewRecord,
    line,
    partition_of,
    parts_of,
    read,
)
from understudy.core.topology import EGRESS, ENDS, INGRESS

#: Who takes what goes to the sinks: nobody is named where a replica makes the whole flow.
_SINKS = ("", str(EGRESS))


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
    views: int = 0
    partitions: int = 0
    """Of fragments. A flow that is not partitioned has none, and no copies."""
    copies: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not self.findings


class _Judge:
    def __init__(self, records: Sequence[Record], verdict: Verdict) -> None:
        self.records = records
        self.verdict = verdict
        self.sealed: dict[int, SealedRecord] = {}
        self.sealed_through = NOTHING
        # By producing partition, consumer and number; the first of several that must be the same.
        self.produced: dict[tuple[str, str, int], ProducedRecord] = {}
        # What the sinks must get: by number, then by the partition that makes the part.
        self.parts: dict[int, dict[str, ProducedRecord]] = {}
        self.results: list[int] = []
        # By consumer, the numbers of the buckets that have rows for it.
        self.inputs: dict[str, list[int]] = {}
        self.deliverers = {each.by for each in records if isinstance(each, DeliveredRecord)}
        copies = set(_copies(records))
        self.partitioned = bool(copies)
        of_fragments = {copy for copy in copies if partition_of(copy) not in map(str, ENDS)}
        verdict.copies = len(of_fragments)
        verdict.partitions = len({partition_of(copy) for copy in of_fragments})

    def judge(self) -> None:
        # Inputs and outputs of all files first: a delivery may stand in another file than what it delivers.
        for record in self.records:
            match record:
                case SealedRecord():
                    self._sealed(record)
                case ProducedRecord():
                    self._produced(record)
        self._sort_out()
        if self.partitioned:
            self._left_ingress()
        delivered_through, epoch = NOTHING, 0
        position: dict[tuple[str, str], int] = {}
        for record in self.records:
            match record:
                case DeliveredRecord():
                    self._delivered(record, delivered_through)
                    delivered_through = max(delivered_through, record.through)
                case HandedRecord():
                    self._handed(record, position.get((record.by, record.of), NOTHING))
                    position[record.by, record.of] = record.through
                case InstalledRecord():
                    position[record.by, record.of] = record.through
                case ViewRecord():
                    if record.epoch <= epoch:
                        self._find("views-rise", f"epoch {record.epoch} came after {epoch}", record)
                    epoch = record.epoch
                    self.verdict.views += 1
                case EndedRecord():
                    self._ended(record, delivered_through)

    def _sort_out(self) -> None:
        """Who needs what: of the sealed or produced buckets, those with rows."""
        inputs: dict[str, set[int]] = {}
        if not self.partitioned:
            inputs[""] = {number for number, sealed in self.sealed.items() if sealed.rows}
        for (producer, to, number), made in self.produced.items():
            if to in _SINKS:
                self.parts.setdefault(number, {})[producer] = made
            elif made.rows:
                inputs.setdefault(to, set()).add(number)
        self.inputs = {to: sorted(numbers) for to, numbers in inputs.items()}
        self.results = sorted(
            n for n, parts in self.parts.items() if any(made.rows for made in parts.values())
        )

    def _find(self, invariant: str, what: str, record: Record) -> None:
        self.verdict.findings.append(Finding(invariant, what, line(record)))

    def _sealed(self, record: SealedRecord) -> None:
        if record.number <= self.sealed_through:
            self._find(
                "sealed-once", f"bucket {record.number} was sealed after {self.sealed_through}", record
            )
        self.sealed_through = max(self.sealed_through, record.number)
        self.sealed[record.number] = record
        self.verdict.sealed += 1

    def _produced(self, record: ProducedRecord) -> None:
        key = partition_of(record.of), record.to, record.number
        known = self.produced.setdefault(key, record)
        if (known.rows, known.digest) != (record.rows, record.digest):
            what = f"{_who(known)} and {_who(record)} made different rows of bucket {record.number}"
            self._find("replicas-agree", f"{what} for {record.to}" if record.to else what, record)

    def _left_ingress(self) -> None:
        ingress = str(INGRESS)
        left = {
            number
            for (producer, _, number), made in self.produced.items()
            if producer == ingress and made.rows
        }
        ended = {each.by for each in self.records if isinstance(each, EndedRecord)}
        newest = max(left, default=NOTHING)
        for number, record in self.sealed.items():
            # What was sealed last may still be on its way when a history stops.
            settled = number < newest or record.by in ended
            if record.rows and number not in left and settled:
                self._find("input-loss-free", f"bucket {number} has rows and never left the ingress", record)

    def _delivered(self, record: DeliveredRecord, through: int) -> None:
        if record.after < through:
            what = f"after {through} was delivered, a delivery begins after {record.after}"
            self._find("dup-free", what, record)
        elif record.after > through:
            what = f"deliveries stop at {through} and go on after {record.after}"
            self._find("loss-free", what, record)
        numbers = [number for number, _, _ in record.buckets]
        if numbers != sorted(set(numbers)) or any(not record.after < n <= record.through for n in numbers):
            what = f"buckets {numbers} do not rise from {record.after} to {record.through}"
            self._find("in-order", what, record)
        present = set(numbers)
        first, last = bisect_right(self.results, record.after), bisect_right(self.results, record.through)
        for number in self.results[first:last]:
            if number not in present:
                rows = sum(made.rows for made in self.parts[number].values())
                self._find("loss-free", f"bucket {number} has {rows} rows and is left out", record)
        for bucket in record.buckets:
            if self.partitioned:
                self._delivered_parts(record, *bucket)
            else:
                self._delivered_whole(record, *bucket)
        self.verdict.delivered += len(numbers)

    def _delivered_whole(self, record: DeliveredRecord, number: int, rows: int, digest: str) -> None:
        made_here = self.produced.get(("", "", number))
        if made_here is None and rows:
            self._find("contents", f"no replica produced bucket {number}", record)
        elif made_here is not None and (rows, digest) != (made_here.rows, made_here.digest):
            self._find("contents", f"bucket {number} is not what {made_here.by} produced", record)

    def _delivered_parts(self, record: DeliveredRecord, number: int, rows: int, digest: str) -> None:
        due = {part: made for part, made in self.parts.get(number, {}).items() if made.rows}
        try:
            listed = parts_of(digest)
        except ValueError as problem:
            self._find("contents", f"bucket {number}: {problem}", record)
            return
        given = dict(listed)
        if len(given) < len(listed):
            self._find("dup-free", f"bucket {number} has a part twice", record)
        for part in sorted(due.keys() - given.keys()):
            what = f"bucket {number} lacks the {due[part].rows} rows of {part}"
            self._find("loss-free", what, record)
        for part in sorted(given):
            if part not in due:
                self._find("contents", f"no copy of {part} produced bucket {number} for the sinks", record)
            elif given[part] != due[part].digest:
                what = f"bucket {number}: the part of {part} is not what {_who(due[part])} produced"
                self._find("contents", what, record)
        made = sum(each.rows for each in due.values())
        if given.keys() == due.keys() and len(given) == len(listed) and rows != made:
            self._find("contents", f"bucket {number} has {rows} rows, its parts have {made}", record)

    def _ended(self, record: EndedRecord, through: int) -> None:
        """Whoever delivers and says that nothing is left to do has delivered all that was produced."""
        delivers = record.by in self.deliverers
        if delivers and self.results and self.results[-1] > through:
            what = f"the run ended with {through} delivered, and bucket {self.results[-1]} has rows"
            self._find("loss-free", what, record)

    def _handed(self, record: HandedRecord, position: int) -> None:
        who = _who(record)
        if record.after < position:
            self._find("input-dup-free", f"{who} had {position} and took from {record.after}", record)
        elif record.after > position:
            self._find("input-loss-free", f"{who} had {position}, not {record.after}", record)
        with_rows = self.inputs.get(partition_of(record.of), [])
        first, last = bisect_right(with_rows, record.after), bisect_right(with_rows, record.through)
        missing = set(with_rows[first:last]) - set(record.numbers)
        if not missing:
            return
        # A copy of a partition that was given no state takes its input from the very first bucket on.
        began = record.after != NOTHING or bool(record.of)
        if began or min(missing) >= min(record.numbers, default=min(missing)):
            self._find("input-loss-free", f"{who} never took buckets {sorted(missing)}", record)


def _copies(records: Iterable[Record]) -> Iterator[str]:
    """The names of all copies that records speak of; none if the flow is not partitioned."""
    for record in records:
        if isinstance(record, ViewRecord):
            yield from (seat[0] for seat in record.seats if partition_of(seat[0]))
        elif (
            isinstance(record, HandedRecord | ProducedRecord | SnapshotRecord | InstalledRecord) and record.of
        ):
            yield record.of


def _who(record: HandedRecord | ProducedRecord) -> str:
    return f"{record.of} on {record.by}" if record.of else record.by


def judge(paths: str | Path | Iterable[str | Path]) -> Verdict:
    """Read the histories of one run, one file per process, and judge them together."""
    files = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    verdict = Verdict()
    records: list[Record] = []
    for path in files:
        with path.open(encoding="utf-8") as lines:
            for record in read(lines, str(path)):
                if not isinstance(record, Header):
                    records.append(record)
                elif verdict.flow not in ("", record.flow):
                    raise HistoryError(f"{path} is a history of {record.flow}, the others of {verdict.flow}")
                else:
                    verdict.flow = record.flow
    verdict.records = len(records)
    # Each invariant needs the order within one process only, and files keep that.
    _Judge(records, verdict).judge()
    return verdict
