"""Histories on disk: cut into parts, bounded, gone on with by the next process, ended by a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from understudy.core.bucket import NOTHING
from understudy.history.judging import judge
from understudy.history.parts import older_parts
from understudy.history.reading import entries, records_of
from understudy.history.records import (
    FORMAT_VERSION,
    DeliveredRecord,
    Header,
    ProducedRecord,
    SealedRecord,
    StoppedRecord,
    ViewRecord,
    line,
)
from understudy.history.writing import TAIL_BYTES, OnRecord, PartedFile

PART_BYTES = 2_000


def opened(folder: Path, *, total_bytes: int = 2**30, part_bytes: int = PART_BYTES) -> PartedFile:
    return PartedFile(
        folder / "gateway.jsonl", "flow", "gateway", part_bytes=part_bytes, total_bytes=total_bytes
    )


def sealed(number: int) -> SealedRecord:
    return SealedRecord(number, "gateway", "packets", number, 3)


def delivered(sink: str, through: int) -> DeliveredRecord:
    return DeliveredRecord(1, "gateway", sink, NOTHING, through, ())


def fill(file: PartedFile, numbers: range) -> None:
    for number in numbers:
        file.write([sealed(number)])


def numbers_in(folder: Path) -> list[int]:
    return [each.number for each in records_of(folder / "gateway.jsonl") if isinstance(each, SealedRecord)]


def headers_in(folder: Path) -> list[Header]:
    file = folder / "gateway.jsonl"
    parts = [*older_parts(file).values(), file]
    return [entry for entry in entries(parts) if isinstance(entry, Header)]


def test_a_full_part_is_followed_by_the_next_and_all_are_read_in_order(tmp_path: Path) -> None:
    file = opened(tmp_path)
    fill(file, range(100))
    file.close()
    numbers = numbers_in(tmp_path)
    assert numbers == list(range(100))
    sizes = [each.stat().st_size for each in tmp_path.iterdir()]
    assert len(sizes) > 4
    assert max(sizes) < PART_BYTES + 200
    heads = headers_in(tmp_path)
    assert [head.part for head in heads] == list(range(1, len(heads) + 1))
    assert [head.begins for head in heads] == [True] + [False] * (len(heads) - 1)
    firsts = [next(number for number in numbers if number > head.before) for head in heads[1:]]
    assert [first - 1 for first in firsts] == [head.before for head in heads[1:]]


def test_the_oldest_parts_go_and_what_is_left_says_from_where_on(tmp_path: Path) -> None:
    file = opened(tmp_path, total_bytes=3 * PART_BYTES)
    for number in range(1_000):
        fill(file, range(number, number + 1))
        assert sum(each.stat().st_size for each in tmp_path.iterdir()) <= 3 * PART_BYTES + 200
    file.close()
    left = numbers_in(tmp_path)
    assert left == list(range(left[0], 1_000))
    verdict = judge(tmp_path.glob("*.jsonl"))
    assert verdict.clean
    assert verdict.judged_from == left[0]


def test_the_next_process_goes_on_with_the_parts_and_knows_what_is_on_record(tmp_path: Path) -> None:
    fill(opened(tmp_path), range(50))
    again = opened(tmp_path)
    assert again.on_record.highest == 49
    fill(again, range(50, 100))
    again.close()
    assert numbers_in(tmp_path) == list(range(100))
    assert [head.begins for head in headers_in(tmp_path)].count(True) == 2
    assert judge(tmp_path.glob("*.jsonl")).clean


def test_a_process_that_died_between_two_parts_is_followed_by_the_next_part(tmp_path: Path) -> None:
    fill(opened(tmp_path), range(50))
    newest = max(older_parts(tmp_path / "gateway.jsonl"))
    (tmp_path / "gateway.jsonl").rename(tmp_path / f"gateway.part-{newest + 1:06d}.jsonl")
    again = opened(tmp_path)
    assert (again.on_record.highest, again.on_record.part) == (49, newest + 2)
    again.close()
    assert judge(tmp_path.glob("*.jsonl")).clean


def test_an_unfinished_line_stays_apart_from_what_the_next_process_writes(tmp_path: Path) -> None:
    fill(opened(tmp_path), range(5))
    file = tmp_path / "gateway.jsonl"
    file.write_bytes(file.read_bytes()[:-10])
    fill(opened(tmp_path), range(4, 8))
    assert numbers_in(tmp_path) == list(range(8))
    verdict = judge(file)
    assert verdict.clean
    assert [each.line for each in verdict.unfinished] == [6]


@pytest.mark.parametrize("damage", [b"", b"\x00" * 5_000, b"{ rubbish\n" * 500, b"[" * 10_000])
def test_no_damage_keeps_a_process_from_beginning_again(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "gateway.jsonl").write_bytes(damage)
    fill(opened(tmp_path), range(5))
    assert numbers_in(tmp_path) == list(range(5))


def test_what_is_needed_of_a_long_part_is_found_by_a_bounded_look_at_its_end(tmp_path: Path) -> None:
    view = line(ViewRecord(1, "gateway", 7, ()))
    stats, counts = (line(delivered(sink, 3)) for sink in ("stats", "counts"))
    head = line(Header(FORMAT_VERSION, "flow", "gateway", 4, False, 100, ((1, 6), (2, 9))))
    file = tmp_path / "gateway.jsonl"
    middle = [
        line(ProducedRecord(1, "gateway", number, 1, "x" * 90, "packets/0:0", "stats/0"))
        for number in range(101, 4_000)
    ]
    assert len("".join(middle)) > 2 * TAIL_BYTES
    file.write_text("\n".join([head, "{ rubbish", stats, *middle, view, counts, ""]))
    found = OnRecord.at_the_end_of(file)
    # What lies further back is not looked for.
    assert (found.part, found.highest, found.delivered) == (4, 3_999, {"counts": 3})
    assert found.epochs == {1: 7, 2: 9}
    # The header of the part says through which bucket there were records at least.
    file.write_text("\n".join([head, view, *("{ rubbish" for _ in range(TAIL_BYTES)), ""]))
    found = OnRecord.at_the_end_of(file)
    assert (found.part, found.highest, found.delivered) == (4, 100, {})
    assert found.epochs == {1: 6, 2: 9}


def test_every_part_says_which_view_of_each_version_is_on_record(tmp_path: Path) -> None:
    file = opened(tmp_path)
    views = [ViewRecord(1, "gateway", epoch, (), version) for version, epoch in ((1, 7), (2, 1), (2, 2))]
    file.write(views)
    fill(file, range(100))
    file.close()
    first, *later = headers_in(tmp_path)
    assert len(later) > 2
    assert first.epochs == ()
    assert {head.epochs for head in later} == {((1, 7), (2, 2))}


def test_a_process_that_died_at_the_head_of_a_part_left_what_it_delivered_in_the_part_before(
    tmp_path: Path,
) -> None:
    file = opened(tmp_path)
    file.write([delivered("stats", 3), delivered("counts", 5), delivered("stats", 7)])
    number = 0
    while not older_parts(tmp_path / "gateway.jsonl"):
        fill(file, range(number, number + 1))
        number += 1
    file.close()
    again = opened(tmp_path)
    assert again.on_record.delivered == {"stats": 7, "counts": 5}
    assert (again.on_record.part, again.on_record.highest) == (2, number - 1)
    again.close()


FULL_DISK = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_writing import fill, opened
file = opened(Path(sys.argv[1]), part_bytes=1_000_000)
fill(file, range(10))
# No file may grow beyond this, as if the disk were full; what a file has may be written over.
resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, resource.RLIM_INFINITY))
fill(file, range(10, 1_000))
print("went on")
if "again" in sys.argv:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    fill(opened(Path(sys.argv[1])), range(990, 1_000))
"""


