"""`understudy check` on small histories written by hand: complete, damaged and cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from understudy.cli.main import main
from understudy.core.bucket import NOTHING
from understudy.history.records import (
    FORMAT_VERSION,
    BegunRecord,
    DeliveredRecord,
    EndedRecord,
    HandedRecord,
    Header,
    LeftOutRecord,
    ProducedRecord,
    Record,
    SealedRecord,
    StoppedRecord,
    ViewRecord,
    line,
)

VIEW = ViewRecord(1, "gateway", 1, (("stats/0:0", "a", 1, "ACTIVE"), ("stats/0:1", "b", 1, "ACTIVE")))


def _delivered(at_us: int, after: int, through: int, *numbers: int) -> DeliveredRecord:
    buckets = tuple((number, 3, f"stats/0=x{number}") for number in numbers)
    return DeliveredRecord(at_us, "gateway", "stats", after, through, buckets)


DELIVERIES = [_delivered(10, NOTHING, 2, 1, 2), _delivered(11, 2, 3, 3), _delivered(12, 3, 5, 5)]
SEALED = [SealedRecord(number, "gateway", "packets", number, 3) for number in (1, 2, 3, 5)]
DEALT = [
    ProducedRecord(number, "gateway", number, 3, f"i{number}", "packets/0:0", "stats/0")
    for number in (1, 2, 3, 5)
]
GATEWAY: list[Record] = [BegunRecord(0, "gateway"), VIEW, *SEALED, *DEALT, *DELIVERIES]


def _node(name: str) -> list[Record]:
    copy = {"a": "stats/0:0", "b": "stats/0:1"}[name]
    produced = [
        ProducedRecord(9, name, number, 3, f"x{number}", copy, "sink:stats/0") for number in (1, 2, 3, 5)
    ]
    return [HandedRecord(8, name, NOTHING, 5, (1, 2, 3, 5), copy), *produced]


def _write(file: Path, records: list[Record]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(line(record) + "\n" for record in [Header(FORMAT_VERSION, "sessions"), *records]))
    return file


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    _write(tmp_path / "run" / "history" / "gateway.jsonl", GATEWAY)
    for name in ("a", "b"):
        _write(tmp_path / "run" / "history" / f"{name}.jsonl", _node(name))
    return tmp_path / "run"


def test_a_complete_history_holds_every_invariant(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(run_folder)]) == 0
    out = capsys.readouterr().out
    assert "VIOLATED" not in out
    assert "4 buckets sealed, 4 delivered, 1 view\n  1 partition in 2 copies" in out
    for invariant in ("loss-free", "dup-free", "in-order", "replicas-agree"):
        assert f"  {invariant} " in out


def test_a_run_that_ended_before_its_first_rows_is_not_vouched_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(tmp_path / "run" / "history" / "gateway.jsonl", [BegunRecord(0, "gateway")])
    assert main(["check", str(tmp_path / "run")]) == 1
    out = capsys.readouterr().out
    assert "NOTHING TO JUDGE" in out
    assert "holds" not in out


def test_a_run_that_delivered_nothing_is_not_vouched_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(tmp_path / "run" / "history" / "gateway.jsonl", [BegunRecord(0, "gateway"), VIEW, *SEALED, *DEALT])
    assert main(["check", str(tmp_path / "run")]) == 1
    assert "NOTHING WAS DELIVERED" in capsys.readouterr().out


@pytest.mark.parametrize(("end", "said"), [([EndedRecord(20, "gateway")], False), ([], True)])
def test_a_run_that_did_not_finish_is_said_to_be_one(
    end: list[Record], said: bool, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(run_folder / "history" / "gateway.jsonl", [*GATEWAY, *end])
    assert main(["check", str(run_folder)]) == 0
    assert ("the run did not finish, or still runs" in capsys.readouterr().out) is said


@pytest.mark.parametrize(("dead", "code"), [("a", 0), ("ab", 1)])
def test_a_flow_that_was_lost_is_said_to_be_one(
    dead: str, code: int, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seats = [(copy, node, 1, "DEAD" if node in dead else "ACTIVE") for copy, node, _, _ in VIEW.seats]
    _write(run_folder / "history" / "gateway.jsonl", [*GATEWAY, ViewRecord(20, "gateway", 2, tuple(seats))])
    assert main(["check", str(run_folder)]) == code
    said = "THE FLOW WAS LOST: no copy of stats/0 is left" in capsys.readouterr().out
    assert said == bool(code)


def test_a_run_says_how_many_partitions_and_copies_it_had(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seats = tuple(
        (f"sessions/{index}:{replica}", node, 2, "ACTIVE")
        for index in (0, 1)
        for replica, node in enumerate("ab")
    )
    _write(
        run_folder / "history" / "gateway.jsonl", [*GATEWAY, ViewRecord(13, "gateway", 2, VIEW.seats + seats)]
    )
    assert main(["check", str(run_folder)]) == 0
    assert "3 partitions in 6 copies" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("deliveries", "invariant"),
    [
        ([DELIVERIES[0], DELIVERIES[2]], "loss-free"),
        ([DELIVERIES[0], DELIVERIES[1], DELIVERIES[1], DELIVERIES[2]], "dup-free"),
    ],
    ids=["one removed", "one repeated"],
)
def test_a_damaged_history_ends_with_1_and_names_invariant_and_record(
    deliveries: list[Record], invariant: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [record for record in GATEWAY if record not in DELIVERIES]
    _write(run_folder / "history" / "gateway.jsonl", [*others, *deliveries])
    assert main(["check", str(run_folder)]) == 1
    violated = [
        text for text in capsys.readouterr().out.splitlines() if "VIOLATED" in text or "shown" in text
    ]
    assert violated[0].split()[:2] == [invariant, "VIOLATED"]
    assert '"kind":"delivered"' in violated[1]


def test_a_sink_that_was_given_nothing_is_named(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = ProducedRecord(9, "a", 2, 4, "y2", "stats/0:0", "sink:alarms/0")
    _write(run_folder / "history" / "a.jsonl", [*_node("a"), made])
    _write(run_folder / "history" / "gateway.jsonl", [*GATEWAY, EndedRecord(13, "gateway")])
    assert main(["check", str(run_folder)]) == 1
    out = capsys.readouterr().out
    assert "loss-free        VIOLATED 1 time" in out
    assert "the run ended with alarms at the beginning, and bucket 2 has rows for it" in out


def test_replicas_that_differ_are_named(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = _node("b")
    records[2] = ProducedRecord(9, "b", 2, 3, "another", "stats/0:1", "sink:stats/0")
    _write(run_folder / "history" / "b.jsonl", records)
    assert main(["check", str(run_folder)]) == 1
    assert "stats/0:0 on a and stats/0:1 on b made different rows of bucket 2" in capsys.readouterr().out


def test_the_unfinished_last_line_of_a_killed_process_is_reported_and_forgiven(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run_folder / "history" / "gateway.jsonl"
    file.write_text(file.read_text()[:-20])
    assert main(["check", str(run_folder)]) == 0
    assert (
        f"unfinished, as a killed process leaves it: {file}, line {len(GATEWAY) + 1}"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize("process", ["gateway", "a"])
def test_a_line_that_is_no_record_is_named_and_the_rest_is_judged(
    process: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run_folder / "history" / f"{process}.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:2], "{ rubbish\n", *lines[3:]]))
    assert main(["check", str(run_folder)]) == 1
    out = capsys.readouterr().out
    assert f"DAMAGED {file}, line 3: not JSON" in out
    assert "NOT CLEAN" in out
    assert "VIOLATED" not in out


def test_a_history_without_its_oldest_parts_says_from_where_on_it_was_judged(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = Header(FORMAT_VERSION, "sessions", "gateway", part=2, begins=False, before=2, epochs=((1, 1),))
    rest = [line(record) + "\n" for record in (head, *SEALED[2:], *DEALT[2:], *DELIVERIES[1:])]
    (run_folder / "history" / "gateway.jsonl").write_text("".join(rest))
    assert main(["check", str(run_folder)]) == 0
    assert "judged from bucket 3 on" in capsys.readouterr().out


def test_columns_that_digests_leave_out_are_named(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(
        run_folder / "history" / "a.jsonl", [*_node("a"), LeftOutRecord(9, "a", "sessions", ("mean", "sum"))]
    )
    assert main(["check", str(run_folder)]) == 0
    assert "not compared, floating-point: mean, sum of sessions" in capsys.readouterr().out


def test_a_history_that_was_not_written_to_the_end_is_reported(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = StoppedRecord(9, "a", "No space left on device")
    _write(run_folder / "history" / "a.jsonl", [*_node("a")[:2], stopped])
    assert main(["check", str(run_folder)]) == 1
    out = capsys.readouterr().out
    assert "a stopped writing: No space left on device" in out
    assert "VIOLATED" not in out


def test_histories_of_different_flows_are_the_users_mistake(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_folder / "history" / "b.jsonl").write_text(line(Header(FORMAT_VERSION, "other", "b")) + "\n")
    assert main(["check", str(run_folder)]) == 2
    assert "is a history of other, the others of sessions" in capsys.readouterr().err


def test_a_file_that_is_no_history_is_the_users_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "flow.py").write_text("pass\n")
    assert main(["check", str(tmp_path / "flow.py")]) == 2
    assert "not a history" in capsys.readouterr().err


def test_files_are_judged_together_as_one_run(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted(map(str, (run_folder / "history").iterdir()))
    assert main(["check", *files]) == 0
    assert "in 3 files" in capsys.readouterr().out


def test_the_worst_of_several_runs_decides(run_folder: Path, tmp_path: Path) -> None:
    bad = _write(tmp_path / "other" / "gateway.jsonl", [*GATEWAY[:-2], DELIVERIES[2]]).parent
    assert main(["check", str(bad), str(run_folder)]) == 1


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_nothing_to_judge_is_reported(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["check", str(tmp_path / name)]) == 2
    assert str(tmp_path / name) in capsys.readouterr().err
