"""What is missing from a history is told, and not held against the run: processes that were killed, parts
that were removed, lines that are damaged.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from partitioned_history import Run, at, change, deliver, partitioned, verdict_on

from understudy.history.judging import judge
from understudy.history.records import (
    FORMAT_VERSION,
    DeliveredRecord,
    EndedRecord,
    HandedRecord,
    Header,
    MissedRecord,
    ProducedRecord,
    Record,
    SealedRecord,
    StoppedRecord,
    ViewRecord,
    line,
)
from understudy.history.verdict import Verdict


def last_made_is_not_on_record(run: Run, *processes: str) -> None:
    """Bucket 5 of stats/0 was delivered, and these nodes were killed before they had written it down."""
    for process in processes:
        slot = "PRIM" if process == "n1" else "SEC"
        del run[process][at(run, process, ProducedRecord, 2, f"stats/0:{slot}")]
        del run[process][-1]


def test_what_a_killed_node_made_last_may_not_be_on_record(tmp_path: Path) -> None:
    run = partitioned()
    last_made_is_not_on_record(run, "n1", "n2")
    verdict = verdict_on(run, tmp_path)
    assert verdict.findings == []
    assert verdict.unwitnessed == 1


def test_a_bucket_that_others_went_past_without_making_it_was_made_by_nobody(tmp_path: Path) -> None:
    run = partitioned()
    last_made_is_not_on_record(run, "n1", "n2")
    run["n2"].append(ProducedRecord(14, "n2", 6, 1, "x", "stats/0:SEC", "<egress>/0"))
    del run["gateway"][-1]
    assert {finding.invariant for finding in verdict_on(run, tmp_path).findings} == {"contents"}


def begin_again(run: Run, at_index: int) -> list[list[Record]]:
    """The gateway's records before it was killed, and after it began again."""
    return [run["gateway"][:at_index], run["gateway"][at_index:]]


def write_parts(file: Path, sessions: list[list[Record]], headers: list[Header] | None = None) -> None:
    heads = headers or [Header(FORMAT_VERSION, "partitioned", file.stem) for _ in sessions]
    lines = [line(each) for head, records in zip(heads, sessions, strict=True) for each in (head, *records)]
    file.write_text("".join(f"{each}\n" for each in lines))


def verdict_on_sessions(run: Run, folder: Path, sessions: list[list[Record]]) -> Verdict:
    verdict_on(run, folder)
    write_parts(folder / "gateway.jsonl", sessions)
    return judge(sorted(folder.glob("*.jsonl")))


def test_a_gateway_that_begins_again_may_repeat_what_it_sealed_and_the_view(tmp_path: Path) -> None:
    run = partitioned()
    before, after = begin_again(run, at(run, "gateway", DeliveredRecord, 1))
    again = [
        run["gateway"][at(run, "gateway", kind, nth)] for kind, nth in ((ViewRecord, 1), (SealedRecord, 3))
    ]
    verdict = verdict_on_sessions(run, tmp_path, [before, [*again, *after]])
    assert verdict.findings == []
    assert (verdict.sealed, verdict.views) == (4, 3)


def test_a_gateway_that_begins_again_must_not_seal_other_rows_or_go_back_in_views(tmp_path: Path) -> None:
    run = partitioned()
    before, after = begin_again(run, at(run, "gateway", DeliveredRecord, 1))
    again: list[Record] = [
        run["gateway"][at(run, "gateway", ViewRecord)],
        SealedRecord(9, "gateway", 5, 3, "other"),
    ]
    verdict = verdict_on_sessions(run, tmp_path, [before, [*again, *after]])
    assert {finding.invariant for finding in verdict.findings} == {"sealed-once", "views-rise"}


@pytest.mark.parametrize(("through", "invariants"), [(4, set()), (5, {"loss-free"})])
def test_deliveries_that_a_killed_gateway_did_not_record_matter_if_they_had_rows(
    tmp_path: Path, through: int, invariants: set[str]
) -> None:
    run = partitioned()
    index = at(run, "gateway", DeliveredRecord, 1)
    change(
        run, "gateway", index, after=through, through=6, buckets=run["gateway"][index].buckets[through - 4 :]
    )  # type: ignore[union-attr]
    verdict = verdict_on_sessions(run, tmp_path, begin_again(run, index))
    assert {finding.invariant for finding in verdict.findings} == invariants


