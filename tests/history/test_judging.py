"""The history of a sound run is judged clean, and damage done to it is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from partitioned_history import Run, at, change, deliver, digest, partitioned, verdict_on
from understudy.core.buffer import Acks

from understudy.history.judging import judge
from understudy.history.records import (
    DeliveredRecord,
    EndedRecord,
    HandedRecord,
    InstalledRecord,
    ProducedRecord,
    SealedRecord,
    ViewRecord,
)
from understudy.history.writing import HistoryWriter
from understudy.sim.random_schedules import run_seed

Lines = list[dict[str, Any]]


def history(path: Path, seed: int, acks: Acks = Acks.CUMULATIVE) -> Path:
    with path.open("w") as stream:
        run_seed("pair", seed, acks, history=HistoryWriter(stream, "simulated"))
    return path


@pytest.mark.parametrize("acks", list(Acks))
def test_the_history_of_a_sound_run_is_clean(tmp_path: Path, acks: Acks) -> None:
    for seed in range(20):
        verdict = judge(history(tmp_path / f"{seed}.jsonl", seed, acks))
        assert verdict.findings == []
        assert verdict.delivered > 0


def of(lines: Lines, kind: str) -> list[int]:
    return [at for at, line in enumerate(lines) if line["kind"] == kind]


def with_rows(lines: Lines) -> int:
    return next(at for at in of(lines, "delivered")[1:] if any(rows for _, rows, _ in lines[at]["buckets"]))


def remove_a_delivery(lines: Lines) -> None:
    del lines[of(lines, "delivered")[1]]


def repeat_a_delivery(lines: Lines) -> None:
    at = of(lines, "delivered")[1]
    lines.insert(at + 1, lines[at])


def turn_a_delivery_round(lines: Lines) -> None:
    at = next(at for at in of(lines, "delivered") if len(lines[at]["buckets"]) > 1)
    lines[at]["buckets"].reverse()


def drop_a_bucket_with_rows(lines: Lines) -> None:
    at = with_rows(lines)
    lines[at]["buckets"] = [bucket for bucket in lines[at]["buckets"] if not bucket[1]]


def change_delivered_rows(lines: Lines) -> None:
    at = with_rows(lines)
    lines[at]["buckets"] = [[number, rows, "0" * 16] for number, rows, _ in lines[at]["buckets"]]


def change_what_one_replica_made(lines: Lines) -> None:
    made: dict[int, str] = {}
    for index in of(lines, "produced"):
        if made.setdefault(lines[index]["number"], lines[index]["by"]) != lines[index]["by"]:
            lines[index]["digest"] = "0" * 16
            return


def repeat_a_group(lines: Lines) -> None:
    at = of(lines, "handed")[0]
    lines.insert(at + 1, lines[at])


def seal_twice(lines: Lines) -> None:
    at = of(lines, "sealed")[1]
    lines.insert(at + 1, lines[at])


def end_without_the_last_deliveries(lines: Lines) -> None:
    by = lines[of(lines, "delivered")[0]]["by"]
    last_result = max(lines[index]["number"] for index in of(lines, "produced") if lines[index]["rows"])
    for index in reversed(of(lines, "delivered")):
        if lines[index]["through"] >= last_result:
            del lines[index]
    lines.append({"kind": "ended", "at_us": lines[-1]["at_us"], "by": by})


@pytest.mark.parametrize(
    ("damage", "invariant"),
    [
        (remove_a_delivery, "loss-free"),
        (repeat_a_delivery, "dup-free"),
        (turn_a_delivery_round, "in-order"),
        (drop_a_bucket_with_rows, "loss-free"),
        (end_without_the_last_deliveries, "loss-free"),
        (change_delivered_rows, "contents"),
        (change_what_one_replica_made, "replicas-agree"),
        (repeat_a_group, "input-dup-free"),
        (seal_twice, "sealed-once"),
    ],
)
def test_damage_to_a_history_is_found(
    tmp_path: Path, damage: Callable[[Lines], None], invariant: str
) -> None:
    path = history(tmp_path / "history.jsonl", 1)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    damage(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert invariant in {finding.invariant for finding in judge(path).findings}


# --- a partitioned flow -----------------------------------------------------------------------------------


def test_the_history_of_a_sound_partitioned_run_is_clean(tmp_path: Path) -> None:
    verdict = verdict_on(partitioned(), tmp_path)
    assert verdict.findings == []
    assert (verdict.sealed, verdict.delivered, verdict.views) == (4, 3, 2)
    assert (verdict.partitions, verdict.copies) == (4, 8)


def test_a_copy_that_comes_back_to_a_node_goes_on_from_the_state_it_was_given(tmp_path: Path) -> None:
    run = partitioned()
    run["n3"] += [
        InstalledRecord(20, "n3", 2, 1, "stats/1:SEC"),
        HandedRecord(21, "n3", 1, 5, (2,), "stats/1:SEC"),
    ]
    assert verdict_on(run, tmp_path).findings == []


def test_what_was_sealed_last_may_still_be_on_its_way_when_the_history_stops(tmp_path: Path) -> None:
    run = partitioned()
    run["gateway"][-1] = SealedRecord(13, "gateway", 7, 2, "in7")
    assert verdict_on(run, tmp_path).findings == []


def leave_out_one_part(run: Run) -> None:
    index = at(run, "gateway", DeliveredRecord)
    first, (number, _, text) = run["gateway"][index].buckets  # type: ignore[union-attr]
    change(run, "gateway", index, buckets=(first, (number, 1, text.split(",")[0])))


def leave_out_a_bucket(run: Run) -> None:
    change(run, "gateway", at(run, "gateway", DeliveredRecord, 1), buckets=())


def lose_the_first_delivery(run: Run) -> None:
    del run["gateway"][at(run, "gateway", DeliveredRecord)]


def lose_the_last_delivery(run: Run) -> None:
    del run["gateway"][at(run, "gateway", DeliveredRecord, 1)]


def repeat_the_last_delivery(run: Run) -> None:
    index = at(run, "gateway", DeliveredRecord, 1)
    run["gateway"].insert(index, run["gateway"][index])


def deliver_a_part_twice(run: Run) -> None:
    part = f"stats/0={digest('stats/0', '<egress>/0', 5)}"
    deliver(run, 2, f"{part},{part}")


def deliver_in_another_order(run: Run) -> None:
    index = at(run, "gateway", DeliveredRecord)
    change(run, "gateway", index, buckets=run["gateway"][index].buckets[::-1])  # type: ignore[union-attr]


def deliver_other_rows(run: Run) -> None:
    deliver(run, 1, "stats/0=other")


def deliver_a_part_that_nobody_made(run: Run) -> None:
    deliver(run, 2, f"stats/0={digest('stats/0', '<egress>/0', 5)},stats/1=invented")


def deliver_what_was_made_for_another_consumer(run: Run) -> None:
    part = f"sessions/0={digest('sessions/0', 'stats/0', 5)}"
    deliver(run, 2, f"stats/0={digest('stats/0', '<egress>/0', 5)},{part}")


def deliver_more_rows_than_the_parts_have(run: Run) -> None:
    deliver(run, 7, f"stats/0={digest('stats/0', '<egress>/0', 5)}")


def deliver_without_saying_whose_parts(run: Run) -> None:
    deliver(run, 1, digest("stats/0", "<egress>/0", 5))


def let_the_copies_differ(run: Run) -> None:
    change(run, "n2", at(run, "n2", ProducedRecord, of="sessions/1:SEC"), digest="other")


def let_one_copy_make_more_rows(run: Run) -> None:
    change(run, "n2", at(run, "n2", ProducedRecord, of="stats/0:SEC"), rows=9)


def miss_an_input_bucket(run: Run) -> None:
    change(run, "n1", at(run, "n1", HandedRecord, 1, "stats/0:PRIM"), numbers=(5,))


def miss_the_first_input_bucket(run: Run) -> None:
    change(run, "n1", at(run, "n1", HandedRecord, 0, "sessions/1:PRIM"), numbers=(2,))


def skip_a_group(run: Run) -> None:
    del run["n2"][at(run, "n2", HandedRecord, 0, "sessions/0:SEC")]


def begin_after_the_state_that_was_given(run: Run) -> None:
    change(run, "n3", at(run, "n3", HandedRecord, 0, "stats/1:SEC"), after=3)


def begin_without_a_state(run: Run) -> None:
    del run["n3"][at(run, "n3", InstalledRecord, 0, "stats/1:SEC")]


def keep_a_bucket_at_the_ingress(run: Run) -> None:
    change(run, "gateway", at(run, "gateway", SealedRecord, 2), rows=4)
    del run["gateway"][at(run, "gateway", EndedRecord)]


def end_with_a_bucket_at_the_ingress(run: Run) -> None:
    run["gateway"].insert(-1, SealedRecord(13, "gateway", 7, 2, "in7"))


def take_a_group_twice(run: Run) -> None:
    index = at(run, "n1", HandedRecord, 1, "sessions/0:PRIM")
    run["n1"].insert(index, run["n1"][index])


def begin_before_the_state_that_was_given(run: Run) -> None:
    change(run, "n3", at(run, "n3", HandedRecord, 0, "stats/1:SEC"), after=1, numbers=(2,))


def seal_a_bucket_twice(run: Run) -> None:
    index = at(run, "gateway", SealedRecord, 1)
    run["gateway"].insert(index, run["gateway"][index])


def publish_an_older_view(run: Run) -> None:
    change(run, "gateway", at(run, "gateway", ViewRecord, 1), epoch=1)


@pytest.mark.parametrize(
    ("damage", "invariant"),
    [
        (leave_out_one_part, "loss-free"),
        (leave_out_a_bucket, "loss-free"),
        (lose_the_first_delivery, "loss-free"),
        (lose_the_last_delivery, "loss-free"),
        (repeat_the_last_delivery, "dup-free"),
        (deliver_a_part_twice, "dup-free"),
        (deliver_in_another_order, "in-order"),
        (deliver_other_rows, "contents"),
        (deliver_a_part_that_nobody_made, "contents"),
        (deliver_what_was_made_for_another_consumer, "contents"),
        (deliver_more_rows_than_the_parts_have, "contents"),
        (deliver_without_saying_whose_parts, "contents"),
        (let_the_copies_differ, "replicas-agree"),
        (let_one_copy_make_more_rows, "replicas-agree"),
        (miss_an_input_bucket, "input-loss-free"),
        (miss_the_first_input_bucket, "input-loss-free"),
        (skip_a_group, "input-loss-free"),
        (begin_after_the_state_that_was_given, "input-loss-free"),
        (begin_without_a_state, "input-loss-free"),
        (keep_a_bucket_at_the_ingress, "input-loss-free"),
        (end_with_a_bucket_at_the_ingress, "input-loss-free"),
        (take_a_group_twice, "input-dup-free"),
        (begin_before_the_state_that_was_given, "input-dup-free"),
        (seal_a_bucket_twice, "sealed-once"),
        (publish_an_older_view, "views-rise"),
    ],
)
def test_damage_to_a_partitioned_history_is_found_and_called_by_its_name(
    tmp_path: Path, damage: Callable[[Run], None], invariant: str
) -> None:
    run = partitioned()
    damage(run)
    assert {finding.invariant for finding in verdict_on(run, tmp_path).findings} == {invariant}
