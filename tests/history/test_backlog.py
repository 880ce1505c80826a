"""Notes that wait to be written: in order, bounded, and counted where they do not fit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy.history.backlog import Backlog
from understudy.history.reading import records_of
from understudy.history.records import MissedRecord, Record, SuspectedRecord
from understudy.history.writing import PartedFile

TIMEOUT_S = 20.0


class Gate:
    """A note that holds the writing thread up until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self) -> Iterator[Record]:
        self.reached.set()
        assert self.opened.wait(TIMEOUT_S)
        return iter(())


@pytest.fixture
def file(tmp_path: Path) -> PartedFile:
    return PartedFile(tmp_path / "n.jsonl", "flow", "n", part_bytes=2**20, total_bytes=2**30)


def put(backlog: Backlog, name: int, size_bytes: int = 0) -> None:
    backlog.put(lambda: (SuspectedRecord(1, "n", str(name)),), size_bytes)


def held_up(backlog: Backlog) -> Gate:
    gate = Gate()
    backlog.put(gate)
    assert gate.reached.wait(TIMEOUT_S)
    return gate


def written(folder: Path) -> list[str | int]:
    """The names, and how many are missing where."""
    found: list[str | int] = []
    for record in records_of(folder / "n.jsonl"):
        if isinstance(record, SuspectedRecord):
            found.append(record.node)
        elif isinstance(record, MissedRecord):
            found.append(record.records)
    return found


def test_notes_are_written_in_their_order(tmp_path: Path, file: PartedFile) -> None:
    backlog = Backlog(file, "n")
    for name in range(1_000):
        put(backlog, name)
    backlog.close(TIMEOUT_S)
    assert written(tmp_path) == [str(name) for name in range(1_000)]


@pytest.mark.parametrize("limits", [{"notes_max": 4}, {"bytes_max": 400}], ids=["notes", "bytes"])
def test_notes_that_do_not_fit_are_counted_where_they_are_missing_and_hold_no_caller_up(
    tmp_path: Path, file: PartedFile, limits: dict[str, int]
) -> None:
    backlog = Backlog(file, "n", **limits)
    gate = held_up(backlog)
    # One caller waits, once. If each of them did, the test would run out of time.
    for name in range(100_000):
        put(backlog, name, 100)
    gate.opened.set()
    assert backlog.flush(TIMEOUT_S)
    put(backlog, 100_000)
    backlog.close(TIMEOUT_S)
    assert written(tmp_path) == ["0", "1", "2", "3", 99_996, "100000"]


def test_a_short_jam_costs_a_moment_and_no_record(tmp_path: Path, file: PartedFile) -> None:
    backlog = Backlog(file, "n", notes_max=2, patience_s=TIMEOUT_S)
    gate = held_up(backlog)
    put(backlog, 0)
    put(backlog, 1)
    caller = threading.Thread(target=put, args=(backlog, 2))
    caller.start()
    gate.opened.set()
    caller.join(TIMEOUT_S)
    backlog.close(TIMEOUT_S)
    assert written(tmp_path) == ["0", "1", "2"]


def test_a_note_that_fails_counts_as_missing_and_the_rest_is_written(
    tmp_path: Path, file: PartedFile
) -> None:
    def broken() -> Iterator[Record]:
        raise ValueError("a payload that cannot be read")

    backlog = Backlog(file, "n")
    put(backlog, 0)
    backlog.put(broken)
    put(backlog, 1)
    backlog.close(TIMEOUT_S)
    found = written(tmp_path)
    assert sorted(map(str, found)) == ["0", "1", "1"]
    assert 1 in found


def test_what_is_written_now_does_not_wait_for_what_waits(tmp_path: Path, file: PartedFile) -> None:
    backlog = Backlog(file, "n")
    gate = held_up(backlog)
    put(backlog, 0)
    backlog.write_now(SuspectedRecord(1, "n", "now"))
    assert written(tmp_path) == ["now"]
    gate.opened.set()
    backlog.close(TIMEOUT_S)
    assert written(tmp_path) == ["now", "0"]


def test_a_queue_that_was_full_is_half_empty_before_it_takes_notes_again(
    tmp_path: Path, file: PartedFile
) -> None:
    """Else every second note would be missing, and as many records would say so."""
    backlog = Backlog(file, "n", notes_max=4, patience_s=0)
    gate = held_up(backlog)
    for name in range(6):
        put(backlog, name)
    with backlog._changed:
        # The writing thread has taken one.
        backlog._notes.popleft()
    put(backlog, 6)
    gate.opened.set()
    assert backlog.flush(TIMEOUT_S)
    put(backlog, 7)
    backlog.close(TIMEOUT_S)
    assert written(tmp_path) == ["1", "2", "3", 3, "7"]
