"""`understudy check` judges a run's history.

Exit code 1: a violated invariant, missing records or none, or a flow that was lost.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from understudy.cli.picture import plural
from understudy.flow.errors import UserError
from understudy.history.judging import judge
from understudy.history.records import HistoryError
from understudy.history.verdict import Verdict

VIOLATED = 1
#: The invariants that the judge checks, and what each means to an operator.
INVARIANTS = {
    "loss-free": "nothing that should be delivered is missing",
    "dup-free": "nothing is delivered twice",
    "in-order": "buckets are delivered in rising order",
    "contents": "what was delivered is what a copy made",
    "replicas-agree": "copies made the same rows of the same bucket",
    "input-loss-free": "no copy missed input",
    "input-dup-free": "no copy took input twice",
    "sealed-once": "every source sealed its buckets once, in rising order",
    "views-rise": "the controller's decisions follow one another",
}
#: Of one invariant this many violations are shown; the rest are counted.
SHOWN_MAX = 5


def execute(arguments: Namespace) -> int:
    runs = histories([Path(text) for text in arguments.history])
    codes = [_print_verdict(name, files) for name, files in runs]
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
            if path.suffix != ".jsonl":
                raise UserError(
                    f"{path}: not a history. Name a run's folder, or .jsonl files of its history."
                )
            files.append(path)
        else:
            raise UserError(f"{path}: there is no such file or folder.")
    if files:
        runs.append((", ".join(map(str, files)), files))
    return runs


def judged(files: Sequence[Path]) -> Verdict:
    """The verdict on one run. A history of another version or flow is the user's mistake."""
    try:
        return judge(files)
    except HistoryError as problem:
        raise UserError(f"{problem}.") from None


def _print_verdict(name: str, files: Sequence[Path]) -> int:
    verdict = judged(files)
    print(f"{name}: flow {verdict.flow}, {verdict.records} records in {len(files)} files")
    views = plural(verdict.views, "view")
    print(f"  {plural(verdict.sealed, 'bucket')} sealed, {verdict.delivered} delivered, {views}")
    if verdict.partitions:
        copies = plural(verdict.copies, "copy", "copies")
        print(f"  {plural(verdict.partitions, 'partition')} in {copies}")
    _tell_what_is_missing(verdict)
    if not verdict.sealed and not verdict.delivered:
        print("  NOTHING TO JUDGE: no bucket was sealed. Did the run end before its first rows?")
        return VIOLATED
    if not verdict.deliveries:
        print("  NOTHING WAS DELIVERED: no sink got any further. Did the run fail?")
        return VIOLATED
    found = {finding.invariant for finding in verdict.findings}
    for invariant in [*INVARIANTS, *sorted(found - INVARIANTS.keys())]:
        findings = [finding for finding in verdict.findings if finding.invariant == invariant]
        word = f"VIOLATED {plural(len(findings), 'time')}" if findings else "holds"
        print(f"  {invariant:<16} {word:<20} {INVARIANTS.get(invariant, '')}".rstrip())
        for finding in findings[:SHOWN_MAX]:
            print(f"      {finding.what}\n      shown by {finding.record}")
        if len(findings) > SHOWN_MAX:
            print(f"      and {len(findings) - SHOWN_MAX} more")
    return 0 if verdict.clean and not verdict.lost else VIOLATED


def _tell_what_is_missing(verdict: Verdict) -> None:
    if not verdict.finished:
        print("  the run did not finish, or still runs: what was sealed last may not be delivered")
    if verdict.lost:
        print(
            f"  THE FLOW WAS LOST: no copy of {', '.join(verdict.lost)} is left. What was sealed and not "
            "delivered is missing from the output"
        )
    if verdict.judged_from is not None:
        print(f"  judged from bucket {verdict.judged_from} on: the oldest parts of the history were removed")
    for stream, columns in sorted(verdict.left_out.items()):
        print(f"  not compared, floating-point: {', '.join(columns)} of {stream}")
    if verdict.unwitnessed:
        print(
            f"  {verdict.unwitnessed} delivered buckets are not on record as produced: a process that was "
            "killed, or still runs, had not written that yet"
        )
    for unfinished in verdict.unfinished:
        print(f"  unfinished, as a killed process leaves it: {unfinished}")
    for damage in verdict.damages[:SHOWN_MAX]:
        print(f"  DAMAGED {damage}")
    if len(verdict.damages) > SHOWN_MAX:
        print(f"  and {len(verdict.damages) - SHOWN_MAX} more")
    if verdict.damages:
        print("  NOT CLEAN: records are missing. The rest is judged below.")
