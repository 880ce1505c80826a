"""Where the records of one process go: a file that is cut into numbered parts, of which the oldest go.

    gateway.part-000003.jsonl   older parts, as they were when they were full
    gateway.part-000004.jsonl
    gateway.jsonl               the newest part, which is written

A part that has reached its size is renamed, and the next one begins with a header that says what a reader
must know of those before it: they may be gone. All parts of a process keep within a total, which it shares
with the earlier incarnations of its name (`removing`).

A process that begins again under the same name, as a gateway does, goes on in the newest part. It does not
have to read its history: a bounded look at the end shows which buckets and views are on record, and it
records the others once more, which the judge accepts as a repetition. So neither the length of a history nor
damage to it stands in the way of a restart.

A history that cannot be written, above all because the disk is full, ends there: the last lines make room
for a record that says so, and the process goes on without it. If not even that can be written, the record
is a file of its own, `gateway.stopped`, which says so even if it is empty. Nothing here raises because of a
full disk.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from understudy.core.bucket import NOTHING, BucketId
from understudy.history.parts import (
    SUFFIX,
    name_and_incarnation,
    older_parts,
    parts_of_processes,
    stopped_mark,
)
from understudy.history.records import (
    FORMAT_VERSION,
    DeliveredRecord,
    HandedRecord,
    Header,
    ProducedRecord,
    Record,
    SealedRecord,
    StoppedRecord,
    ViewRecord,
    line,
    parsed,
)
from understudy.history.removing import keep_within

log = logging.getLogger(__name__)

#: So much of the end of a history is looked at when a process begins again.
TAIL_BYTES = 256 * 2**10


def said_in(mark: Path) -> StoppedRecord | None:
    """What a mark says, if there is one. A full disk may have had room for its name and nothing else."""
    try:
        written_us = mark.stat().st_mtime_ns // 1_000
    except FileNotFoundError:
        return None
    with suppress(OSError, ValueError, RecursionError):
        said = parsed(mark.read_text())
        if isinstance(said, StoppedRecord):
            return said
    return StoppedRecord(written_us, mark.stem, "the reason is unknown")


class OnRecord:
    """How far records have come."""

    def __init__(self) -> None:
        self.part = 1
        self.delivered: dict[str, BucketId] = {}
        self.epochs: dict[int, int] = {}
        """The epoch of the newest view, by version of the flow."""
        self.highest = NOTHING
        """The highest number of any bucket."""

    def note(self, record: Header | Record) -> None:
        """Take in a record, in the order of writing."""
        match record:
            case SealedRecord() | ProducedRecord():
                self._reached(record.number)
            case HandedRecord():
                self._reached(record.through)
            case DeliveredRecord():
                self.delivered[record.sink] = max(self.delivered.get(record.sink, NOTHING), record.through)
                self._reached(record.through)
            case ViewRecord():
                self._viewed(record.version, record.epoch)
            case Header():
                self.part = max(self.part, record.part)
                for version, epoch in record.epochs:
                    self._viewed(version, epoch)
                self._reached(record.before)

    def _reached(self, number: BucketId) -> None:
        self.highest = max(self.highest, number)

    def _viewed(self, version: int, epoch: int) -> None:
        self.epochs[version] = max(self.epochs.get(version, 0), epoch)

    @classmethod
    def at_the_end_of(cls, *files: Path) -> OnRecord:
        """What heads and last `TAIL_BYTES` of parts tell, the older first. Damaged lines tell nothing."""
        found = cls()
        for file in files:
            with file.open("rb") as part:
                head = part.readline(TAIL_BYTES)
                part.seek(max(len(head), part.seek(0, os.SEEK_END) - TAIL_BYTES))
                for text in (head, *part.read(TAIL_BYTES).split(b"\n")):
                    try:
                        found.note(parsed(text.decode()))
                    except (ValueError, RecursionError):
                        continue
        return found


class PartedFile:
    """The history of one process on disk. Not for several threads at once."""

    def __init__(self, file: Path, flow: str, process: str, *, part_bytes: int, total_bytes: int) -> None:
        self._file = file
        self._flow = flow
        self._process = process
        self._part_bytes = max(1, min(part_bytes, total_bytes // 2))
        self._total_bytes = total_bytes
        self._descriptor = -1
        self.on_record = OnRecord()
        self.stopped = False
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._begin()
        except OSError as problem:
            self._stop(problem)

    def write(self, records: Sequence[Record]) -> None:
        """Append these records, in one write. Once that has failed, nothing more is written."""
        if self.stopped or self._descriptor < 0 or not records:
            return
        try:
            self._append([line(record) for record in records])
            for record in records:
                self.on_record.note(record)
            if os.fstat(self._descriptor).st_size >= self._part_bytes:
                self._next_part()
        except OSError as problem:
            self._stop(problem)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # --- parts -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Go on where an earlier process of this name stopped, if there was one."""
        older = older_parts(self._file)
        exists = self._file.exists() and self._file.stat().st_size > 0
        # The newest part may have only just begun: what was delivered is in the one before it then.
        ends = [*older.values()][-1:] + [self._file] * exists
        self.on_record = OnRecord.at_the_end_of(*ends)
        self.on_record.part = max(self.on_record.part, max(older, default=0) + 1)
        self._open()
        if exists:
            if os.pread(self._descriptor, 1, self._file.stat().st_size - 1) != b"\n":
                # The last line of a process that was killed. What follows must not become part of it.
                os.write(self._descriptor, b"\n")
            if self._file.stat().st_size >= self._part_bytes:
                self._retire()
        self._take_in(stopped_mark(self._file))
        self._write_header(begins=True)
        # A process that is killed again and again may never come to the end of a part.
        self._remove_oldest()

    def _take_in(self, mark: Path) -> None:
        """An earlier process could not say in its place that it stopped writing: it is said here."""
        said = said_in(mark)
        if said is None:
            return
        if os.fstat(self._descriptor).st_size == 0:
            # A part begins with a header. That this process begins comes after what is said of another.
            self._write_header(begins=False)
        self._append([line(said)])
        mark.unlink()

    def _open(self) -> None:
        self._descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)

    def _next_part(self) -> None:
        self._retire()
        self._write_header(begins=False)

    def _retire(self) -> None:
        """Give the newest part its number, remove the oldest ones beyond the total, and open the next."""
        self.close()
        number = self.on_record.part
        self._file.rename(self._file.with_name(f"{self._process}.part-{number:06d}{SUFFIX}"))
        self.on_record.part = number + 1
        self._remove_oldest()
        self._open()

    def _remove_oldest(self) -> None:
        """Make room for one whole part within the total, which all incarnations of a name share."""
        name, incarnation = name_and_incarnation(self._process)
        found = parts_of_processes(
            self._file.parent, lambda whose, which: whose == name and which <= incarnation
        )
        removable = [part for part in found if part != self._file]
        room = self._total_bytes - self._part_bytes
        keep_within(removable, room, self._part_bytes, self._flow, living=self._process)

    def _write_header(self, *, begins: bool) -> None:
        known = self.on_record
        since = (begins, known.highest, tuple(sorted(known.epochs.items())))
        self._append([line(Header(FORMAT_VERSION, self._flow, self._process, known.part, *since))])

    def _append(self, lines: Sequence[str]) -> None:
        text = "".join(f"{each}\n" for each in lines).encode()
        size = os.fstat(self._descriptor).st_size
        try:
            rest = memoryview(text)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            os.ftruncate(self._descriptor, size)
            raise

    # --- the end -----------------------------------------------------------------------------------------

    def _stop(self, problem: OSError) -> None:
        self.stopped = True
        why = problem.strerror or str(problem)
        log.error(
            "The history %s is no longer written: %s. The run goes on without it. Free or repair the disk; "
            "the history goes on when this process is started again.",
            self._file,
            why,
        )
        said = f"{line(StoppedRecord(time.time_ns() // 1_000, self._process, why))}\n".encode()
        for say in (self._say_stopped, stopped_mark(self._file).write_bytes):
            try:
                say(said)
                break
            except OSError as another:
                log.warning("The history %s cannot even say so: %s.", self._file, another)
        self.close()

    def _say_stopped(self, said: bytes) -> None:
        """Write that this is the end over the last lines: a full disk has no room for one more."""
        if self._descriptor < 0:
            raise OSError("no part of it is open")
        with self._file.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - TAIL_BYTES)
            file.seek(start)
            # Where a line ended with enough behind it; the header stays if it can.
            end = file.read().rfind(b"\n", 0, max(0, size - start - len(said)))
            if end < 0:
                end = size - 1 - start
            file.seek(start + end + 1)
            file.write(said)
            file.truncate()
