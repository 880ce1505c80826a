"""The judge names missing records and does not hold them against the run: processes that were killed, parts
that were removed, lines that are damaged.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from written_runs import (
    FLOW,
    Run,
    at,
    change,
    deliver,
    invariants_of,
    judged,
    partitioned,
    verdict_on,
    write,
)

from understudy.history.judging import judge
from understudy.history.records import (
    FORMAT_VERSION,
    DeliveredRecord,
    EndedRecord,
    HandedRecord,
    Header,
    InstalledRecord,
    MissedRecord,
    ProducedRecord,
    Record,
    SealedRecord,
    StoppedRecord,
    ViewRecord,
)
from understudy.history.verdict import Verdict

STATS = "sink:stats/0"


# --- processes that were killed ---------------------------------------------------------------------------


def last_made_is_not_on_record(run: Run, *processes: str) -> None:
    """Bucket 5 of stats/0 was delivered, and these nodes were killed before they had written it down."""
    for process in processes:
        del run[process][at(run, process, ProducedRecord, number=5, to=STATS)]
        del run[process][-1]


def test_what_a_killed_node_made_last_may_not_be_on_record(tmp_path: Path) -> None:
    run = partitioned()
    last_made_is_not_on_record(run, "n1", "n2")
    verdict = verdict_on(run, tmp_path)
    assert verdict.findings == []
    assert verdict.unwitnessed == 1


def test_what_nodes_that_ended_in_good_order_did_not_make_was_made_by_none(tmp_path: Path) -> None:
    run = partitioned()
    for process in ("n1", "n2"):
        del run[process][at(run, process, ProducedRecord, number=5, to=STATS)]
    verdict = verdict_on(run, tmp_path)
    assert invariants_of(verdict) == {"contents"}
    assert verdict.unwitnessed == 0


def test_a_killed_node_without_a_copy_of_the_partition_made_nothing_of_it(tmp_path: Path) -> None:
    run = partitioned()
    for process in ("n1", "n2"):
        del run[process][at(run, process, ProducedRecord, number=5, to=STATS)]
    del run["n3"][-1]
    assert invariants_of(verdict_on(run, tmp_path)) == {"contents"}


def test_a_bucket_without_rows_need_not_be_taken(tmp_path: Path) -> None:
    run = partitioned()
    for process, copy in (("n1", "sessions/0:0"), ("n2", "sessions/0:1")):
        run[process].insert(0, ProducedRecord(9, process, 4, 0, "", copy, "stats/0"))
    assert verdict_on(run, tmp_path).findings == []


def test_a_bucket_that_others_went_past_without_making_it_was_made_by_none(tmp_path: Path) -> None:
    run = partitioned()
    last_made_is_not_on_record(run, "n1", "n2")
    run["n2"].append(ProducedRecord(14, "n2", 6, 1, "x", "stats/0:1", STATS))
    del run["gateway"][-1]
    assert invariants_of(verdict_on(run, tmp_path)) == {"contents"}


def test_what_was_made_for_another_sink_does_not_show_how_far_a_copy_came(tmp_path: Path) -> None:
    run = partitioned()
    last_made_is_not_on_record(run, "n1", "n2")
    run["n2"].append(ProducedRecord(14, "n2", 6, 1, "x", "stats/0:1", "sink:other/0"))
    del run["gateway"][-1]
    verdict = verdict_on(run, tmp_path)
    assert verdict.findings == []
    assert verdict.unwitnessed == 1


def test_a_killed_gateway_need_not_have_delivered_everything(tmp_path: Path) -> None:
    run = partitioned()
    del run["gateway"][at(run, "gateway", DeliveredRecord, -1) :]
    assert verdict_on(run, tmp_path).findings == []


# --- parts that were removed ------------------------------------------------------------------------------


def without_the_oldest_part(run: Run, folder: Path, *gone: str) -> Verdict:
    """The part of the gateway's history about buckets 1 and 2 is gone, and all deliveries to some sinks."""
    verdict_on(run, folder)
    rest = [
        record
        for record in run["gateway"]
        if getattr(record, "number", 9) > 2
        and getattr(record, "through", 9) > 2
        and not isinstance(record, ViewRecord)
        and not (isinstance(record, DeliveredRecord) and record.sink in gone)
    ]
    write(folder / "gateway.jsonl", [rest], [Header(FORMAT_VERSION, FLOW, "gateway", 2, False, 2, ((1, 2),))])
    return judged(folder)


