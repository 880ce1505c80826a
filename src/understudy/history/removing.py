"""What goes of histories so that they stay within a bound: the oldest parts of a line of processes.

A node that is started again is another process with a history of its own: incarnation "node-1.4" comes after
"node-1.3". All incarnations of a name share one bound, and the parts of the earlier ones go first.

**What went is not held against the run.** Where a process has parts left, the header of the first one says up
to which bucket there were records. Of a process whose last part goes, a *stub* stays: a part that is nothing
but such a header. When the process after it goes, too, its stub speaks for both, and the first stub goes. So
a line of any length has one stub, and the judge reads it like any other part.

A process that is killed in here leaves too much, never too little: parts go in their order, and a stub is on
disk before that is gone which it speaks for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from understudy.core.bucket import NOTHING, BucketId
from understudy.history.parts import SUFFIX, process_and_part, stopped_mark
from understudy.history.records import FORMAT_VERSION, Header, line

#: A file counts as this share of a part at least, so that the bound is one on their number, too.
FILES_IN_A_PART = 256
#: A part that is not the first one: parts before it are gone.
_STUB_PART = 2
_NUMBER = re.compile(rb'"(?:number|through|before)":(-?\d+)')


def keep_within(
    parts: Sequence[Path], bytes_max: int, part_bytes: int, flow: str, *, living: str = ""
) -> None:
    """Remove the first of these parts, which are in their order, until the others take no more than that.

    The newest part of the process that is `living` is not among them. Raises `OSError`.
    """
    least = max(1, part_bytes // FILES_IN_A_PART)
    weights = {part: max(least, _size(part)) for part in parts}
    surplus = sum(weights.values()) - bytes_max
    stub: Path | None = None
    before = NOTHING
    for process, found in groupby(parts, lambda part: process_and_part(part)[0]):
        *older, last = found
        for part in older if process != living else (*older, last):
            if surplus <= 0:
                return
            part.unlink(missing_ok=True)
            surplus -= weights[part]
        if surplus <= 0 or process == living:
            return
        before = max(before, _highest_in(last))
        former, stub = stub, last.with_name(f"{process}{SUFFIX}")
        _become_stub(last, stub, Header(FORMAT_VERSION, flow, process, _STUB_PART, False, before))
        surplus -= weights[last] - least
        if former is not None:
            former.unlink(missing_ok=True)
            surplus -= least


def _become_stub(last: Path, stub: Path, header: Header) -> None:
    """Replace the last part of a process, and what else is left of it, by its stub."""
    half = stub.with_name(f"{stub.name}.half")
    with half.open("w") as file:
        file.write(f"{line(header)}\n")
        file.flush()
        os.fsync(file.fileno())
    half.replace(stub)
    if last != stub:
        # The process was killed between two parts.
        last.unlink(missing_ok=True)
    stopped_mark(stub).unlink(missing_ok=True)


def _highest_in(part: Path) -> BucketId:
    """The highest number of any bucket that a part may have told of, damaged or not."""
    try:
        return max(map(int, _NUMBER.findall(part.read_bytes())), default=NOTHING)
    except FileNotFoundError:
        return NOTHING


def _size(part: Path) -> int:
    try:
        return part.stat().st_size
    except FileNotFoundError:
        return 0
