"""Runs that were upgraded while rows flowed: sound ones are clean, breaches by either version are found."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from upgrade_breaches import (
    BREACHES,
    Breach,
    delivered,
    end_before_the_live_version_was_given_everything,
    end_without_any_input_for_the_live_version,
    forget_produced,
    pass_over,
)
from upgraded_runs import STAYS, TAKEN_BACK, Upgrade, delivery, random_upgrade, upgraded
from written_runs import FLOW, Run, at, change, invariants_of, judged, telling, verdict_on, write

from understudy.history.records import (
    FORMAT_VERSION,
    DeliveredRecord,
    EndedRecord,
    Header,
    ProducedRecord,
    ViewRecord,
    version_of,
)


@pytest.mark.parametrize("upgrade", [STAYS, TAKEN_BACK], ids=["stays", "taken back"])
def test_an_upgrade_is_clean_whether_it_stays_or_is_taken_back(tmp_path: Path, upgrade: Upgrade) -> None:
    verdict = verdict_on(upgraded(upgrade), tmp_path)
    assert verdict.findings == []
    assert verdict.clean
    assert verdict.unwitnessed == 0
    assert (verdict.sealed, verdict.delivered) == (9, 18)
    assert (verdict.partitions, verdict.copies) == (7, 14), "of both versions"


@pytest.mark.parametrize("seed", range(40))
def test_a_random_upgrade_is_clean_and_the_loss_of_a_delivery_or_of_input_in_it_is_found(
    tmp_path: Path, seed: int
) -> None:
    run = random_upgrade(seed)
    assert verdict_on(run, tmp_path).findings == []
    lesser = [
        ({**run, process: [*run[process][:index], *run[process][index + 1 :]]}, invariant)
        for process, index, invariant in telling(run)
    ]
    # Without the only delivery after the last turn, the turn itself is not on record.
    turned = [(less, invariant) for less, invariant in lesser if live(less) == live(run)]
    for less, invariant in random.Random(seed).sample(turned, 6):
        assert invariants_of(verdict_on(less, tmp_path)) == {invariant}


def live(run: Run) -> dict[str, int]:
    """By sink, the version that delivered last."""
    return {record.sink: record.version for record in run["gateway"] if isinstance(record, DeliveredRecord)}


@pytest.mark.parametrize(
    ("breach", "invariant"),
    [
        pytest.param(breach, invariant, id=f"{invariant}: {breach.__name__}")
        for invariant, breaches in BREACHES.items()
        for breach in breaches
    ],
)
def test_a_breach_in_an_upgraded_run_is_found_and_called_by_its_name(
    tmp_path: Path, breach: Breach, invariant: str
) -> None:
    run = upgraded()
    breach(run)
    assert invariants_of(verdict_on(run, tmp_path)) == {invariant}


def test_when_an_upgrade_was_taken_back_the_old_version_has_nothing_left_in_the_end(tmp_path: Path) -> None:
    run = upgraded(TAKEN_BACK)
    del run["gateway"][delivered(run, "counts", 1, -1)]
    (finding,) = verdict_on(run, tmp_path).findings
    assert finding.invariant == "loss-free"
    assert "ended with counts at 8, and bucket 9 has rows" in finding.what


def test_when_an_upgrade_was_taken_back_the_old_version_was_given_everything(tmp_path: Path) -> None:
    run = upgraded(TAKEN_BACK)
    forget_produced(run, "counts/0", 9)
    (finding,) = verdict_on(run, tmp_path).findings
    assert finding.invariant == "input-loss-free"
    assert "left packets for counts;" in finding.what


def test_each_sink_has_its_own_live_version_in_the_end(tmp_path: Path) -> None:
    """Of version 2, which counts takes, nothing after 7 is made for stats."""
    turns = {"stats": [(1, 9)], "counts": [(1, 5), (2, 9)]}
    run = upgraded(replace(STAYS, fed={1: (1, 9), 2: (4, 9)}, turns=turns))
    for process in ("n3", "n4"):
        run[process] = [
            r
            for r in run[process]
            if not (isinstance(r, ProducedRecord) and r.to == "sink:stats/0" and r.number > 7)
        ]
    assert verdict_on(run, tmp_path).findings == []
    del run["gateway"][delivered(run, "stats", 1, -1)]
    (finding,) = verdict_on(run, tmp_path).findings
    assert "ended with stats at 8, and bucket 9 has rows" in finding.what


def test_rows_of_the_version_before_are_no_substitute_for_those_that_the_new_one_did_not_make(
    tmp_path: Path,
) -> None:
    run = upgraded()
    old = delivery(run, "counts", 6, 8, 2, rows_of=1)
    for process in ("n3", "n4"):
        del run[process][at(run, process, ProducedRecord, to="sink:counts/0", number=7)]
    run["gateway"][delivered(run, "counts", 2)] = replace(old, buckets=old.buckets[:1], through=7)
    run["gateway"].insert(delivered(run, "counts", 2) + 1, delivery(run, "counts", 7, 8, 2))
    (finding,) = verdict_on(run, tmp_path).findings
    assert finding.what == "no copy of counts@2/0 produced bucket 7 for counts"


def test_the_first_version_is_given_everything_from_the_beginning(tmp_path: Path) -> None:
    run = upgraded()
    for partition in ("volume/0", "volume/1", "counts/0"):
        forget_produced(run, partition, 1)
    assert invariants_of(verdict_on(run, tmp_path)) == {"input-loss-free"}


def test_a_bucket_that_the_live_version_lacks_is_found_once_for_each_segment(tmp_path: Path) -> None:
    run = upgraded()
    end_before_the_live_version_was_given_everything(run)
    whats = [finding.what for finding in verdict_on(run, tmp_path).findings]
    assert whats == [
        f"of bucket {number}, 0 rows left packets for {segment}@2; 6 were sealed"
        for number in (8, 9)
        for segment in ("counts", "volume")
    ]


def test_a_source_of_which_the_live_version_was_given_nothing_shows_it_when_the_other_is_over(
    tmp_path: Path,
) -> None:
    run = upgraded()
    end_without_any_input_for_the_live_version(run)
    (finding,) = verdict_on(run, tmp_path).findings
    assert finding.what == "of bucket 9, 0 rows left packets for any segment; 6 were sealed"


def test_a_run_that_stopped_need_not_have_given_the_live_version_what_was_sealed_last(
    tmp_path: Path,
) -> None:
    run = upgraded()
    end_before_the_live_version_was_given_everything(run)
    del run["gateway"][at(run, "gateway", EndedRecord)]
    assert verdict_on(run, tmp_path).findings == []


def test_a_version_that_never_went_live_is_not_missed_when_it_ends(tmp_path: Path) -> None:
    never = replace(STAYS, fed={1: (1, 9), 2: (4, 6)}, turns={"stats": [(1, 9)], "counts": [(1, 9)]})
    assert verdict_on(upgraded(never), tmp_path).findings == []


def test_a_bucket_of_the_log_may_have_no_rows_for_some_partitions_of_a_segment(tmp_path: Path) -> None:
    run = upgraded()
    for process, replica in (("n3", 0), ("n4", 1)):
        for index in (0, 2):
            pass_over(run, process, f"volume@2/{index}:{replica}", 3)
    assert verdict_on(run, tmp_path).findings == []
    for process, replica in (("n3", 0), ("n4", 1)):
        pass_over(run, process, f"volume@2/1:{replica}", 3)
    (finding,) = verdict_on(run, tmp_path).findings
    assert finding.what == "of bucket 3 of packets, no copy of volume@2 took any row; 6 were sealed"


def test_a_sink_that_turns_before_it_has_taken_what_a_state_held_is_given_rows_of_the_version_before(
    tmp_path: Path,
) -> None:
    """Version 2 begins with states through 6, in which the output for counts since 4 still waits."""
    turns = {"stats": [(1, 9)], "counts": [(1, 4), (2, 9)]}
    run = upgraded(Upgrade(last=9, saved=6, fed={1: (1, 9), 2: (8, 9)}, turns=turns))
    run["gateway"][delivered(run, "counts", 2)] = delivery(run, "counts", 4, 6, 2, rows_of=1)
    assert verdict_on(run, tmp_path).findings == []
    change(run, "gateway", delivered(run, "counts", 2), buckets=((5, 1, "counts/0=other"),))
    assert invariants_of(verdict_on(run, tmp_path)) == {"contents"}


@pytest.mark.parametrize("before", [3, 5, 8])
def test_an_upgrade_whose_first_records_were_removed_is_judged_from_the_next_bucket_on(
    tmp_path: Path, before: int
) -> None:
    run = upgraded()
    verdict_on(run, tmp_path)
    rest = [r for r in run["gateway"] if getattr(r, "number", getattr(r, "through", 0)) > before]
    head = Header(FORMAT_VERSION, FLOW, "gateway", 2, False, before, ((1, 5), (2, 2)))
    write(tmp_path / "gateway.jsonl", [[*rest, EndedRecord(13, "gateway")]], [head])
    verdict = judged(tmp_path)
    assert verdict.findings == []
    assert verdict.judged_from == before + 1


# --- a flow that is lost ----------------------------------------------------------------------------------


def let_all_copies_die(run: Run, version: int) -> None:
    index = at(run, "gateway", ViewRecord, -1, version=version)
    view = run["gateway"][index]
    assert isinstance(view, ViewRecord)
    dead = tuple((copy, node, epoch, "DEAD") for copy, node, epoch, _ in view.seats)
    change(run, "gateway", index, seats=dead)


@pytest.mark.parametrize(
    ("upgrade", "live_version"), [(STAYS, 2), (TAKEN_BACK, 1)], ids=["stays", "taken back"]
)
def test_a_flow_is_lost_with_the_version_that_delivered_last(
    tmp_path: Path, upgrade: Upgrade, live_version: int
) -> None:
    run = upgraded(upgrade)
    let_all_copies_die(run, 3 - live_version)
    assert verdict_on(run, tmp_path).lost == ()
    let_all_copies_die(run, live_version)
    lost = verdict_on(run, tmp_path).lost
    assert {version_of(partition) for partition in lost} == {live_version}
    assert len(lost) == {1: 3, 2: 4}[live_version]


def test_before_any_delivery_a_flow_is_lost_with_the_version_that_the_run_began_with(tmp_path: Path) -> None:
    run = upgraded()
    run["gateway"] = [record for record in run["gateway"] if not isinstance(record, DeliveredRecord)]
    let_all_copies_die(run, 2)
    assert verdict_on(run, tmp_path).lost == ()
    let_all_copies_die(run, 1)
    assert verdict_on(run, tmp_path).lost == ("counts/0", "volume/0", "volume/1")
