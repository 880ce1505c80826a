"""Ways to damage the history of a run that was upgraded, by the invariant that each breaks."""

from __future__ import annotations

from collections.abc import Callable

from upgraded_runs import delivery
from written_runs import Run, at, change

from understudy.history.records import (
    DeliveredRecord,
    HandedRecord,
    InstalledRecord,
    ProducedRecord,
    ViewRecord,
    version_of,
)

Breach = Callable[[Run], None]


def delivered(run: Run, sink: str, version: int, nth: int = 0) -> int:
    return at(run, "gateway", DeliveredRecord, nth, sink=sink, version=version)


def forget_produced(run: Run, to: str, *numbers: int) -> None:
    """The source's share for a partition is gone. Its copies took the rows, so only the source shows it."""
    for number in numbers:
        del run["gateway"][at(run, "gateway", ProducedRecord, of="packets/0:0", to=to, number=number)]


def pass_over(run: Run, process: str, copy: str, number: int) -> None:
    """The copy takes everything but the rows of this bucket."""
    for index, record in enumerate(run[process]):
        if isinstance(record, HandedRecord) and record.of == copy:
            change(run, process, index, numbers=tuple(n for n in record.numbers if n != number))


def lose_rows_of_the_new_version_after_the_turn(run: Run) -> None:
    change(run, "gateway", delivered(run, "stats", 2), buckets=())


def lose_one_part_of_the_new_version(run: Run) -> None:
    index = delivered(run, "stats", 2)
    record = run["gateway"][index]
    assert isinstance(record, DeliveredRecord)
    (number, rows, text), *rest = record.buckets
    lacking = (number, rows - 1, text.rpartition(",")[0])
    change(run, "gateway", index, buckets=(lacking, *rest))


def lose_the_first_delivery_of_the_new_version(run: Run) -> None:
    del run["gateway"][delivered(run, "counts", 2)]


def lose_the_last_delivery_of_the_new_version(run: Run) -> None:
    del run["gateway"][delivered(run, "counts", 2, -1)]


def turn_too_late(run: Run) -> None:
    """Bucket 6 is dropped from both versions."""
    run["gateway"][delivered(run, "stats", 2)] = delivery(run, "stats", 6, 7, 2)


def lose_every_delivery_to_one_sink(run: Run) -> None:
    run["gateway"] = [record for record in run["gateway"] if getattr(record, "sink", "") != "counts"]


def deliver_a_bucket_from_both_versions(run: Run) -> None:
    run["gateway"][delivered(run, "stats", 2)] = delivery(run, "stats", 4, 7, 2)


def deliver_rows_of_the_old_version_as_the_new_one(run: Run) -> None:
    run["gateway"][delivered(run, "counts", 2)] = delivery(run, "counts", 6, 8, 2, rows_of=1)


def deliver_rows_of_the_new_version_as_the_old_one(run: Run) -> None:
    run["gateway"][delivered(run, "counts", 1, -1)] = delivery(run, "counts", 4, 6, 1, rows_of=2)


def deliver_a_part_that_only_the_other_version_has(run: Run) -> None:
    index = delivered(run, "stats", 1, -1)
    old = run["gateway"][index]
    assert isinstance(old, DeliveredRecord)
    new = delivery(run, "stats", old.after, old.through, 2).buckets
    mixed = [
        (number, rows, f"{text},{other.rpartition(',')[2]}")
        for (number, rows, text), (_, _, other) in zip(old.buckets, new, strict=True)
    ]
    change(run, "gateway", index, buckets=tuple(mixed))


def let_copies_of_the_new_version_differ(run: Run) -> None:
    change(run, "n4", at(run, "n4", ProducedRecord, of="volume@2/1:1"), digest="other")


def leave_a_hole_in_the_input_of_one_segment(run: Run) -> None:
    forget_produced(run, "counts@2/0", 6)


def leave_a_hole_in_the_input_of_the_new_version(run: Run) -> None:
    for partition in ("volume@2/0", "volume@2/1", "volume@2/2", "counts@2/0"):
        forget_produced(run, partition, 6)


