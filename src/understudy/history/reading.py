"""Reads histories: the parts of each process in their order, and what is damaged in them.

Damage does not stop the reading: a line that is not a record is named by file and number, with the reason,
and the records after it are read. Only the last line that a process wrote may be unfinished, if the process
was killed while it wrote. The name of a file says which process it belongs to, and headers order the parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy.history.parts import older_parts, process_and_part, stopped_mark
from understudy.history.records import FORMATS_READ, Header, HistoryError, Record, parsed
from understudy.history.writing import said_in


@dataclass(frozen=True, slots=True)
class Damage:
    """A line that cannot be read, or a part that is missing. `line` 0 stands for all of the file."""

    file: str
    line: int
    why: str
    unfinished: bool = False
    """It is the last line that a process wrote before it was killed: no record is lost that was written."""

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: {self.why}" if self.line else f"{self.file}: {self.why}"


Entry = Header | Record | Damage


def by_process(files: Iterable[Path]) -> dict[str, list[Path]]:
    """The files of each process, the oldest part first."""
    found: dict[str, list[tuple[float, Path]]] = {}
    for file in files:
        process, part = process_and_part(file)
        place = float("inf") if part is None else part
        # Of two folders, two processes may have the same name.
        found.setdefault(str(file.with_name(process)), []).append((place, file))
    return {process: [file for _, file in sorted(parts)] for process, parts in found.items()}


def entries(parts: Sequence[Path]) -> Iterator[Entry]:
    """Everything in the history of one process. Raises `HistoryError` if it is of an unknown format."""
    expected: int | None = None
    for file in parts:
        for entry in entries_in(_lines(file), str(file)):
            if isinstance(entry, Header):
                if expected is not None and entry.part > expected:
                    yield Damage(str(file), 0, _missing(expected, entry.part - 1))
                expected = entry.part
            yield entry
        expected = None if expected is None else expected + 1
    if parts and (said := said_in(stopped_mark(parts[-1]))) is not None:
        yield said


def entries_in(lines: Iterable[bytes], name: str) -> Iterator[Entry]:
    """Everything in the lines of one part, which is called by this name."""
    waiting: Damage | None = None
    number = 0
    for number, text in enumerate(lines, 1):
        try:
            entry: Header | Record = parsed(text.decode())
        except (ValueError, RecursionError) as problem:
            if waiting is not None:
                yield waiting
            waiting = Damage(name, number, str(problem), unfinished=not text.endswith(b"\n"))
            continue
        if isinstance(entry, Header) and entry.version not in FORMATS_READ:
            formats = " and ".join(map(str, FORMATS_READ))
            raise HistoryError(
                f"{name} was written by another version of Understudy: it has format {entry.version}, and "
                f"this version reads {formats}. Judge it with the version that wrote it"
            )
        if number == 1 and not isinstance(entry, Header):
            yield Damage(name, 1, "a history begins with a header")
        if waiting is not None:
            # A process that goes on after one that was killed ends its line, then writes a header.
            ended = isinstance(entry, Header) and entry.begins and number > 1
            yield Damage(waiting.file, waiting.line, waiting.why, unfinished=ended)
            waiting = None
        yield entry
    if waiting is not None:
        yield waiting
    if number == 0:
        yield Damage(name, 0, "nothing was written", unfinished=True)


def records_of(file: Path) -> Iterator[Record]:
    """Every record of the process whose newest part is `file`; what is damaged is passed over."""
    for entry in entries([*older_parts(file).values(), file]):
        if not isinstance(entry, Header | Damage):
            yield entry


def _lines(file: Path) -> Iterator[bytes]:
    with file.open("rb") as lines:
        yield from lines


def _missing(first: int, last: int) -> str:
    which = f"part {first} is" if first == last else f"parts {first} to {last} are"
    return f"{which} missing before it"
