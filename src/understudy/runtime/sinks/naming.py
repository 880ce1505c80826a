"""The names of output files: they hold the range of buckets, and sort by it.

    00000000017316544001_00000000017316544020.parquet

A number below zero (a time before 1970) is "-" and its distance from the lowest possible number, so that
names sort like numbers there too. A name that starts with "." is not finished; Spark and Arrow skip it as
well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from understudy.core.bucket import BucketId

_DIGITS = 20
_BELOW_ZERO = 10**_DIGITS
_NAME = re.compile(r"(-?\d{20})_(-?\d{20})\.\w+")


@dataclass(frozen=True, slots=True)
class OutputFile:
    path: Path
    first: BucketId
    through: BucketId


def file_name(first: BucketId, through: BucketId, suffix: str) -> str:
    """The name of the file with the rows of buckets `first` to `through`."""
    return f"{_written(first)}_{_written(through)}.{suffix}"


def finished_files(folder: Path) -> list[OutputFile]:
    """The finished output files in order. Files of other names are not ours."""
    found = []
    for path in sorted(folder.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match:
            found.append(OutputFile(path, _read(match[1]), _read(match[2])))
    return found


def _written(number: BucketId) -> str:
    return f"{number:0{_DIGITS}d}" if number >= 0 else f"-{_BELOW_ZERO + number:0{_DIGITS}d}"


def _read(text: str) -> BucketId:
    return int(text[1:]) - _BELOW_ZERO if text.startswith("-") else int(text)