def leave_a_hole_in_the_input_of_the_old_version_after_the_turn(run: Run) -> None:
    for partition in ("volume/0", "volume/1", "counts/0"):
        forget_produced(run, partition, 7)


def let_only_one_segment_begin(run: Run) -> None:
    forget_produced(run, "counts@2/0", 4)


def end_before_the_live_version_was_given_everything(run: Run) -> None:
    for partition in ("volume@2/0", "volume@2/1", "volume@2/2", "counts@2/0"):
        forget_produced(run, partition, 8, 9)


def end_without_any_input_for_the_live_version(run: Run) -> None:
    run["gateway"] = [r for r in run["gateway"] if version_of(getattr(r, "to", "")) == 1]


def lose_a_row_for_the_new_version(run: Run) -> None:
    change(run, "gateway", at(run, "gateway", ProducedRecord, to="counts@2/0", number=5), rows=5)


def give_a_row_to_two_partitions_of_the_new_version(run: Run) -> None:
    change(run, "gateway", at(run, "gateway", ProducedRecord, to="volume@2/1", number=5), rows=3)


def let_a_copy_of_the_new_version_miss_a_bucket(run: Run) -> None:
    change(run, "n3", at(run, "n3", HandedRecord, 1, of="volume@2/0:0"), numbers=(5,))


def let_a_copy_of_the_new_version_begin_without_a_state(run: Run) -> None:
    del run["n3"][at(run, "n3", InstalledRecord, of="counts@2/0:0")]


def let_a_copy_of_the_new_version_leave_a_part_of_the_log_out(run: Run) -> None:
    change(run, "n3", at(run, "n3", InstalledRecord, of="counts@2/0:0"), through=1)


def let_a_copy_of_the_new_version_go_on_with_the_state_of_an_old_copy(run: Run) -> None:
    change(run, "n3", at(run, "n3", InstalledRecord, of="counts@2/0:0"), of="counts/0:0")


def let_all_copies_pass_over_a_bucket_of_the_log(run: Run) -> None:
    for process, copy in (("n3", "counts@2/0:0"), ("n4", "counts@2/0:1")):
        pass_over(run, process, copy, 3)


def publish_an_older_view_of_the_new_version(run: Run) -> None:
    change(run, "gateway", at(run, "gateway", ViewRecord, 1, version=2), epoch=0)


def publish_a_view_of_the_old_version_twice(run: Run) -> None:
    change(run, "gateway", at(run, "gateway", ViewRecord, 2, version=1), epoch=4)


BREACHES: dict[str, list[Breach]] = {
    "loss-free": [
        lose_rows_of_the_new_version_after_the_turn,
        lose_one_part_of_the_new_version,
        lose_the_first_delivery_of_the_new_version,
        lose_the_last_delivery_of_the_new_version,
        turn_too_late,
        lose_every_delivery_to_one_sink,
    ],
    "dup-free": [deliver_a_bucket_from_both_versions],
    "contents": [
        deliver_rows_of_the_old_version_as_the_new_one,
        deliver_rows_of_the_new_version_as_the_old_one,
        deliver_a_part_that_only_the_other_version_has,
    ],
    "replicas-agree": [let_copies_of_the_new_version_differ],
    "input-loss-free": [
        leave_a_hole_in_the_input_of_one_segment,
        leave_a_hole_in_the_input_of_the_new_version,
        leave_a_hole_in_the_input_of_the_old_version_after_the_turn,
        let_only_one_segment_begin,
        end_before_the_live_version_was_given_everything,
        end_without_any_input_for_the_live_version,
        lose_a_row_for_the_new_version,
        let_a_copy_of_the_new_version_miss_a_bucket,
        let_a_copy_of_the_new_version_begin_without_a_state,
        let_a_copy_of_the_new_version_leave_a_part_of_the_log_out,
        let_a_copy_of_the_new_version_go_on_with_the_state_of_an_old_copy,
        let_all_copies_pass_over_a_bucket_of_the_log,
    ],
    "input-dup-free": [give_a_row_to_two_partitions_of_the_new_version],
    "views-rise": [publish_an_older_view_of_the_new_version, publish_a_view_of_the_old_version_twice],
}
