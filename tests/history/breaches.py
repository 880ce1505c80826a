"""Ways to damage the history of a sound run, by the invariant that each breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from written_runs import Run, at, change, deliver, digest, part

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

# --- deliveries -------------------------------------------------------------------------------------------


def delivery_index(run: Run, sink: str = "stats", nth: int = 0) -> int:
    return at(run, "gateway", DeliveredRecord, nth, sink=sink)


def buckets_at(run: Run, index: int) -> Any:
    record = run["gateway"][index]
    assert isinstance(record, DeliveredRecord)
    return record.buckets


def leave_out_one_part(run: Run) -> None:
    first, (number, _, text) = buckets_at(run, delivery_index(run))
    change(run, "gateway", delivery_index(run), buckets=(first, (number, 1, text.split(",")[0])))


def leave_out_a_bucket(run: Run) -> None:
    change(run, "gateway", delivery_index(run, "stats", 1), buckets=())


def leave_out_a_bucket_of_the_other_sink(run: Run) -> None:
    change(run, "gateway", delivery_index(run, "counts", 1), buckets=())


def lose_the_first_delivery(run: Run) -> None:
    del run["gateway"][delivery_index(run)]


def lose_the_last_delivery(run: Run) -> None:
    del run["gateway"][delivery_index(run, "stats", 1)]


def lose_the_last_delivery_to_the_other_sink(run: Run) -> None:
    del run["gateway"][delivery_index(run, "counts", 1)]


def lose_every_delivery_to_one_sink(run: Run) -> None:
    for _ in range(2):
        del run["gateway"][delivery_index(run, "counts")]


def lose_every_delivery(run: Run) -> None:
    run["gateway"] = [record for record in run["gateway"] if not isinstance(record, DeliveredRecord)]


def leave_a_gap(run: Run) -> None:
    """No rows are lost in it, but the sink never got that empty range."""
    change(run, "gateway", delivery_index(run, "stats", 1), after=3)


def deliver_to_one_sink_what_another_was_due(run: Run) -> None:
    run["gateway"][delivery_index(run, "counts", 1)] = DeliveredRecord(
        11, "gateway", "counts", 3, 5, ((5, 1, part("stats/0", "stats", 5)),)
    )


def repeat_the_last_delivery(run: Run) -> None:
    index = delivery_index(run, "stats", 1)
    run["gateway"].insert(index, run["gateway"][index])


def repeat_a_delivery_to_the_other_sink(run: Run) -> None:
    index = delivery_index(run, "counts", 1)
    run["gateway"].insert(index, run["gateway"][index])


def deliver_a_part_twice(run: Run) -> None:
    deliver(run, 2, ",".join([part("stats/0", "stats", 5)] * 2))


def deliver_in_another_order(run: Run) -> None:
    index = delivery_index(run)
    change(run, "gateway", index, buckets=buckets_at(run, index)[::-1])


def deliver_a_bucket_from_before_the_delivery(run: Run) -> None:
    index = delivery_index(run, "stats", 1)
    change(run, "gateway", index, buckets=(buckets_at(run, delivery_index(run))[1], *buckets_at(run, index)))


def deliver_a_bucket_from_after_the_delivery(run: Run) -> None:
    index, later = delivery_index(run), delivery_index(run, "stats", 1)
    change(run, "gateway", index, buckets=(*buckets_at(run, index), *buckets_at(run, later)))


def deliver_a_bucket_twice_at_once(run: Run) -> None:
    index = delivery_index(run, "stats", 1)
    change(run, "gateway", index, buckets=buckets_at(run, index) * 2)


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
