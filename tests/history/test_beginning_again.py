"""A process that was killed and begins again: what it may repeat, what it may have left unrecorded, and
what is held against it all the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from written_runs import (
    MADE,
    Run,
    at,
    delivery,
    invariants_of,
    judged,
    partitioned,
    verdict_on,
    write,
)

from understudy.core.bucket import NOTHING
from understudy.history.records import (
    BegunRecord,
    DeliveredRecord,
    EndedRecord,
    HandedRecord,
    ProducedRecord,
    Record,
    SealedRecord,
    ViewRecord,
)
from understudy.history.verdict import Verdict


def begun_again(run: Run, folder: Path, at_index: int, *first: Record) -> Verdict:
    """The gateway was killed before this record; the next one begins with other records, then goes on."""
    before, after = run["gateway"][:at_index], run["gateway"][at_index:]
    verdict_on(run, folder)
    write(folder / "gateway.jsonl", [before, [*first, *after]])
    return judged(folder)


def test_a_gateway_that_begins_again_may_repeat_what_it_sealed_and_the_view(tmp_path: Path) -> None:
    run = partitioned()
    again = [
        run["gateway"][at(run, "gateway", ViewRecord, 1)],
        *(run["gateway"][at(run, "gateway", SealedRecord, nth)] for nth in (1, 2, 4)),
    ]
    verdict = begun_again(run, tmp_path, at(run, "gateway", DeliveredRecord, 1), *again)
    assert verdict.findings == []
    assert (verdict.sealed, verdict.views) == (5, 3)


@pytest.mark.parametrize(
    ("first", "invariant"),
    [
        (ViewRecord(9, "gateway", 1, ()), "views-rise"),
        (ViewRecord(9, "gateway", 2, ()), "views-rise"),
        (SealedRecord(9, "gateway", "packets", 5, 3), "sealed-once"),
        (delivery(MADE, "stats", 1, 2, (2,)), "dup-free"),
    ],
    ids=["an older view", "another view of this epoch", "other rows", "a delivery"],
)
def test_a_gateway_that_begins_again_must_not_go_back(tmp_path: Path, first: Record, invariant: str) -> None:
    run = partitioned()
    verdict = begun_again(run, tmp_path, at(run, "gateway", DeliveredRecord, 1, sink="stats"), first)
    assert invariants_of(verdict) == {invariant}


def test_a_gateway_that_begins_again_repeats_a_sealed_bucket_once_at_most(tmp_path: Path) -> None:
    run = partitioned()
    again = run["gateway"][at(run, "gateway", SealedRecord)]
    verdict = begun_again(run, tmp_path, at(run, "gateway", DeliveredRecord), again, again)
    assert invariants_of(verdict) == {"sealed-once"}


def test_a_gateway_that_began_again_after_its_end_has_not_ended(tmp_path: Path) -> None:
    run = partitioned()
    run["gateway"].append(SealedRecord(12, "gateway", "packets", 7, 2))
    index = at(run, "gateway", EndedRecord) + 1
    assert begun_again(run, tmp_path, index).findings == []


def test_what_was_sealed_last_before_an_end_in_good_order_must_have_left_its_source(tmp_path: Path) -> None:
    run = partitioned()
    run["gateway"].insert(-1, SealedRecord(12, "gateway", "packets", 7, 2))
    later = ProducedRecord(13, "gateway", 8, 1, "x", "packets/0:0", "sessions/0")
    verdict = begun_again(run, tmp_path, len(run["gateway"]), later)
    assert invariants_of(verdict) == {"input-loss-free"}


def test_a_process_that_never_began_again_must_not_seal_a_bucket_of_another(tmp_path: Path) -> None:
    run = partitioned()
    run["other"] = [run["gateway"][at(run, "gateway", SealedRecord)]]
    assert invariants_of(verdict_on(run, tmp_path)) == {"sealed-once"}


@pytest.mark.parametrize(("after", "invariants"), [(4, set()), (5, {"loss-free"})])
def test_deliveries_that_a_killed_gateway_did_not_record_matter_if_they_had_rows(
    tmp_path: Path, after: int, invariants: set[str]
) -> None:
    run = partitioned()
    index = at(run, "gateway", DeliveredRecord, 1, sink="stats")
    run["gateway"][index] = delivery(MADE, "stats", after, 6, (5,) if after < 5 else ())
    assert invariants_of(begun_again(run, tmp_path, index)) == invariants


def test_only_the_first_delivery_to_each_sink_may_leave_a_gap_after_a_restart(tmp_path: Path) -> None:
    run = partitioned()
    index = at(run, "gateway", DeliveredRecord, 1, sink="stats")
    run["gateway"][index : index + 1] = [
        delivery(MADE, "stats", 3, 5, (5,)),
        delivery(MADE, "stats", 6, 7, ()),
    ]
    (finding,) = begun_again(run, tmp_path, index).findings
    assert (finding.invariant, "stop at 5 and go on after 6" in finding.what) == ("loss-free", True)


def test_each_sink_has_its_own_first_delivery_after_a_restart(tmp_path: Path) -> None:
    run = partitioned()
    deliveries = [
        delivery(MADE, sink, *group)
        for sink, group in (
            ("stats", (NOTHING, 2, (1, 2))),
            ("counts", (NOTHING, 2, (2,))),
            ("stats", (4, 5, (5,))),
            ("counts", (3, 5, (4,))),
        )
    ]
    index = at(run, "gateway", DeliveredRecord)
    run["gateway"][index:-1] = deliveries
    assert begun_again(run, tmp_path, index + 2).findings == []


def test_what_was_sealed_last_before_a_kill_may_have_left_the_source_unrecorded(tmp_path: Path) -> None:
    run = partitioned()
    del run["gateway"][-1]
    index = at(run, "gateway", DeliveredRecord, 1, sink="stats")
    run["gateway"].insert(index, SealedRecord(12, "gateway", "packets", 7, 2))
    later = ProducedRecord(13, "gateway", 8, 1, "x", "packets/0:0", "sessions/0")
    assert begun_again(run, tmp_path, index + 1, later).findings == []


def test_a_gateway_that_has_sealed_nothing_since_it_began_again_has_not_ended(tmp_path: Path) -> None:
    run = partitioned()
    run["gateway"][-1:] = [SealedRecord(12, "gateway", "packets", number, 2) for number in (6, 7)]
    assert begun_again(run, tmp_path, len(run["gateway"]), BegunRecord(14, "gateway")).findings == []
    ended = begun_again(run, tmp_path, len(run["gateway"]), EndedRecord(14, "gateway"))
    assert invariants_of(ended) == {"input-loss-free"}


def test_what_was_sealed_before_the_last_must_have_left_its_source_also_if_the_gateway_was_killed(
    tmp_path: Path,
) -> None:
    run = partitioned()
    del run["gateway"][-1]
    index = at(run, "gateway", DeliveredRecord, 1, sink="stats")
    run["gateway"][index:index] = [SealedRecord(12, "gateway", "packets", number, 2) for number in (6, 7)]
    later = ProducedRecord(13, "gateway", 8, 1, "x", "packets/0:0", "sessions/0")
    found = begun_again(run, tmp_path, index + 2, later).findings
    assert {finding.invariant for finding in found} == {"input-loss-free"}
    assert all('"number":6' in finding.record for finding in found)


def test_a_node_that_begins_again_has_taken_nothing(tmp_path: Path) -> None:
    run = partitioned()
    verdict_on(run, tmp_path)
    copy = "sessions/0:0"
    whole, rest = HandedRecord(15, "n1", NOTHING, 5, (1, 2, 5), copy), run["n1"]
    write(tmp_path / "n1.jsonl", [rest, [whole]])
    assert judged(tmp_path).findings == []
    write(tmp_path / "n1.jsonl", [rest, [HandedRecord(15, "n1", 5, 6, (), copy)]])
    assert invariants_of(judged(tmp_path)) == {"input-loss-free"}
