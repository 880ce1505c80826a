"""The files of histories, by their names.

gateway.part-000003.jsonl   older parts
gateway.jsonl               the newest part
gateway.stopped             why it is not written any more, if there was no room for that in it
node-1.4.jsonl              of the fourth process that was started as node-1, its fourth incarnation
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

SUFFIX = ".jsonl"
_PART = re.compile(r"(?P<process>.*)\.part-(?P<number>\d{6,})")
_INCARNATION = re.compile(r"(?P<name>.+)\.(?P<number>\d+)")


def process_and_part(file: Path) -> tuple[str, int | None]:
    """The process and the part that a file's name stands for; None: the newest part, which has no number."""
    stem = file.name.removesuffix(SUFFIX)
    match = _PART.fullmatch(stem)
    return (stem, None) if match is None else (match["process"], int(match["number"]))


def name_and_incarnation(process: str) -> tuple[str, int]:
    """What a process was started as, and its incarnation; 0: it has none, as a gateway has not."""
    match = _INCARNATION.fullmatch(process)
    return (process, 0) if match is None else (match["name"], int(match["number"]))


def older_parts(file: Path) -> dict[int, Path]:
    """The older parts of the history whose newest part is `file`, by number, in their order."""
    process, _ = process_and_part(file)
    found: dict[int, Path] = {}
    for each in file.parent.glob(f"*{SUFFIX}"):
        whose, number = process_and_part(each)
        if whose == process and number is not None:
            found[number] = each
    return dict(sorted(found.items()))


def parts_of_processes(folder: Path, wanted: Callable[[str, int], bool]) -> list[Path]:
    """All parts of the processes whose name and incarnation are wanted: by name, incarnation and number."""
    found = []
    for file in folder.glob(f"*{SUFFIX}"):
        process, part = process_and_part(file)
        name, incarnation = name_and_incarnation(process)
        if wanted(name, incarnation):
            # node-2 comes before node-10, and the newest part has no number.
            found.append((len(name), name, incarnation, part is None, part or 0, file))
    return [file for *_, file in sorted(found)]


def stopped_mark(file: Path) -> Path:
    """Where the record is that says that a history is not written any more, if it is not in the history."""
    process, _ = process_and_part(file)
    return file.with_name(f"{process}.stopped")
