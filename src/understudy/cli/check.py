"""`understudy check`: what a run recorded, judged by the simulator's own checkers."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from understudy.core.history import HistoryError
from understudy.flow.errors import UserError
from understudy.sim.judge import Verdict, judge

VIOLATED = 1
#: What the judge looks for, and what each means to somebody who is not its author.
INVARIANTS = {
    "loss-free": "nothing that should be delivered is missing",
    "dup-free": "nothing is delivered twice",
    "in-order": "buckets are delivered in rising order",
    "contents": "what was delivered is what a replica made",
    "replicas-agree": "replicas made the same rows of the same bucket",
    "input-loss-free": "no replica missed input",
    "input-dup-free": "no replica took input twice",
    "sealed-once": "every input bucket was sealed once",
    "views-rise": "the controller's decisions follow one another",
}
#: Of one invariant this many violations are shown; the rest are counted.
SHOWN_MAX = 5


def execute(arguments: Namespace) -> int:
    runs = histories([Path(text) for text in arguments.history])
    codes = [_told(name, files) for name, files in runs]
    return max(codes)


def histories(given: Sequence[Path]) -> list[tuple[str, list[Path]]]:
    """Each run to judge, with its name and files: a folder is one run, all files together are another."""
    runs: list[tuple[str, list[Path]]] = []
    files: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = path / "history" if (path / "history").is_dir() else path
            found = sorted(inside.glob("*.jsonl"))
            if not found:
                raise UserError(f"{path}: no history in it. Was the run started with --no-history?")
            runs.append((str(path), found))
        elif path.is_file():
            files.append(path)
        else:
            raise UserError(f"{path}: there is no such file or folder.")
    if files:
        runs.append((", ".join(map(str, files)), files))
    return runs


def judged(files: Sequence[Path]) -> Verdict:
    """The verdict on one run. A history that cannot be read is the user's to repair or leave out."""
    try:
        return judge(files)
    except (HistoryError, UnicodeDecodeError) as problem:
        raise UserError(f"{problem}. What follows cannot be judged.") from None


def _told(name: str, files: Sequence[Path]) -> int:
    verdict = judged(files)
    print(f"{name}: flow {verdict.flow}, {verdict.records} records in {len(files)} files")
    print(f"  {verdict.sealed} buckets sealed, {verdict.delivered} delivered, {verdict.views} views")
    if verdict.partitions:
        print(f"  {verdict.partitions} partitions in {verdict.copies} copies")
    found = {finding.invariant for finding in verdict.findings}
    for invariant in [*INVARIANTS, *sorted(found - INVARIANTS.keys())]:
        findings = [finding for finding in verdict.findings if finding.invariant == invariant]
        word = f"VIOLATED {len(findings)} times" if findings else "holds"
        print(f"  {invariant:<16} {word:<20} {INVARIANTS.get(invariant, '')}".rstrip())
        for finding in findings[:SHOWN_MAX]:
            print(f"      {finding.what}\n      shown by {finding.record}")
        if len(findings) > SHOWN_MAX:
            print(f"      and {len(findings) - SHOWN_MAX} more")
    return 0 if verdict.clean else VIOLATED