def test_with_its_oldest_parts_removed_a_history_is_judged_from_the_next_bucket_on(tmp_path: Path) -> None:
    verdict = without_the_oldest_part(partitioned(), tmp_path)
    assert verdict.findings == []
    assert verdict.clean
    assert verdict.judged_from == 3


def test_a_sink_whose_deliveries_are_all_in_removed_parts_may_have_been_given_everything(
    tmp_path: Path,
) -> None:
    verdict = without_the_oldest_part(partitioned(), tmp_path, "counts")
    assert verdict.findings == []
    assert verdict.clean


def test_what_is_left_after_the_oldest_parts_is_judged(tmp_path: Path) -> None:
    run = partitioned()
    deliver(run, 1, "stats/0=other")
    assert invariants_of(without_the_oldest_part(run, tmp_path)) == {"contents"}


def test_what_was_sealed_after_the_removed_parts_must_have_left_its_source(tmp_path: Path) -> None:
    run = partitioned()
    change(run, "gateway", at(run, "gateway", ProducedRecord, to="sessions/0", number=5), rows=1)
    assert invariants_of(without_the_oldest_part(run, tmp_path)) == {"input-loss-free"}


def test_a_bucket_whose_way_from_the_source_is_in_a_removed_part_is_not_judged(tmp_path: Path) -> None:
    verdict_on(partitioned(), tmp_path)
    rest = [SealedRecord(2, "gateway", "names", 5, 2), EndedRecord(13, "gateway")]
    write(tmp_path / "gateway.jsonl", [rest], [Header(FORMAT_VERSION, FLOW, "gateway", 2, False, 5)])
    assert judged(tmp_path).findings == []
    write(tmp_path / "gateway.jsonl", [rest], [Header(FORMAT_VERSION, FLOW, "gateway", 2, False, 4)])
    assert invariants_of(judged(tmp_path)) == {"input-loss-free"}


@pytest.mark.parametrize("removed", [(2, 2), (2, 1), (1, 2)])
def test_nodes_whose_oldest_parts_are_gone_may_have_made_what_was_delivered(
    removed: tuple[int, int], tmp_path: Path
) -> None:
    run = partitioned()
    verdict_on(run, tmp_path)
    for process, before in zip(("n1", "n2"), removed, strict=True):
        rest = [
            r for r in run[process] if getattr(r, "number", 0) > before or getattr(r, "through", 0) > before
        ]
        write(
            tmp_path / f"{process}.jsonl",
            [[*rest, EndedRecord(13, process)]],
            [Header(FORMAT_VERSION, FLOW, process, 2, False, before)],
        )
    verdict = judged(tmp_path)
    assert verdict.findings == []
    assert verdict.judged_from == 3, "from where on the records of all processes are there"


# --- records that are damaged, or were never written ------------------------------------------------------


def damage(folder: Path, process: str, index: int, text: str) -> None:
    file = folder / f"{process}.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    lines[index + 1] = text
    file.write_text("".join(lines))


