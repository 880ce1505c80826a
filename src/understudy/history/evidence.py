"""What the histories of one run say, put together: the first half of judging (`judging`).

Some invariants are checked while records are taken in: that replicas agree, that a bucket is sealed once. The
others need the inputs and outputs of all processes, and wait for the second half.
"""

from __future__ import annotations

from collections.abc import Iterable

from understudy.core.bucket import NOTHING, BucketId
from understudy.history.feeding import Feeding, Session
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
    unversioned,
    version_of,
    versioned,
)
from understudy.history.verdict import Finding, Verdict

#: What the partitions of sinks are named by, before their own names.
SINK = "sink:"


class _Process:
    """The state of one process at a point of its history, while its records are read in order."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = False
        self.headless = False
        """Its first records were removed."""
        self.at_the_ends = False
        """It seals or delivers: it is the gateway."""
        self.sealed_through: dict[str, BucketId] = {}
        """By source, since it began last."""
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
        #: By source and number.
        self.sealed: dict[tuple[str, BucketId], SealedRecord] = {}
        self.sealed_through: dict[str, BucketId] = {}
        #: Sealed last before its process was killed: whether it left the source may not be on record.
        self.sealed_last: set[tuple[str, BucketId]] = set()
        #: By producing partition, consumer and number; the first of several that must be the same.
        self.produced: dict[tuple[str, str, BucketId], ProducedRecord] = {}
        #: What each version has for each sink: by number, then by the partition that makes the part.
        self.parts: dict[tuple[str, int], dict[BucketId, dict[str, ProducedRecord]]] = {}
        #: By sink and version, the numbers that have rows.
        self.results: dict[tuple[str, int], list[BucketId]] = {}
        self.feeding = Feeding()
        #: By partition of a later version, the number after which its copies began.
        self.begins: dict[str, BucketId] = {}
        #: By sink, the version whose output it was given last.
        self.live: dict[str, int] = {}
        #: By partition and sink, the highest number that was made.
        self.made_through: dict[tuple[str, str], BucketId] = {}
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
            raise HistoryError(
                f"{name} is a history of {header.flow}, the others of {self.verdict.flow}. Leave it out, or "
                "judge it by itself"
            )
        self.verdict.flow = header.flow
        if header.part > 1 and not process.begun:
            process.headless = True
            self.removed_through = max(self.removed_through, header.before)
            process.begun = 1
        if header.begins:
            if process.begun and not process.ended:
                self.sealed_last.update(process.sealed_through.items())
            process.begun += 1
            process.ended = False
            process.sealed_through = {}
            self.later.append((name, header))

    def _record(self, name: str, process: _Process, record: Record) -> None:
        match record:
            case SealedRecord():
                process.at_the_ends = True
                self._sealed(process, record)
            case ProducedRecord():
                process.partitions.add(partition_of(record.of))
                self._produced((name, process.begun), record)
            case DeliveredRecord():
                process.at_the_ends = True
                self.verdict.deliveries += 1
                self.live[record.sink] = record.version
                self.later.append((name, record))
            case HandedRecord():
                self.feeding.took(record)
                self._held(name, process, record)
                self._began(record.of, record.after)
            case InstalledRecord():
                self._held(name, process, record)
                self._began(record.of, record.through)
            case SnapshotRecord():
                self._held(name, process, record)
            case ViewRecord():
                self.copies.update(seat[0] for seat in record.seats)
                self.later.append((name, record))
            case EndedRecord():
                process.ended = True
                self.verdict.finished = self.verdict.finished or process.at_the_ends
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

    def _held(
        self, name: str, process: _Process, record: HandedRecord | InstalledRecord | SnapshotRecord
    ) -> None:
        process.partitions.add(partition_of(record.of))
        self.later.append((name, record))

    def _began(self, copy: str, after: BucketId) -> None:
        partition = partition_of(copy)
        if version_of(partition) > 1:
            self.begins[partition] = min(self.begins.get(partition, after), after)

    def _missing(self, name: str, why: str) -> None:
        damage = Damage(name, 0, why)
        self.verdict.damages.append(damage)
        self.later.append((name, damage))

    def _sealed(self, process: _Process, record: SealedRecord) -> None:
        source, number = record.source, record.number
        known = self.sealed.setdefault((source, number), record)
        # A process that begins again may not know what it has recorded, but it seals the same.
        again = process.resumed and known.rows == record.rows
        here = process.sealed_through.get(source, NOTHING)
        anywhere = self.sealed_through.get(source, NOTHING)
        if number <= (here if again else anywhere):
            self.find("sealed-once", f"bucket {number} of {source} was sealed after {anywhere}", record)
        self.sealed_through[source] = max(anywhere, number)
        process.sealed_through[source] = max(here, number)
        self.verdict.sealed += known is record

    def _produced(self, session: Session, record: ProducedRecord) -> None:
        if not record.to.startswith(SINK):
            self.feeding.put_out(record, session)
        key = partition_of(record.of), record.to, record.number
        known = self.produced.setdefault(key, record)
        if (known.rows, known.digest) != (record.rows, record.digest):
            what = f"{who(known)} and {who(record)} made different rows of bucket {record.number}"
            if known.rows != record.rows:
                what = f"{what}, {known.rows} and {record.rows} of them"
            self.find("replicas-agree", f"{what} for {record.to}", record)

    def find(self, invariant: str, what: str, record: Record) -> None:
        self.verdict.findings.append(Finding(invariant, what, line(record)))

    # --- once all is taken in ----------------------------------------------------------------------------

    def close(self) -> None:
        """Everything is taken in."""
        partitions = {partition_of(copy) for copy in self.copies}
        self.verdict.copies = len(self.copies)
        self.verdict.partitions = len(partitions)
        for partition in partitions:
            self.feeding.seated(partition)
        if self.removed_through > NOTHING:
            self.verdict.judged_from = self.removed_through + 1
        self._sort_out()
        self._left_sources()

    def _sort_out(self) -> None:
        """Which consumer needs which buckets: of the produced ones, those with rows."""
        inputs: dict[str, set[BucketId]] = {}
        for (producer, to, number), made in self.produced.items():
            if to.startswith(SINK):
                parts = self.parts.setdefault((to, version_of(producer)), {})
                parts.setdefault(number, {})[producer] = made
                key = producer, to
                self.made_through[key] = max(self.made_through.get(key, NOTHING), number)
            elif made.rows:
                inputs.setdefault(to, set()).add(number)
        self.inputs = {to: sorted(numbers) for to, numbers in inputs.items()}
        self.results = {
            whose: sorted(n for n, parts in numbers.items() if any(made.rows for made in parts.values()))
            for whose, numbers in self.parts.items()
        }

    def _left_sources(self) -> None:
        """Every row that a source sealed went to one partition of every segment that reads it."""
        if self.verdict.damages:
            return
        left: dict[tuple[str, BucketId], dict[str, int]] = {}
        sources = {f"{source}/0": source for source, _ in self.sealed}
        for (producer, to, number), made in self.produced.items():
            if producer in sources:
                shares = left.setdefault((sources[producer], number), {})
                segment = to.rpartition("/")[0]
                shares[segment] = shares.get(segment, 0) + made.rows
        complete = self._live_at_the_end()
        for (source, number), record in self.sealed.items():
            if (source, number) in self.sealed_last or number <= self.removed_through:
                continue
            shares = left.get((source, number), {})
            for invariant, what in self.feeding.wrong_with(record, shares, complete):
                self.find(invariant, what, record)

    def _live_at_the_end(self) -> set[int]:
        """The versions whose output the sinks took when the run ended in good order; none if it did not."""
        if not all(process.ended for process in self.processes.values() if process.at_the_ends):
            return set()
        # Without a delivery no sink has turned away from the version that the run began with.
        return set(self.live.values()) or {min(self.feeding.versions, default=1)}

    def taken_over(self, partition: str, sink: str, number: BucketId) -> ProducedRecord | None:
        """What an earlier version made of a bucket for a sink, if this partition's copies began after it.

        The state that they began with held output which the sink had not taken yet.
        """
        if number > self.begins.get(partition, NOTHING):
            return None
        version, plain = version_of(partition), unversioned(partition)
        older = sorted((each for to, each in self.parts if to == sink and each < version), reverse=True)
        found = (self.parts[sink, each].get(number, {}).get(versioned(plain, each)) for each in older)
        return next((made for made in found if made is not None and made.rows), None)

    def may_have_made(self, partition: str, sink: str, number: BucketId) -> bool:
        """Whether a copy may have made this without that being on record."""
        if number <= self.removed_through or self.verdict.damages:
            return True
        if number < self.made_through.get((partition, sink), NOTHING):
            return False
        return any(
            not process.ended for process in self.processes.values() if partition in process.partitions
        )


def who(record: HandedRecord | ProducedRecord) -> str:
    """The copy that did this."""
    return f"{record.of} on {record.by}"
