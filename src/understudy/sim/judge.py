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
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
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
    ViewRecord,
    line,
    read,
)


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
    findings: list[Finding] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not self.findings


class _Judge:
    def __init__(self, records: Sequence[Record], verdict: Verdict) -> None:
        self.records = records
        self.verdict = verdict
        self.sealed: dict[int, int] = {}
        self.sealed_through = NOTHING
        self.produced: dict[int, ProducedRecord] = {}
        self.results: list[int] = []
        self.deliverers = {each.by for each in records if isinstance(each, DeliveredRecord)}

    def judge(self) -> None:
        # Inputs and outputs of all files first: a delivery may stand in another file than what it delivers.
        for record in self.records:
            match record:
                case SealedRecord():
                    self._sealed(record)
                case ProducedRecord():
                    self._produced(record)
        with_rows = sorted(number for number, rows in self.sealed.items() if rows)
        self.results = sorted(number for number, made in self.produced.items() if made.rows)
        delivered_through, epoch = NOTHING, 0
        position: dict[str, int] = {}
        for record in self.records:
            match record:
                case DeliveredRecord():
                    self._delivered(record, delivered_through)
                    delivered_through = max(delivered_through, record.through)
                case HandedRecord():
                    self._handed(record, position.get(record.by, NOTHING), with_rows)
                    position[record.by] = record.through
                case InstalledRecord():
                    position[record.by] = record.through
                case ViewRecord():
                    if record.epoch <= epoch:
                        self._find("views-rise", f"epoch {record.epoch} came after {epoch}", record)
                    epoch = record.epoch
                    self.verdict.views += 1
                case EndedRecord():
                    self._ended(record, delivered_through)

    def _find(self, invariant: str, what: str, record: Record) -> None:
        self.verdict.findings.append(Finding(invariant, what, line(record)))

    def _sealed(self, record: SealedRecord) -> None:
        if record.number <= self.sealed_through:
            self._find(
                "sealed-once", f"bucket {record.number} was sealed after {self.sealed_through}", record
            )
        self.sealed_through = max(self.sealed_through, record.number)
        self.sealed[record.number] = record.rows
        self.verdict.sealed += 1

    def _produced(self, record: ProducedRecord) -> None:
        known = self.produced.setdefault(record.number, record)
        if (known.rows, known.digest) != (record.rows, record.digest):
            what = f"{known.by} and {record.by} made different rows of bucket {record.number}"
            self._find("replicas-agree", what, record)

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
                rows = self.produced[number].rows
                self._find("loss-free", f"bucket {number} has {rows} rows and is left out", record)
        for number, rows, digest in record.buckets:
            made_here = self.produced.get(number)
            if made_here is None and rows:
                self._find("contents", f"no replica produced bucket {number}", record)
            elif made_here is not None and (rows, digest) != (made_here.rows, made_here.digest):
                self._find("contents", f"bucket {number} is not what {made_here.by} produced", record)
        self.verdict.delivered += len(numbers)

    def _ended(self, record: EndedRecord, through: int) -> None:
        """Whoever delivers and says that nothing is left to do has delivered all that was produced."""
        delivers = record.by in self.deliverers
        if delivers and self.results and self.results[-1] > through:
            what = f"the run ended with {through} delivered, and bucket {self.results[-1]} has rows"
            self._find("loss-free", what, record)

    def _handed(self, record: HandedRecord, position: int, with_rows: Sequence[int]) -> None:
        if record.after < position:
            self._find("input-dup-free", f"{record.by} had {position} and took from {record.after}", record)
        elif record.after > position:
            self._find("input-loss-free", f"{record.by} had {position}, not {record.after}", record)
        first, last = bisect_right(with_rows, record.after), bisect_right(with_rows, record.through)
        missing = set(with_rows[first:last]) - set(record.numbers)
        if missing and (record.after != NOTHING or min(missing) >= min(record.numbers, default=min(missing))):
            self._find("input-loss-free", f"{record.by} never took buckets {sorted(missing)}", record)


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