def test_what_was_sealed_last_before_a_kill_may_have_left_the_ingress_unrecorded(tmp_path: Path) -> None:
    run = partitioned()
    before, after = begin_again(run, at(run, "gateway", DeliveredRecord, 1))
    later: list[Record] = [
        ProducedRecord(13, "gateway", 8, 1, "x", "<ingress>/0:PRIM", "sessions/0"),
        *after[:-1],
    ]
    before.append(SealedRecord(12, "gateway", 7, 2, "in7"))
    assert verdict_on_sessions(run, tmp_path, [before, later]).findings == []


def without_the_oldest_part(run: Run, folder: Path) -> Verdict:
    """The part of the gateway's history about buckets 1 and 2 is gone."""
    verdict_on(run, folder)
    gone = at(run, "gateway", DeliveredRecord)
    rest = [
        record
        for index, record in enumerate(run["gateway"])
        if index > gone or getattr(record, "number", 0) > 2
    ]
    head = Header(FORMAT_VERSION, "partitioned", "gateway", 2, False, 2, 2, 2)
    write_parts(folder / "gateway.jsonl", [rest], [head])
    return judge(sorted(folder.glob("*.jsonl")))


def test_with_its_oldest_parts_removed_a_history_is_judged_from_the_next_bucket_on(tmp_path: Path) -> None:
    verdict = without_the_oldest_part(partitioned(), tmp_path)
    assert verdict.findings == []
    assert verdict.clean
    assert verdict.judged_from == 3


def test_what_is_left_after_the_oldest_parts_is_judged(tmp_path: Path) -> None:
    run = partitioned()
    deliver(run, 1, "stats/0=other")
    verdict = without_the_oldest_part(run, tmp_path)
    assert {finding.invariant for finding in verdict.findings} == {"contents"}


def test_a_node_whose_oldest_part_is_gone_may_have_made_what_was_delivered(tmp_path: Path) -> None:
    run = partitioned()
    verdict_on(run, tmp_path)
    for process in ("n1", "n2"):
        rest = [r for r in run[process] if getattr(r, "number", 0) > 2 or getattr(r, "through", 0) > 2]
        write_parts(
            tmp_path / f"{process}.jsonl",
            [[*rest, EndedRecord(13, process)]],
            [Header(FORMAT_VERSION, "partitioned", process, 2, False, 2)],
        )
    verdict = judge(sorted(tmp_path.glob("*.jsonl")))
    assert verdict.findings == []
    assert verdict.judged_from == 3


def damage(folder: Path, process: str, index: int, text: str) -> None:
    file = folder / f"{process}.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    lines[index + 1] = text
    file.write_text("".join(lines))


@pytest.mark.parametrize(
    ("process", "kind", "nth", "of"),
    [
        ("gateway", DeliveredRecord, 0, ""),
        ("gateway", ProducedRecord, 0, "<ingress>/0:PRIM"),
        ("n1", HandedRecord, 0, "sessions/0:PRIM"),
        ("n1", ProducedRecord, 0, "stats/0:PRIM"),
    ],
)
def test_a_damaged_line_is_named_and_the_rest_is_judged(
    tmp_path: Path, process: str, kind: type[Record], nth: int, of: str
) -> None:
    run = partitioned()
    change(run, "n3", at(run, "n3", HandedRecord, 0, "stats/1:SEC"), after=3)
    verdict_on(run, tmp_path)
    index = at(run, process, kind, nth, of)
    damage(tmp_path, process, index, "{ rubbish\n")
    verdict = judge(sorted(tmp_path.glob("*.jsonl")))
    assert [(each.file, each.line) for each in verdict.damages] == [
        (str(tmp_path / f"{process}.jsonl"), index + 2)
    ]
    assert not verdict.clean
    assert {finding.invariant for finding in verdict.findings} == {"input-loss-free"}


@pytest.mark.parametrize(
    "said", [MissedRecord(9, "gateway", 3), StoppedRecord(9, "gateway", "No space left on device")]
)
def test_records_that_were_never_written_are_told_and_do_not_count_as_lost(
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
        1: Header(3, "f", "n", 1),
        2: Header(3, "f", "n", 2, False, 4),
        4: Header(3, "f", "n", 4, False, 9),
    }
    for part, header in parts.items():
        write_parts(tmp_path / f"n.part-{part:06d}.jsonl", [[]], [header])
    verdict = judge(tmp_path.glob("*.jsonl"))
    assert [each.why for each in verdict.damages] == ["part 3 is missing before it"]
