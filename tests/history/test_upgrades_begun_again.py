"""A gateway that was killed in the middle of an upgrade and begins again."""

from __future__ import annotations

from pathlib import Path

import pytest
from upgrade_breaches import delivered, forget_produced, pass_over
from upgraded_runs import STAYS, TAKEN_BACK, Upgrade, upgraded
from written_runs import Run, at, invariants_of, judged, verdict_on, write

from understudy.history.records import (
    DeliveredRecord,
    ProducedRecord,
    Record,
    SealedRecord,
    ViewRecord,
    partition_of,
    version_of,
)


def begun_again(run: Run, folder: Path, index: int, *first: Record) -> None:
    """The gateway was killed before this record; the next one begins with other records, then goes on."""
    verdict_on(run, folder)
    before, after = run["gateway"][:index], run["gateway"][index:]
    write(folder / "gateway.jsonl", [before, [*first, *after]])


@pytest.mark.parametrize("upgrade", [STAYS, TAKEN_BACK], ids=["stays", "taken back"])
@pytest.mark.parametrize("nth", range(10))
def test_a_gateway_that_begins_again_in_the_middle_of_an_upgrade_repeats_for_both_versions_what_it_did(
    tmp_path: Path, upgrade: Upgrade, nth: int
) -> None:
    run = upgraded(upgrade)
    again = [
        *(run["gateway"][at(run, "gateway", ViewRecord, -1, version=version)] for version in (2, 1)),
        *(r for r in run["gateway"] if isinstance(r, SealedRecord | ProducedRecord) and r.number > 3),
    ]
    begun_again(run, tmp_path, at(run, "gateway", DeliveredRecord, nth), *again)
    verdict = judged(tmp_path)
    assert verdict.findings == []
    assert (verdict.sealed, verdict.views, verdict.delivered) == (9, 7, 18)


def fed_again_from(first: int, run: Run, folder: Path, version: int = 2) -> None:
    """The gateway is killed when it has fed a version through 5, and the next one feeds it from here on."""
    verdict_on(run, folder)
    index = at(run, "gateway", DeliveredRecord)
    began, rest = run["gateway"][:index], run["gateway"][index:]
    before: list[Record] = []
    after: list[Record] = []
    for record in began:
        if isinstance(record, ProducedRecord) and version_of(record.to) == version:
            if record.number <= 5:
                before.append(record)
            if record.number >= first:
                after.append(record)
        else:
            before.append(record)
            # What was sealed is put out once more for the other version.
            if isinstance(record, SealedRecord | ProducedRecord) and record.number > 3:
                after.append(record)
    write(folder / "gateway.jsonl", [before, [*after, *rest]])


@pytest.mark.parametrize("first", [6, 7, 8, 9])
def test_a_gateway_that_begins_again_may_let_copies_of_the_new_version_read_the_log_again(
    tmp_path: Path, first: int
) -> None:
    run = upgraded()
    fed_again_from(first, run, tmp_path)
    assert judged(tmp_path).findings == []
    pass_over(run, "n3", "counts@2/0:0", 7)
    pass_over(run, "n4", "counts@2/0:1", 7)
    fed_again_from(first, run, tmp_path)
    # From the log or from the source: they must have taken it.
    assert invariants_of(judged(tmp_path)) == {"input-loss-free"}


def test_a_gateway_that_begins_again_leaves_no_hole_in_what_it_feeds_the_new_version_since(
    tmp_path: Path,
) -> None:
    run = upgraded()
    forget_produced(run, "counts@2/0", 8)
    fed_again_from(7, run, tmp_path)
    (finding,) = judged(tmp_path).findings
    assert finding.what == "of bucket 8, 0 rows left packets for counts@2; 6 were sealed"


def test_the_first_version_is_fed_without_a_hole_however_often_the_gateway_begins(tmp_path: Path) -> None:
    run = upgraded()
    fed_again_from(6, run, tmp_path, version=1)
    assert judged(tmp_path).findings == []
    fed_again_from(7, run, tmp_path, version=1)
    assert invariants_of(judged(tmp_path)) == {"input-loss-free"}


@pytest.mark.parametrize(
    ("version", "epoch", "invariants"),
    [(1, 5, set()), (2, 2, set()), (1, 2, {"views-rise"}), (2, 1, {"views-rise"}), (3, 1, set())],
)
def test_a_gateway_that_begins_again_goes_back_to_no_older_view_of_any_version(
    tmp_path: Path, version: int, epoch: int, invariants: set[str]
) -> None:
    run = upgraded()
    last = [record for record in run["gateway"] if isinstance(record, ViewRecord)]
    seats = next((each.seats for each in reversed(last) if each.version == version), ())
    view = ViewRecord(9, "gateway", epoch, seats, version)
    begun_again(run, tmp_path, at(run, "gateway", DeliveredRecord), view)
    assert invariants_of(judged(tmp_path)) == invariants
    # Once at most, also if the other version's came in between.
    other = run["gateway"][at(run, "gateway", ViewRecord, -1, version=3 - version)] if version < 3 else view
    begun_again(run, tmp_path, at(run, "gateway", DeliveredRecord), view, other, view)
    assert invariants_of(judged(tmp_path)) == {"views-rise"}


@pytest.mark.parametrize(
    ("old", "new", "invariants"),
    [
        ((), (), set()),
        ((), (5, 6), set()),
        ((5, 6), (), set()),
        ((6,), (5,), set()),
        ((5,), (6,), {"loss-free"}),
        ((5,), (5,), {"loss-free"}),
        ((5, 6), (5, 6), {"loss-free"}),
    ],
)
def test_a_turn_that_a_killed_gateway_did_not_record_was_at_some_number_that_no_rows_are_lost_by(
    tmp_path: Path, old: tuple[int, ...], new: tuple[int, ...], invariants: set[str]
) -> None:
    run = upgraded()
    for process, records in run.items():
        run[process] = [
            record
            for record in records
            if not isinstance(record, ProducedRecord)
            or record.to != "sink:counts/0"
            or record.number not in (5, 6)
            or record.number in (old if version_of(partition_of(record.of)) == 1 else new)
        ]
    index = delivered(run, "counts", 1, -1)
    del run["gateway"][index]
    begun_again(run, tmp_path, index)
    assert invariants_of(judged(tmp_path)) == invariants
    # Without a restart nothing can be unrecorded.
    assert invariants_of(verdict_on(run, tmp_path)) == {"loss-free"}
