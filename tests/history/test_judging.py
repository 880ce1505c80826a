"""The history of a sound run is judged clean; what breaks an invariant is found and called by its name."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from breaches import (
    BREACHES,
    Damage,
    deliver_other_rows,
    deliver_to_one_sink_what_another_was_due,
    leave_out_a_bucket,
    leave_out_a_bucket_of_the_other_sink,
    publish_an_older_view,
    repeat_a_delivery_to_the_other_sink,
    repeat_the_last_delivery,
    seal_a_bucket_twice,
    take_a_group_twice,
)
from written_runs import at, invariants_of, partitioned, random_run, telling, verdict_on

from understudy.core.bucket import NOTHING
from understudy.history.records import (
    EndedRecord,
    HandedRecord,
    InstalledRecord,
    ProducedRecord,
    SealedRecord,
)


def test_the_history_of_a_sound_run_is_clean(tmp_path: Path) -> None:
    verdict = verdict_on(partitioned(), tmp_path)
    assert verdict.findings == []
    assert verdict.clean
    assert (verdict.sealed, verdict.delivered, verdict.views) == (5, 5, 2)
    assert (verdict.partitions, verdict.copies) == (5, 10)


@pytest.mark.parametrize("seed", range(30))
def test_a_random_sound_run_is_clean_and_the_loss_of_a_delivery_or_of_input_in_it_is_found(
    tmp_path: Path, seed: int
) -> None:
    run = random_run(seed)
    assert verdict_on(run, tmp_path).findings == []
    for process, index, invariant in random.Random(seed).sample(telling(run), 4):
        less = {**run, process: [*run[process][:index], *run[process][index + 1 :]]}
        assert invariants_of(verdict_on(less, tmp_path)) == {invariant}


def test_a_copy_that_comes_back_to_a_node_goes_on_from_the_state_it_was_given(tmp_path: Path) -> None:
    run = partitioned()
    run["n3"] += [
        InstalledRecord(20, "n3", 2, 1, "stats/1:1"),
        HandedRecord(21, "n3", 1, 5, (2,), "stats/1:1"),
    ]
    assert verdict_on(run, tmp_path).findings == []


def test_what_was_sealed_last_may_still_be_on_its_way_when_the_history_stops(tmp_path: Path) -> None:
    run = partitioned()
    run["gateway"][-1] = SealedRecord(13, "gateway", "packets", 7, 2)
    assert verdict_on(run, tmp_path).findings == []


def test_what_was_sealed_last_may_have_left_for_one_reader_and_not_yet_for_another(tmp_path: Path) -> None:
    run = partitioned()
    run["gateway"][-1:] = [
        SealedRecord(13, "gateway", "packets", 7, 2),
        ProducedRecord(13, "gateway", 7, 2, "digest", "packets/0:0", "counts/0"),
    ]
    assert verdict_on(run, tmp_path).findings == []
    run["gateway"].append(EndedRecord(14, "gateway"))
    assert invariants_of(verdict_on(run, tmp_path)) == {"input-loss-free"}


def test_sources_number_their_buckets_each_by_itself(tmp_path: Path) -> None:
    run = partitioned()
    first, last = at(run, "gateway", SealedRecord), at(run, "gateway", SealedRecord, -1)
    assert [getattr(run["gateway"][index], "source", "") for index in (first, last)] == ["packets", "names"]
    # One bucket of the other source between any two of the first.
    between = sorted(run["gateway"][first : last + 1], key=lambda record: getattr(record, "number", 0))
    run["gateway"][first : last + 1] = between
    assert verdict_on(run, tmp_path).findings == []


@pytest.mark.parametrize(
    ("damage", "invariant"),
    [
        pytest.param(damage, invariant, id=f"{invariant}: {damage.__name__}")
        for invariant, damages in BREACHES.items()
        for damage in damages
    ],
)
def test_a_broken_invariant_is_found_and_called_by_its_name(
    tmp_path: Path, damage: Damage, invariant: str
) -> None:
    run = partitioned()
    damage(run)
    assert invariants_of(verdict_on(run, tmp_path)) == {invariant}


def test_rows_of_one_sink_do_not_count_as_those_of_another(tmp_path: Path) -> None:
    run = partitioned()
    deliver_to_one_sink_what_another_was_due(run)
    assert invariants_of(verdict_on(run, tmp_path)) == {"loss-free", "contents"}


@pytest.mark.parametrize(
    ("damage", "sink", "other"),
    [
        (leave_out_a_bucket, "stats", "counts"),
        (leave_out_a_bucket_of_the_other_sink, "counts", "stats"),
        (repeat_the_last_delivery, "stats", "counts"),
        (repeat_a_delivery_to_the_other_sink, "counts", "stats"),
    ],
)
def test_a_finding_names_its_sink_and_leaves_the_other_sink_alone(
    tmp_path: Path, damage: Damage, sink: str, other: str
) -> None:
    run = partitioned()
    damage(run)
    (finding,) = verdict_on(run, tmp_path).findings
    assert sink in finding.what
    assert other not in finding.what
    assert f'"sink":"{sink}"' in finding.record


@pytest.mark.parametrize("damage", [damage for damages in BREACHES.values() for damage in damages])
def test_no_finding_shows_the_number_that_stands_for_no_bucket(tmp_path: Path, damage: Damage) -> None:
    run = partitioned()
    damage(run)
    assert [each for each in verdict_on(run, tmp_path).findings if str(NOTHING) in each.what] == []


def test_every_finding_is_counted_and_shows_the_record_that_gave_it_away(tmp_path: Path) -> None:
    run = partitioned()
    for damage in (deliver_other_rows, seal_a_bucket_twice, publish_an_older_view, take_a_group_twice):
        damage(run)
    verdict = verdict_on(run, tmp_path)
    assert not verdict.clean
    kinds = {finding.invariant: finding.record.split('"')[3] for finding in verdict.findings}
    assert kinds == {
        "contents": "delivered",
        "sealed-once": "sealed",
        "views-rise": "view",
        "input-dup-free": "handed",
    }
