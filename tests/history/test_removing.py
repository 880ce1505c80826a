"""Histories of a line of processes, one after the other: bounded together, and judged by what is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from written_runs import FLOW, Run, invariants_of, judged, partitioned, verdict_on, write

from understudy.history.parts import name_and_incarnation, parts_of_processes
from understudy.history.reading import entries
from understudy.history.records import (
    FORMAT_VERSION,
    BegunRecord,
    Header,
    InstalledRecord,
    ProducedRecord,
    SealedRecord,
    StoppedRecord,
    line,
)
from understudy.history.removing import FILES_IN_A_PART, keep_within
from understudy.history.writing import PartedFile

PART_BYTES = 4_096
BYTES_MAX = 5 * PART_BYTES


def killed_after(folder: Path, incarnation: int, numbers: range) -> None:
    """A node that notes down what it made, and is killed."""
    process = f"node-1.{incarnation}"
    file = PartedFile(
        folder / f"{process}.jsonl", FLOW, process, part_bytes=PART_BYTES, total_bytes=BYTES_MAX
    )
    for number in numbers:
        file.write([ProducedRecord(9, process, number, 1, "x", "stats/0:0", "sink:stats/0")])
    file.close()


def taken(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.iterdir())


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def numbers_left(folder: Path) -> list[int]:
    parts = parts_of_processes(folder, lambda *_: True)
    return [each.number for each in entries(parts) if isinstance(each, ProducedRecord)]


@pytest.mark.parametrize("records", [0, 1, 20, 100], ids=lambda count: f"{count} records each")
def test_incarnations_of_a_node_share_one_bound(tmp_path: Path, records: int) -> None:
    (tmp_path / "node-10.1.jsonl").write_text("another's")
    for incarnation in range(1, 150):
        first = incarnation * records
        killed_after(tmp_path, incarnation, range(first, first + records))
        assert taken(tmp_path) <= BYTES_MAX + 500
        assert f"node-1.{incarnation}.jsonl" in names(tmp_path)
    assert len(names(tmp_path)) < BYTES_MAX // PART_BYTES * FILES_IN_A_PART
    assert (tmp_path / "node-10.1.jsonl").read_text() == "another's"
    left = numbers_left(tmp_path)
    assert left == list(range(150 * records - len(left), 150 * records)), "the oldest go first"


def test_a_process_whose_parts_all_went_leaves_one_header_that_speaks_for_those_before(
    tmp_path: Path,
) -> None:
    for incarnation, numbers in enumerate((range(90), range(20, 40), range(40, 60)), 1):
        killed_after(tmp_path, incarnation, numbers)
    before = names(tmp_path)
    assert "node-1.1.part-000001.jsonl" in before
    keep_within(parts_of_processes(tmp_path, lambda name, which: which < 3), 100, PART_BYTES, FLOW)
    assert names(tmp_path) == ["node-1.2.jsonl", "node-1.3.jsonl"]
    stub = list(entries([tmp_path / "node-1.2.jsonl"]))
    assert stub == [Header(FORMAT_VERSION, FLOW, "node-1.2", 2, False, 89)]


def test_a_process_killed_between_two_parts_leaves_such_a_header_too(tmp_path: Path) -> None:
    killed_after(tmp_path, 1, range(20))
    (tmp_path / "node-1.1.jsonl").rename(tmp_path / "node-1.1.part-000001.jsonl")
    (tmp_path / "node-1.1.stopped").write_text(line(StoppedRecord(1, "node-1.1", "No space")))
    keep_within(parts_of_processes(tmp_path, lambda *_: True), 0, PART_BYTES, FLOW)
    assert names(tmp_path) == ["node-1.1.jsonl"]
    assert list(entries([tmp_path / "node-1.1.jsonl"])) == [
        Header(FORMAT_VERSION, FLOW, "node-1.1", 2, False, 19)
    ]


def test_a_header_speaks_for_records_that_are_out_of_order_or_half_written(tmp_path: Path) -> None:
    made = [SealedRecord(1, "n", "packets", number, 3) for number in (7, 900, 8)]
    write(tmp_path / "n.1.jsonl", [made])
    with (tmp_path / "n.1.jsonl").open("a") as file:
        file.write('{"kind":"handed","through":905,"num')
    keep_within([tmp_path / "n.1.jsonl"], 0, PART_BYTES, FLOW)
    assert [each.before for each in entries([tmp_path / "n.1.jsonl"]) if isinstance(each, Header)] == [905]


def test_buckets_from_before_1970_have_numbers_too(tmp_path: Path) -> None:
    write(tmp_path / "n.1.jsonl", [[SealedRecord(1, "n", "packets", number, 3) for number in (-9, -7)]])
    keep_within([tmp_path / "n.1.jsonl"], 0, PART_BYTES, FLOW)
    assert [each.before for each in entries([tmp_path / "n.1.jsonl"]) if isinstance(each, Header)] == [-7]


def test_many_small_histories_count_as_if_they_were_larger(tmp_path: Path) -> None:
    for incarnation in range(1, 101):
        write(tmp_path / f"node-1.{incarnation}.jsonl", [[]])
    parts = parts_of_processes(tmp_path, lambda *_: True)
    keep_within(parts, 10 * 2**20, 2**20 * FILES_IN_A_PART, FLOW)
    assert names(tmp_path) == sorted(f"node-1.{incarnation}.jsonl" for incarnation in range(91, 101))


@pytest.mark.parametrize("killed_at", range(4))
def test_a_removal_that_is_cut_off_leaves_too_much_and_the_next_one_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int
) -> None:
    class Killed(Exception):
        pass

    looks = 0
    unlink = Path.unlink

    def dying(path: Path, *, missing_ok: bool = False) -> None:
        nonlocal looks
        if looks == killed_at:
            raise Killed
        looks += 1
        unlink(path, missing_ok=missing_ok)

    for incarnation, numbers in enumerate((range(90), range(20, 40), range(40, 60)), 1):
        killed_after(tmp_path, incarnation, numbers)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", dying)
        with pytest.raises(Killed):
            keep_within(parts_of_processes(tmp_path, lambda *_: True), 300, PART_BYTES, FLOW)
    verdict = judged(tmp_path)
    assert (verdict.findings, verdict.damages) == ([], [])
    keep_within(parts_of_processes(tmp_path, lambda *_: True), 300, PART_BYTES, FLOW)
    assert names(tmp_path) == ["node-1.3.jsonl"]
    assert judged(tmp_path).judged_from == 90


def test_what_is_gone_while_others_are_removed_is_no_error(tmp_path: Path) -> None:
    killed_after(tmp_path, 1, range(90))
    parts = parts_of_processes(tmp_path, lambda *_: True)
    for part in parts:
        part.unlink()
    keep_within(parts, -1, PART_BYTES, FLOW)
    assert names(tmp_path) == ["node-1.1.jsonl"]


# --- what the judge says ------------------------------------------------------------------------------------


def taken_over(folder: Path) -> Run:
    """Nodes n1.1 and n2.1 are killed after bucket 5; n1.2 and n2.2 go on with their states."""
    run = partitioned()
    for old in ("n1", "n2"):
        records = run.pop(old)[:-1]
        run[f"{old}.1"] = records
        run[f"{old}.2"] = [
            BegunRecord(20, f"{old}.2"),
            InstalledRecord(21, f"{old}.2", 1, 5, f"stats/0:{int(old[1]) - 1}"),
        ]
    verdict = verdict_on(run, folder)
    assert (verdict.findings, verdict.judged_from) == ([], None)
    return run


def test_without_a_history_that_went_wholly_the_rest_is_judged_from_the_next_bucket_on(
    tmp_path: Path,
) -> None:
    taken_over(tmp_path)
    for name in ("n1", "n2"):
        keep_within([tmp_path / f"{name}.1.jsonl"], 0, PART_BYTES, FLOW)
    verdict = judged(tmp_path)
    assert verdict.clean
    assert verdict.judged_from == 6
    assert verdict.unwitnessed > 0


def test_a_history_that_somebody_took_away_is_missed(tmp_path: Path) -> None:
    taken_over(tmp_path)
    for name in ("n1", "n2"):
        (tmp_path / f"{name}.1.jsonl").unlink()
    assert invariants_of(judged(tmp_path)) == {"contents"}


def test_what_is_left_of_a_run_whose_first_processes_went_is_judged(tmp_path: Path) -> None:
    run = taken_over(tmp_path)
    for replica, name in enumerate(("n1", "n2")):
        keep_within([tmp_path / f"{name}.1.jsonl"], 0, PART_BYTES, FLOW)
        made = ProducedRecord(22, f"{name}.2", 9, 1, f"by {name}", f"stats/0:{replica}", "sink:stats/0")
        write(tmp_path / f"{name}.2.jsonl", [[*run[f"{name}.2"], made]])
    write(tmp_path / "gateway.jsonl", [run["gateway"][:-1]])
    assert invariants_of(judged(tmp_path)) == {"replicas-agree"}


@pytest.mark.parametrize(
    ("process", "known"),
    [
        ("gateway", ("gateway", 0)),
        ("node-1.12", ("node-1", 12)),
        ("my.node.3", ("my.node", 3)),
        (".3", (".3", 0)),
    ],
)
def test_a_process_has_a_name_and_an_incarnation(process: str, known: tuple[str, int]) -> None:
    assert name_and_incarnation(process) == known