def on_a_full_disk(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(folder), str(Path(__file__).parent), *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )


def test_a_full_disk_ends_the_history_and_nothing_else(tmp_path: Path) -> None:
    done = on_a_full_disk(tmp_path)
    assert done.stdout == "went on\n"
    assert done.stderr.count("is no longer written: File too large") == 1
    assert (tmp_path / "gateway.jsonl").stat().st_size <= 3_000
    verdict = judge(tmp_path / "gateway.jsonl")
    assert [each.why for each in verdict.damages] == ["gateway stopped writing: File too large"]
    assert verdict.sealed > 10
    assert numbers_in(tmp_path) == list(range(verdict.sealed))


def test_a_history_that_ended_on_a_full_disk_goes_on_with_the_next_process(tmp_path: Path) -> None:
    on_a_full_disk(tmp_path, "again")
    records = list(records_of(tmp_path / "gateway.jsonl"))
    assert any(isinstance(each, StoppedRecord) for each in records)
    assert numbers_in(tmp_path)[-10:] == list(range(990, 1_000))
    assert not judge(tmp_path.glob("*.jsonl")).clean


def test_a_folder_that_cannot_be_written_keeps_no_process_from_working(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("a file, where the folder should be")
    file = PartedFile(
        tmp_path / "taken" / "gateway.jsonl", "flow", "gateway", part_bytes=10_000, total_bytes=100_000
    )
    fill(file, range(5))
    assert file.stopped
    assert caplog.text.count("is no longer written") == 1


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_writing import fill, opened
file = opened(Path(sys.argv[1]))
number = 0
while True:
    fill(file, range(number, number + 100))
    number += 100
    print(number, flush=True)
"""


def test_a_process_killed_while_it_writes_leaves_a_history_that_the_next_goes_on_with(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path), str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    while int(process.stdout.readline()) < 500:
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    again = opened(tmp_path)
    known = again.on_record.highest
    fill(again, range(known + 1, known + 50))
    assert numbers_in(tmp_path) == list(range(known + 50))
    assert judge(tmp_path.glob("*.jsonl")).clean


LIMITED = """
import resource, sys
from pathlib import Path
from understudy.history.records import SuspectedRecord
from understudy.history.writing import PartedFile

file = PartedFile(Path(sys.argv[1]), "flow", "n", part_bytes=2**20, total_bytes=2**30)
record = SuspectedRecord(1, "n", "m")
file.write([record] * 500)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))
file.write([record])
print(file.stopped)
"""


def test_a_history_that_not_even_takes_its_last_word_has_it_beside_it(tmp_path: Path) -> None:
    newest = tmp_path / "n.jsonl"
    command = [sys.executable, "-c", LIMITED, str(newest)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
    records = list(records_of(newest))
    assert isinstance(records[-1], StoppedRecord)
    assert records[-1].why == "File too large"
    # A process that begins again puts it where it belongs.
    PartedFile(newest, "flow", "n", part_bytes=2**20, total_bytes=2**30).close()
    assert [path.name for path in tmp_path.iterdir()] == ["n.jsonl"]
    assert list(records_of(newest)) == records


def stops_in(folder: Path) -> list[str]:
    """What the judge finds missing or damaged."""
    return [each.why for each in judge(folder.glob("*.jsonl")).damages]


def test_a_history_that_stops_between_two_parts_has_its_last_word_beside_it(tmp_path: Path) -> None:
    file = opened(tmp_path)
    in_the_way = tmp_path / "gateway.part-000001.jsonl"
    in_the_way.mkdir()
    fill(file, range(100))
    assert file.stopped
    in_the_way.rmdir()
    assert stops_in(tmp_path) == ["gateway stopped writing: Is a directory"]
    opened(tmp_path).close()
    assert stops_in(tmp_path) == ["gateway stopped writing: Is a directory"]


@pytest.mark.parametrize(
    "left",
    [b"", b'{"kind":"stop', b"\xff", line(sealed(1)).encode()],
    ids=["nothing", "half", "bytes", "other"],
)
def test_a_last_word_that_cannot_be_read_still_says_that_the_history_stopped(
    tmp_path: Path, left: bytes
) -> None:
    fill(opened(tmp_path), range(5))
    (tmp_path / "gateway.stopped").write_bytes(left)
    assert stops_in(tmp_path) == ["gateway stopped writing: the reason is unknown"]
    fill(opened(tmp_path), range(5, 10))
    assert not (tmp_path / "gateway.stopped").exists()
    assert stops_in(tmp_path) == ["gateway stopped writing: the reason is unknown"]
    assert numbers_in(tmp_path) == list(range(10))


def test_a_last_word_that_the_next_process_takes_in_while_it_is_read_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path).close()
    mark = tmp_path / "gateway.stopped"
    mark.touch()
    honest = Path.read_text

    def read(path: Path) -> str:
        mark.unlink()
        return honest(path)

    monkeypatch.setattr(Path, "read_text", read)
    assert [type(each) for each in records_of(tmp_path / "gateway.jsonl")] == [StoppedRecord]
    assert list(records_of(tmp_path / "gateway.jsonl")) == []


@pytest.mark.parametrize(("size", "parts"), [(0, 1), (PART_BYTES, 2)], ids=["empty", "full"])
def test_a_last_word_taken_into_a_part_that_begins_comes_after_a_header_and_before_the_next_process(
    tmp_path: Path, size: int, parts: int
) -> None:
    opened(tmp_path).close()
    newest = tmp_path / "gateway.jsonl"
    whole = newest.read_text() + f"{line(sealed(1))}\n" * 100
    newest.write_text(whole[: whole.find("\n", size) + 1] if size else "")
    said = StoppedRecord(1, "gateway", "No space left on device")
    (tmp_path / "gateway.stopped").write_text(f"{line(said)}\n")
    opened(tmp_path).close()
    assert len(list(tmp_path.iterdir())) == parts
    header, *rest = entries([newest])
    assert isinstance(header, Header)
    assert not header.begins
    assert rest == [said, Header(FORMAT_VERSION, "flow", "gateway", parts, True, header.before)]
    assert stops_in(tmp_path) == ["gateway stopped writing: No space left on device"]


def test_a_last_word_stays_where_it_is_until_it_is_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path).close()
    (tmp_path / "gateway.stopped").touch()

    def killed(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(PartedFile, "_append", killed)
    with pytest.raises(SystemExit):
        opened(tmp_path)
    assert (tmp_path / "gateway.stopped").exists()
