"""Two versions of a flow deliver to one sink, one after the other: every range says which of them made it."""

from __future__ import annotations

from pathlib import Path

import pytest
from delivery_kit import Attempt, Crash, bucket, rows_in

from understudy.runtime.gateway.delivery import DeliveredRange
from understudy.runtime.gateway.journal import Journal


def test_a_range_says_which_version_made_it_also_when_the_next_one_puts_before_its_end_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other version is woken by the report of a range, while its thread still writes to the journal."""
    attempt = Attempt(tmp_path)
    honest = Journal.write

    def write(journal: Journal, position: int, last: DeliveredRange | None) -> None:
        honest(journal, position, last)
        assert last is None or last.version == (1 if last.through == 3 else 2)

    def next_version() -> None:
        attempt.on_report = lambda: None
        attempt.delivery.put("one", [bucket(4, 40)], 2)

    monkeypatch.setattr(Journal, "write", write)
    attempt.on_report = next_version
    attempt.delivery.put("one", [bucket(3, 30)], 1)
    attempt.delivery.start()
    with attempt.reports:
        assert attempt.reports.wait_for(lambda: len(attempt.reported["one"]) == 2, 20)
    attempt.delivery.end()
    assert attempt.failures == []
    assert [(done.through, done.version) for done in attempt.reported["one"]] == [(3, 1), (4, 2)]
    assert rows_in(tmp_path) == [30, 40]


def test_a_range_that_was_not_reported_is_reported_as_the_version_that_made_it(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)

    def crash() -> None:
        raise Crash

    attempt.on_report = crash
    attempt.delivery.put("one", [bucket(3, 30)], 2)
    attempt.delivery.start()
    attempt.delivery.end()
    again = Attempt(tmp_path)
    assert [(done.through, done.version) for done in again.reported["one"]] == [(3, 2)]