@pytest.mark.parametrize("nth", [0, 1])
@pytest.mark.parametrize(
    ("process", "kind", "facts"),
    [
        ("gateway", DeliveredRecord, {"sink": "stats"}),
        ("gateway", DeliveredRecord, {"sink": "counts"}),
        ("gateway", SealedRecord, {"source": "packets"}),
        ("gateway", ProducedRecord, {"of": "packets/0:0", "to": "sessions/0"}),
        ("gateway", ProducedRecord, {"of": "packets/0:0", "to": "counts/0"}),
        ("n1", HandedRecord, {"of": "sessions/0:0"}),
        ("n1", ProducedRecord, {"of": "stats/0:0"}),
    ],
)
def test_a_damaged_line_is_named_and_the_rest_is_judged(
    tmp_path: Path, process: str, kind: type[Record], facts: dict[str, str], nth: int
) -> None:
    run = partitioned()
    change(run, "n2", at(run, "n2", ProducedRecord, of="sessions/1:1"), digest="other")
    run["n1"].insert(
        at(run, "n1", HandedRecord, 1, of="sessions/0:0") + 1, HandedRecord(9, "n1", 5, 6, (), "sessions/0:0")
    )
    verdict_on(run, tmp_path)
    index = at(run, process, kind, nth, **facts)
    damage(tmp_path, process, index, "{ rubbish\n")
    verdict = judged(tmp_path)
    assert [(each.file, each.line) for each in verdict.damages] == [
        (str(tmp_path / f"{process}.jsonl"), index + 2)
    ]
    assert not verdict.clean
    assert invariants_of(verdict) == {"replicas-agree"}


def test_a_process_that_begins_again_after_damage_is_judged_from_its_beginning(tmp_path: Path) -> None:
    run = partitioned()
    verdict_on(run, tmp_path)
    again = [HandedRecord(15, "n3", 5, 6, (), "stats/1:1")]
    write(tmp_path / "n3.jsonl", [[MissedRecord(9, "n3", 1), *run["n3"]], again])
    assert invariants_of(judged(tmp_path)) == {"input-loss-free"}


def test_where_a_state_may_have_been_given_by_a_damaged_record_any_position_will_do(tmp_path: Path) -> None:
    run = partitioned()
    verdict_on(run, tmp_path)
    damage(tmp_path, "n3", at(run, "n3", InstalledRecord), "{ rubbish\n")
    verdict = judged(tmp_path)
    assert verdict.findings == []
    assert len(verdict.damages) == 1


def test_what_a_damaged_record_may_have_said_was_made_is_not_held_against_the_delivery(
    tmp_path: Path,
) -> None:
    run = partitioned()
    verdict_on(run, tmp_path)
    for process in ("n1", "n2"):
        damage(tmp_path, process, at(run, process, ProducedRecord, number=5, to=STATS), "{ rubbish\n")
    verdict = judged(tmp_path)
    assert verdict.findings == []
    assert verdict.unwitnessed == 1


@pytest.mark.parametrize("sink", ["stats", "counts"])
def test_every_delivery_to_a_sink_may_be_damaged_and_the_run_still_end(tmp_path: Path, sink: str) -> None:
    run = partitioned()
    verdict_on(run, tmp_path)
    for nth in (0, 1):
        damage(tmp_path, "gateway", at(run, "gateway", DeliveredRecord, nth, sink=sink), "{ rubbish\n")
    verdict = judged(tmp_path)
    assert verdict.findings == []
    assert len(verdict.damages) == 2


@pytest.mark.parametrize(
    "said", [MissedRecord(9, "gateway", 3), StoppedRecord(9, "gateway", "No space left on device")]
)
def test_records_that_were_never_written_are_reported_and_do_not_count_as_lost(
    tmp_path: Path, said: Record
) -> None:
    run = partitioned()
    run["gateway"][at(run, "gateway", DeliveredRecord)] = said
    verdict = verdict_on(run, tmp_path)
    assert verdict.findings == []
    assert not verdict.clean
    assert "gateway" in str(verdict.damages[0])


def test_a_part_that_is_missing_in_between_is_damage(tmp_path: Path) -> None:
    parts = {
        1: Header(FORMAT_VERSION, "f", "n", 1),
        2: Header(FORMAT_VERSION, "f", "n", 2, False, 4),
        4: Header(FORMAT_VERSION, "f", "n", 4, False, 9),
    }
    for part, header in parts.items():
        write(tmp_path / f"n.part-{part:06d}.jsonl", [[]], [header])
    verdict = judge(tmp_path.glob("*.jsonl"))
    assert [each.why for each in verdict.damages] == ["part 3 is missing before it"]
