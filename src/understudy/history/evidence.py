"""What the histories of one run say, put together: the first half of judging (`judging`).

Some invariants show while records are taken in: what replicas agree on, what is sealed once. The others need
inputs and outputs of all processes, and wait for the second half.
"""

from __future__ import annotations

from collections.abc import Iterable

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.shape.topology import EGRESS, ENDS, INGRESS
from understudy.history.reading import Damage, Entry
from understudy.history.records import (
    DeliveredRecord,
    EndedRecord,
    HandedRecord,
    Header,
    HistoryError,
    InstalledRecord,
    LeftOutRecord,
    MissedRecord,
    ProducedRecord,
    Record,
    SealedRecord,
    SnapshotRecord,
    StoppedRecord,
    ViewRecord,
    line,
    partition_of,
)
from understudy.history.verdict import Finding, Verdict

#: The one partition of a whole flow.
WHOLE = ""
#: Consumers that stand for the sinks. A replica of a whole flow names none.
SINKS = ("", str(EGRESS))


class _Process:
    """What is known of one process while its records are gone through in their order."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = False
        self.headless = False
        """Its first records were removed."""
        self.sealed_through = NOTHING
        """Since it began last."""
        self.partitions: set[str] = set()

    @property
    def resumed(self) -> bool:
        return self.begun > 1


class Evidence:
    """Takes in the entries of every process, then sorts out what each consumer must get."""

    def __init__(self) -> None:
        self.verdict = Verdict()
        self.processes: dict[str, _Process] = {}
        #: What needs the rest to be known: a delivery may stand in another file than what it delivers.
        self.later: list[tuple[str, Entry]] = []
        self.copies: set[str] = set()
        self.sealed: dict[BucketId, SealedRecord] = {}
        self.sealed_through = NOTHING
        #: Sealed last before its process was killed: whether it left the ingress may not be on record.
        self.sealed_last: set[BucketId] = set()
        #: By producing partition, consumer and number; the first of several that must be the same.
        self.produced: dict[tuple[str, str, BucketId], ProducedRecord] = {}
        #: What the sinks must get: by number, then by the partition that makes the part.
        self.parts: dict[BucketId, dict[str, ProducedRecord]] = {}
        self.results: list[BucketId] = []
        #: By partition, the highest number that was made for the sinks.
        self.made_through: dict[str, BucketId] = {}
        #: By consumer, the numbers of the buckets that have rows for it.
        self.inputs: dict[str, list[BucketId]] = {}
        #: Through this number, records may have been removed.
        self.removed_through = NOTHING

    # --- taking in ---------------------------------------------------------------------------------------

    def take(self, name: str, found: Iterable[Entry]) -> None:
        """Everything in the history of one process."""
        process = self.processes.setdefault(name, _Process())
        for entry in found:
            match entry:
                case Header():
                    self._header(name, process, entry)
                case Damage(unfinished=True):
                    self.verdict.unfinished.append(entry)
                case Damage():
                    self.verdict.damages.append(entry)
                    self.later.append((name, entry))
                case _:
                    self.verdict.records += 1
                    self._record(name, process, entry)

    def _header(self, name: str, process: _Process, header: Header) -> None:
        if self.verdict.flow not in ("", header.flow):
            raise HistoryError(f"{name} is a history of {header.flow}, the others of {self.verdict.flow}")
        self.verdict.flow = header.flow
        if header.part > 1 and not process.begun:
            process.headless = True
            self.removed_through = max(self.removed_through, header.before)
            process.begun = 1
        if header.begins:
            if process.begun and not process.ended and process.sealed_through > NOTHING:
                self.sealed_last.add(process.sealed_through)
            process.begun += 1
            process.ended = False
            process.sealed_through = NOTHING
            self.later.append((name, header))

    def _record(self, name: str, process: _Process, record: Record) -> None:
        match record:
            case SealedRecord():
                self._sealed(process, record)
            case ProducedRecord():
                self.copies.update((record.of,) if record.of else ())
                process.partitions.add(partition_of(record.of))
                self._produced(record)
            case DeliveredRecord():
                self.later.append((name, record))
            case HandedRecord() | InstalledRecord() | SnapshotRecord():
                self.copies.update((record.of,) if record.of else ())
                process.partitions.add(partition_of(record.of))
                self.later.append((name, record))
            case ViewRecord():
                self.copies.update(seat[0] for seat in record.seats if partition_of(seat[0]))
                self.later.append((name, record))
            case EndedRecord():
                process.ended = True
                self.later.append((name, record))
            case LeftOutRecord():
                known = self.verdict.left_out.get(record.stream, ())
                self.verdict.left_out[record.stream] = tuple(dict.fromkeys((*known, *record.columns)))
            case MissedRecord():
                self._missing(
                    name, f"{record.by} did not write {record.records} records: it could not keep up"
                )
            case StoppedRecord():
                self._missing(name, f"{record.by} stopped writing: {record.why}")

    def _missing(self, name: str, why: str) -> None:
        damage = Damage(name, 0, why)
        self.verdict.damages.append(damage)
        self.later.append((name, damage))

    def _sealed(self, process: _Process, record: SealedRecord) -> None:
        known = self.sealed.setdefault(record.number, record)
        # A process that begins again may not know what it has recorded, but it seals the same.
        again = process.resumed and (known.rows, known.digest) == (record.rows, record.digest)
        if record.number <= (process.sealed_through if again else self.sealed_through):
            what = f"bucket {record.number} was sealed after {self.sealed_through}"
            self.find("sealed-once", what, record)
        self.sealed_through = max(self.sealed_through, record.number)
        process.sealed_through = max(process.sealed_through, record.number)
        self.verdict.sealed += known is record

    def _produced(self, record: ProducedRecord) -> None:
        key = partition_of(record.of), record.to, record.number
        known = self.produced.setdefault(key, record)
        if (known.rows, known.digest) != (record.rows, record.digest):
            what = f"{who(known)} and {who(record)} made different rows of bucket {record.number}"
            if known.rows != record.rows:
                what = f"{what}, {known.rows} and {record.rows} of them"
            self.find("replicas-agree", f"{what} for {record.to}" if record.to else what, record)

    def find(self, invariant: str, what: str, record: Record) -> None:
        self.verdict.findings.append(Finding(invariant, what, line(record)))

    # --- once all is taken in ----------------------------------------------------------------------------

    def close(self) -> None:
        """Everything is taken in."""
        of_fragments = {copy for copy in self.copies if partition_of(copy) not in map(str, ENDS)}
        self.verdict.copies = len(of_fragments)
        self.verdict.partitions = len({partition_of(copy) for copy in of_fragments})
        if self.removed_through > NOTHING:
            self.verdict.judged_from = self.removed_through + 1
        self._sort_out()
        if self.copies:
            self._left_ingress()

    def _sort_out(self) -> None:
        """Who needs what: of the sealed or produced buckets, those with rows."""
        inputs: dict[str, set[BucketId]] = {}
        if not self.copies:
            inputs[WHOLE] = {number for number, sealed in self.sealed.items() if sealed.rows}
        for (producer, to, number), made in self.produced.items():
            if to in SINKS:
                self.parts.setdefault(number, {})[producer] = made
                self.made_through[producer] = max(self.made_through.get(producer, NOTHING), number)
            elif made.rows:
                inputs.setdefault(to, set()).add(number)
        self.inputs = {to: sorted(numbers) for to, numbers in inputs.items()}
        self.results = sorted(
            n for n, parts in self.parts.items() if any(made.rows for made in parts.values())
        )

    def _left_ingress(self) -> None:
        if self.verdict.damages:
            return
        ingress = str(INGRESS)
        left = {
            number
            for (producer, _, number), made in self.produced.items()
            if producer == ingress and made.rows
        }
        sealers = [process for process in self.processes.values() if process.sealed_through > NOTHING]
        ended = all(process.ended for process in sealers)
        newest = max(left, default=NOTHING)
        for number, record in self.sealed.items():
            # What was sealed last may still be on its way when a history stops.
            settled = number not in self.sealed_last and (number < newest or ended)
            judged = number > self.removed_through
            if record.rows and number not in left and settled and judged:
                self.find("input-loss-free", f"bucket {number} has rows and never left the ingress", record)

    def may_have_made(self, partition: str, number: BucketId) -> bool:
        """Whether a copy may have made this without that being on record."""
        if number <= self.removed_through or self.verdict.damages:
            return True
        if number < self.made_through.get(partition, NOTHING):
            return False
        return any(
            not process.ended for process in self.processes.values() if partition in process.partitions
        )


def who(record: HandedRecord | ProducedRecord) -> str:
    """The copy, or the replica of a whole flow, that did this."""
    return f"{record.of} on {record.by}" if record.of else record.by
