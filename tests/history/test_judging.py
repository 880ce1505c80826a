"""The history of a sound run is judged clean; what breaks an invariant is found and called by its name."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from written_runs import (
    Run,
    at,
    change,
    deliver,
    digest,
    invariants_of,
    part,
    partitioned,
    random_run,
    verdict_on,
)

from understudy.core.bucket import NOTHING
from understudy.history.records import (
    DeliveredRecord,
    EndedRecord,
    HandedRecord,
    InstalledRecord,
    ProducedRecord,
    SealedRecord,
    ViewRecord,
)

Damage = Callable[[Run], None]


def test_the_history_of_a_sound_run_is_clean(tmp_path: Path) -> None:
    verdict = verdict_on(partitioned(), tmp_path)
    assert verdict.findings == []
    assert verdict.clean
    assert (verdict.sealed, verdict.delivered, verdict.views) == (5, 5, 2)
    assert (verdict.partitions, verdict.copies) == (5, 10)


def telling(run: Run) -> list[tuple[str, int, str]]:
    """The records of which no other tells what they do: process, place, and the invariant that needs them."""
    found: list[tuple[str, int, str]] = []
    for process, records in run.items():
        # What follows a group shows that it is missing; the last group of a copy may just not be written.
        followed = {(each.of, each.after) for each in records if isinstance(each, HandedRecord)}
        for index, record in enumerate(records):
            if isinstance(record, HandedRecord) and (record.of, record.through) in followed:
                found.append((process, index, "input-loss-free"))
            elif isinstance(record, DeliveredRecord) and record.buckets:
                found.append((process, index, "loss-free"))
    return found


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


def test_sources_number_their_buckets_each_by_itself(tmp_path: Path) -> None:
    run = partitioned()
    first, last = at(run, "gateway", SealedRecord), at(run, "gateway", SealedRecord, -1)
    assert [getattr(run["gateway"][index], "source", "") for index in (first, last)] == ["packets", "names"]
    # One bucket of the other source between any two of the first.
    between = sorted(run["gateway"][first : last + 1], key=lambda record: getattr(record, "number", 0))
    run["gateway"][first : last + 1] = between
    assert verdict_on(run, tmp_path).findings == []


# --- deliveries -------------------------------------------------------------------------------------------


def delivery(run: Run, sink: str = "stats", nth: int = 0) -> int:
    return at(run, "gateway", DeliveredRecord, nth, sink=sink)


def buckets(run: Run, index: int) -> Any:
    record = run["gateway"][index]
    assert isinstance(record, DeliveredRecord)
    return record.buckets


def leave_out_one_part(run: Run) -> None:
    first, (number, _, text) = buckets(run, delivery(run))
    change(run, "gateway", delivery(run), buckets=(first, (number, 1, text.split(",")[0])))


def leave_out_a_bucket(run: Run) -> None:
    change(run, "gateway", delivery(run, "stats", 1), buckets=())


def leave_out_a_bucket_of_the_other_sink(run: Run) -> None:
    change(run, "gateway", delivery(run, "counts", 1), buckets=())


def lose_the_first_delivery(run: Run) -> None:
    del run["gateway"][delivery(run)]


def lose_the_last_delivery(run: Run) -> None:
    del run["gateway"][delivery(run, "stats", 1)]


def lose_the_last_delivery_to_the_other_sink(run: Run) -> None:
    del run["gateway"][delivery(run, "counts", 1)]


def lose_every_delivery_to_one_sink(run: Run) -> None:
    for _ in range(2):
        del run["gateway"][delivery(run, "counts")]


def lose_every_delivery(run: Run) -> None:
    run["gateway"] = [record for record in run["gateway"] if not isinstance(record, DeliveredRecord)]


def leave_a_gap(run: Run) -> None:
    """No rows are lost in it, but the sink never got that empty range."""
    change(run, "gateway", delivery(run, "stats", 1), after=3)


def deliver_to_one_sink_what_another_was_due(run: Run) -> None:
    run["gateway"][delivery(run, "counts", 1)] = DeliveredRecord(
        11, "gateway", "counts", 3, 5, ((5, 1, part("stats/0", "stats", 5)),)
    )


def repeat_the_last_delivery(run: Run) -> None:
    index = delivery(run, "stats", 1)
    run["gateway"].insert(index, run["gateway"][index])


def repeat_a_delivery_to_the_other_sink(run: Run) -> None:
    index = delivery(run, "counts", 1)
    run["gateway"].insert(index, run["gateway"][index])


def deliver_a_part_twice(run: Run) -> None:
    deliver(run, 2, ",".join([part("stats/0", "stats", 5)] * 2))


def deliver_in_another_order(run: Run) -> None:
    index = delivery(run)
    change(run, "gateway", index, buckets=buckets(run, index)[::-1])


def deliver_a_bucket_from_before_the_delivery(run: Run) -> None:
    index = delivery(run, "stats", 1)
    change(run, "gateway", index, buckets=(buckets(run, delivery(run))[1], *buckets(run, index)))


def deliver_a_bucket_from_after_the_delivery(run: Run) -> None:
    index = delivery(run)
    change(run, "gateway", index, buckets=(*buckets(run, index), *buckets(run, delivery(run, "stats", 1))))


def deliver_a_bucket_twice_at_once(run: Run) -> None:
    index = delivery(run, "stats", 1)
    change(run, "gateway", index, buckets=buckets(run, index) * 2)


def deliver_other_rows(run: Run) -> None:
    deliver(run, 1, "stats/0=other")


def deliver_a_part_that_no_copy_made(run: Run) -> None:
    deliver(run, 2, f"{part('stats/0', 'stats', 5)},stats/1=invented")


def deliver_what_was_made_for_another_consumer(run: Run) -> None:
    other = f"sessions/0={digest('sessions/0', 'stats/0', 5)}"
    deliver(run, 2, f"{part('stats/0', 'stats', 5)},{other}")


def deliver_more_rows_than_the_parts_have(run: Run) -> None:
    deliver(run, 7, part("stats/0", "stats", 5))


def deliver_without_saying_whose_parts(run: Run) -> None:
    deliver(run, 1, digest("stats/0", "sink:stats/0", 5))


def deliver_to_a_sink_that_no_copy_made_rows_for(run: Run) -> None:
    made_up = DeliveredRecord(11, "gateway", "other", NOTHING, 5, ((5, 1, "stats/0=x"),))
    run["gateway"].insert(-1, made_up)


# --- copies -----------------------------------------------------------------------------------------------


def let_the_copies_differ(run: Run) -> None:
    change(run, "n2", at(run, "n2", ProducedRecord, of="sessions/1:1"), digest="other")


def let_one_copy_make_more_rows(run: Run) -> None:
    change(run, "n2", at(run, "n2", ProducedRecord, of="stats/0:1"), rows=9)


def let_a_copy_make_no_rows_where_the_other_made_some(run: Run) -> None:
    change(run, "n2", at(run, "n2", ProducedRecord, of="counts/0:1"), rows=0, digest="")


def let_a_source_deal_a_bucket_out_anew(run: Run) -> None:
    index = at(run, "gateway", ProducedRecord, of="packets/0:0", to="counts/0")
    run["gateway"].insert(index, run["gateway"][index])
    change(run, "gateway", index + 1, digest="other")


# --- input ------------------------------------------------------------------------------------------------


def miss_an_input_bucket(run: Run) -> None:
    change(run, "n1", at(run, "n1", HandedRecord, 1, of="stats/0:0"), numbers=(5,))


def miss_the_first_input_bucket(run: Run) -> None:
    change(run, "n1", at(run, "n1", HandedRecord, of="sessions/1:0"), numbers=(2,))


def miss_the_input_of_the_second_source(run: Run) -> None:
    change(run, "n1", at(run, "n1", HandedRecord, 1, of="counts/0:0"), numbers=(5,))


def skip_a_group(run: Run) -> None:
    del run["n2"][at(run, "n2", HandedRecord, of="sessions/0:1")]


def skip_an_empty_stretch(run: Run) -> None:
    change(run, "n1", at(run, "n1", HandedRecord, 1, of="sessions/0:0"), after=3)


def begin_after_the_state_that_was_given(run: Run) -> None:
    change(run, "n3", at(run, "n3", HandedRecord), after=3)


def begin_without_a_state(run: Run) -> None:
    del run["n3"][at(run, "n3", InstalledRecord)]


def go_on_with_the_state_of_another_copy(run: Run) -> None:
    change(run, "n3", at(run, "n3", InstalledRecord), of="stats/0:1")


def take_a_group_twice(run: Run) -> None:
    index = at(run, "n1", HandedRecord, 1, of="sessions/0:0")
    run["n1"].insert(index, run["n1"][index])


def begin_before_the_state_that_was_given(run: Run) -> None:
    change(run, "n3", at(run, "n3", HandedRecord), after=1, numbers=(2,))


# --- sources ----------------------------------------------------------------------------------------------


def keep_a_bucket_at_the_source(run: Run) -> None:
    index = at(run, "gateway", SealedRecord, 2, source="packets")
    run["gateway"].insert(index, SealedRecord(2, "gateway", "packets", 3, 4))
    del run["gateway"][at(run, "gateway", EndedRecord)]


def end_with_a_bucket_at_the_source(run: Run) -> None:
    run["gateway"].insert(-1, SealedRecord(13, "gateway", "packets", 7, 2))


def end_with_a_source_that_no_segment_was_given_anything_of(run: Run) -> None:
    run["gateway"].insert(-1, SealedRecord(13, "gateway", "unread", 1, 2))


def lose_the_rows_for_one_partition(run: Run) -> None:
    """Its copies never hear of them, so that only the number of rows shows it."""
    del run["gateway"][at(run, "gateway", ProducedRecord, of="packets/0:0", to="sessions/1", number=2)]


def lose_a_bucket_for_one_of_two_segments(run: Run) -> None:
    del run["gateway"][at(run, "gateway", ProducedRecord, of="packets/0:0", to="counts/0", number=1)]


def lose_a_row_on_the_way(run: Run) -> None:
    change(run, "gateway", at(run, "gateway", ProducedRecord, of="names/0:0", number=4), rows=2)
    change(run, "gateway", at(run, "gateway", SealedRecord, source="names", number=4), rows=3)


def give_a_row_to_two_partitions(run: Run) -> None:
    change(run, "gateway", at(run, "gateway", ProducedRecord, to="sessions/1", number=2), rows=3)


def seal_a_bucket_twice(run: Run) -> None:
    index = at(run, "gateway", SealedRecord, 1)
    run["gateway"].insert(index, run["gateway"][index])


def seal_in_falling_order(run: Run) -> None:
    first, second = (at(run, "gateway", SealedRecord, nth, source="names") for nth in (0, 1))
    records = run["gateway"]
    records[first], records[second] = records[second], records[first]


# --- views ------------------------------------------------------------------------------------------------


def publish_an_older_view(run: Run) -> None:
    change(run, "gateway", at(run, "gateway", ViewRecord, 1), epoch=1)


def publish_a_view_twice(run: Run) -> None:
    index = at(run, "gateway", ViewRecord, 1)
    run["gateway"].insert(index, run["gateway"][index])


BREACHES: dict[str, list[Damage]] = {
    "loss-free": [
        leave_out_one_part,
        leave_out_a_bucket,
        leave_out_a_bucket_of_the_other_sink,
        lose_the_first_delivery,
        lose_the_last_delivery,
        lose_the_last_delivery_to_the_other_sink,
        lose_every_delivery_to_one_sink,
        lose_every_delivery,
        leave_a_gap,
    ],
    "dup-free": [
        repeat_the_last_delivery,
        repeat_a_delivery_to_the_other_sink,
        deliver_a_part_twice,
    ],
    "in-order": [
        deliver_in_another_order,
        deliver_a_bucket_from_before_the_delivery,
        deliver_a_bucket_from_after_the_delivery,
        deliver_a_bucket_twice_at_once,
    ],
    "contents": [
        deliver_other_rows,
        deliver_a_part_that_no_copy_made,
        deliver_what_was_made_for_another_consumer,
        deliver_more_rows_than_the_parts_have,
        deliver_without_saying_whose_parts,
        deliver_to_a_sink_that_no_copy_made_rows_for,
    ],
    "replicas-agree": [
        let_the_copies_differ,
        let_one_copy_make_more_rows,
        let_a_copy_make_no_rows_where_the_other_made_some,
        let_a_source_deal_a_bucket_out_anew,
    ],
    "input-loss-free": [
        miss_an_input_bucket,
        miss_the_first_input_bucket,
        miss_the_input_of_the_second_source,
        skip_a_group,
        skip_an_empty_stretch,
        begin_after_the_state_that_was_given,
        begin_without_a_state,
        go_on_with_the_state_of_another_copy,
        keep_a_bucket_at_the_source,
        end_with_a_bucket_at_the_source,
        end_with_a_source_that_no_segment_was_given_anything_of,
        lose_the_rows_for_one_partition,
        lose_a_bucket_for_one_of_two_segments,
        lose_a_row_on_the_way,
    ],
    "input-dup-free": [
        take_a_group_twice,
        begin_before_the_state_that_was_given,
        give_a_row_to_two_partitions,
    ],
    "sealed-once": [seal_a_bucket_twice, seal_in_falling_order],
    "views-rise": [publish_an_older_view, publish_a_view_twice],
}


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
