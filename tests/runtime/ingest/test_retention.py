"""What the log keeps for snapshots: trimmed is not forgotten, and a recovery does not read it."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_kit import commit_and_roll, make_flow, opened, read_all, rows, segments

import understudy as us
from understudy.core.bucket import NOTHING
from understudy.runtime.ingest import log as log_module
from understudy.runtime.ingest.buckets import SealedBucket
from understudy.runtime.ingest.frames import read_frames
from understudy.runtime.ingest.ingest import Ingest


def numbers(buckets: list[SealedBucket]) -> list[int]:
    return [each.number for each in buckets]


def filled(folder: Path, pushes: int = 6, trim: int | None = None, forget: int | None = None) -> us.Flow:
    """A closed log of one source. Each of its segments holds one push; push n seals bucket n - 1."""
    flow = make_flow()
    ingest = opened(flow, folder)
    ingest.push("s", rows(flow, 0, 1), "c", 1, now_us=0)
    commit_and_roll(ingest)
    for number in range(2, pushes + 1):
        ingest.push("s", rows(flow, number), "c", number, now_us=0)
        commit_and_roll(ingest)
    if trim is not None:
        ingest.trim("s", trim)
    if forget is not None:
        ingest.forget("s", forget)
    ingest.push("s", rows(flow, pushes + 1), "c", pushes + 1, now_us=0)
    commit_and_roll(ingest)
    ingest.close()
    return flow


def recovered(flow: us.Flow, folder: Path) -> tuple[Ingest, list[SealedBucket]]:
    ingest = Ingest(flow, folder, sync=False)
    return ingest, ingest.recover()


def segment(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.wal"


@pytest.fixture
def segments_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the segments that a recovery reads."""
    read: list[int] = []

    def reading(file: Path) -> object:
        read.append(int(file.stem))
        return read_frames(file)

    monkeypatch.setattr(log_module, "read_frames", reading)
    return read


def test_what_is_trimmed_and_not_forgotten_stays_in_the_log_and_does_not_come_back(tmp_path: Path) -> None:
    flow = filled(tmp_path, trim=4, forget=2)
    ingest, again = recovered(flow, tmp_path)
    assert numbers(again) == [5, 6]
    assert (ingest.trimmed, ingest.forgotten) == ({"s": 4}, {"s": 2})
    reader = ingest.reader("s", 2)
    assert numbers(read_all(reader)) == [3, 4, 5, 6]


def test_a_new_log_is_neither_trimmed_nor_forgotten(tmp_path: Path) -> None:
    ingest = opened(make_flow("a", "b"), tmp_path)
    assert ingest.trimmed == ingest.forgotten == {"a": NOTHING, "b": NOTHING}


def test_nothing_is_forgotten_that_is_not_trimmed(tmp_path: Path) -> None:
    flow = make_flow()
    ingest = opened(flow, tmp_path)
    ingest.push("s", rows(flow, 1, 2, 3), "c", 1, now_us=0)
    commit_and_roll(ingest)
    ingest.trim("s", 1)
    ingest.forget("s", 2)
    ingest.commit()
    assert ingest.forgotten == {"s": 1}
    assert 1 in segments(tmp_path)
    ingest.trim("s", 2)
    ingest.commit()
    assert ingest.forgotten == {"s": 1}, "the caller says it again"
    ingest.forget("s", 2)
    ingest.commit()
    assert 1 not in segments(tmp_path)


def test_a_forget_never_goes_back(tmp_path: Path) -> None:
    flow = filled(tmp_path, trim=4, forget=3)
    ingest, _ = recovered(flow, tmp_path)
    ingest.forget("s", 1)
    assert ingest.forgotten == {"s": 3}


def test_a_recovery_reads_from_the_segment_of_the_first_bucket_that_is_not_trimmed(
    tmp_path: Path, segments_read: list[int]
) -> None:
    flow = filled(tmp_path, trim=4)
    assert segments(tmp_path) == list(range(1, 9))
    segments_read.clear()
    _, again = recovered(flow, tmp_path)
    # Push n lies in segment n, and bucket 5 is sealed by push 6.
    assert (numbers(again), segments_read) == ([5, 6], [6, 7, 8])


def test_a_recovery_with_everything_trimmed_reads_the_newest_segment_only(
    tmp_path: Path, segments_read: list[int]
) -> None:
    flow = filled(tmp_path, trim=6)
    segments_read.clear()
    ingest, again = recovered(flow, tmp_path)
    assert (again, segments_read, segments(tmp_path)) == ([], [8], list(range(1, 9)))
    assert ingest.goes_on
    assert ingest.sealed_through == {"s": 6}
    assert ingest.push("s", rows(flow, 7), "c", 7, now_us=0).duplicate
    assert numbers(read_all(ingest.reader("s", NOTHING))) == [0, 1, 2, 3, 4, 5, 6]


def test_one_source_that_is_not_trimmed_makes_a_recovery_begin_with_its_bucket(
    tmp_path: Path, segments_read: list[int]
) -> None:
    flow = make_flow("a", "b")
    ingest = opened(flow, tmp_path)
    for number in range(1, 5):
        for source in ("a", "b"):
            ingest.push(source, rows(flow, number, source=source), "c", number, now_us=0)
            commit_and_roll(ingest)
    ingest.trim("a", 3)
    ingest.trim("b", 1)
    commit_and_roll(ingest)
    ingest.close()
    segments_read.clear()
    _, again = recovered(flow, tmp_path)
    assert [(each.source, each.number) for each in again] == [("b", 2), ("b", 3)]
    assert segments_read == [6, 7, 8, 9, 10], "the sixth holds the third push of b"


def test_a_recovery_holds_no_bucket_that_was_trimmed_before_the_newest_segment(tmp_path: Path) -> None:
    flow = make_flow("slow", "s")
    ingest = opened(flow, tmp_path)
    ingest.push("slow", rows(flow, 1, 2, source="slow"), "c", 1, now_us=0)
    for number in range(1, 9):
        ingest.push("s", rows(flow, number), "c", number, now_us=0)
        ingest.trim("s", number - 1)
        commit_and_roll(ingest)
    ingest.close()
    again = Ingest(flow, tmp_path, sync=False)
    assert [(each.source, each.number) for each in again._replay(None)] == [("slow", 1)]
    again.close()


FAR = {
    "an end": lambda ingest: ingest.close_source("ref"),
    "a boundary far ahead": lambda ingest: ingest.seal_through("ref", 1_000),
}


@pytest.fixture(params=FAR)
def ahead(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[us.Flow, Ingest]:
    """A log of two sources that a fragment reads together. `ref` is sealed far ahead, `s` goes on.

    Each segment holds one push of `s`. Every copy and every snapshot has what both have reached.
    """
    flow = make_flow("ref", "s")
    ingest = opened(flow, tmp_path)
    ingest.push("ref", rows(flow, 2, source="ref"), "c", 1, now_us=0)
    FAR[request.param](ingest)
    for number in range(1, 9):
        ingest.push("s", rows(flow, number), "c", number, now_us=0)
        commit_and_roll(ingest)
        for source in ("ref", "s"):
            ingest.trim(source, number - 1)
            ingest.forget(source, number - 1)
    ingest.commit()
    return flow, ingest


def test_a_source_that_is_far_ahead_does_not_hold_up_the_log(
    ahead: tuple[us.Flow, Ingest], tmp_path: Path, segments_read: list[int]
) -> None:
    flow, ingest = ahead
    assert segments(tmp_path) == [9]
    boundary = ingest.sealed_through["ref"]
    ingest.close()
    again, buckets = recovered(flow, tmp_path)
    assert segments_read == [9]
    assert buckets == [SealedBucket("ref", boundary, None)]
    assert again.take() == []
    assert again.sealed_through == {"ref": boundary, "s": 7}


def test_a_source_with_rows_that_are_not_forgotten_holds_up_the_log(tmp_path: Path) -> None:
    flow = make_flow("ref", "s")
    ingest = opened(flow, tmp_path)
    ingest.push("ref", rows(flow, 5, source="ref"), "c", 1, now_us=0)
    ingest.close_source("ref")
    for number in range(1, 9):
        ingest.push("s", rows(flow, number), "c", number, now_us=0)
        commit_and_roll(ingest)
        for source in ("ref", "s"):
            ingest.trim(source, number - 1)
            ingest.forget(source, number - 1)
        ingest.commit()
        assert (1 in segments(tmp_path)) == (number - 1 < 5)


def test_a_reader_gets_a_boundary_whose_segment_is_gone(ahead: tuple[us.Flow, Ingest]) -> None:
    _, ingest = ahead
    boundary = SealedBucket("ref", ingest.sealed_through["ref"], None)
    assert read_all(ingest.reader("ref", 2)) == [boundary]
    assert read_all(ingest.reader("ref", 7)) == [boundary]
    assert read_all(ingest.reader("ref", boundary.number)) == []
    with pytest.raises(us.EnvironmentFailed, match=r"no bucket of source 'ref' up to 2 any more"):
        ingest.reader("ref", 1)


def test_a_removed_log_is_missed_by_the_rows_that_it_had(
    ahead: tuple[us.Flow, Ingest], tmp_path: Path
) -> None:
    flow, ingest = ahead
    commit_and_roll(ingest)
    ingest.push("s", rows(flow, 9), "c", 9, now_us=0)
    commit_and_roll(ingest)
    ingest.close()
    segment(tmp_path, 10).unlink()
    with pytest.raises(
        us.EnvironmentFailed, match=r"lacks the segments before 00000011\.wal.* 's', up to bucket 8"
    ):
        recovered(flow, tmp_path)


def test_segments_that_were_forgotten_after_the_newest_began_are_not_missed(tmp_path: Path) -> None:
    flow = filled(tmp_path)
    ingest = Ingest(flow, tmp_path, sync=False)
    ingest.recover()
    ingest.trim("s", 4)
    ingest.forget("s", 3)
    ingest.commit()
    ingest.close()
    assert segments(tmp_path)[0] == 5
    again, buckets = recovered(flow, tmp_path)
    assert numbers(buckets) == [5, 6]
    assert numbers(read_all(again.reader("s", 3))) == [4, 5, 6]


def test_a_segment_that_is_missing_in_the_middle_is_named_even_if_recovery_would_not_read_it(
    tmp_path: Path,
) -> None:
    flow = filled(tmp_path, trim=6)
    segment(tmp_path, 3).unlink()
    with pytest.raises(us.EnvironmentFailed, match=r"lacks its segment 00000003\.wal.*acknowledged.*Restore"):
        recovered(flow, tmp_path)


def test_first_segments_that_are_trimmed_and_not_forgotten_are_missed(tmp_path: Path) -> None:
    flow = filled(tmp_path, trim=6, forget=1)
    assert segments(tmp_path)[0] == 3
    segment(tmp_path, 3).unlink()
    with pytest.raises(
        us.EnvironmentFailed, match=r"lacks the segments before 00000004\.wal.* 's', up to bucket 2"
    ):
        recovered(flow, tmp_path)
    # The next start must notice as well.
    with pytest.raises(us.EnvironmentFailed, match="lacks the segments"):
        recovered(flow, tmp_path)


@pytest.mark.parametrize("number", [2, 6], ids=["not read", "read"])
@pytest.mark.parametrize("at_a_record", [False, True], ids=["in a record", "between records"])
def test_a_segment_that_is_cut_off_and_is_not_the_last_is_named_with_its_position(
    tmp_path: Path, number: int, at_a_record: bool
) -> None:
    flow = filled(tmp_path, trim=4)
    file = segment(tmp_path, number)
    whole = file.read_bytes()
    # A segment holds its state and one commit, and both begin alike.
    cut = whole.rindex(whole[:4]) if at_a_record else len(whole) - 1
    file.write_bytes(whole[:cut])
    says = rf"{file.name} is cut off at byte {cut}: {len(whole)} bytes .*acknowledged.*Restore"
    with pytest.raises(us.EnvironmentFailed, match=says) as raised:
        recovered(flow, tmp_path)
    assert raised.value.exit_code != 0


def test_a_segment_to_which_something_was_added_is_named_with_its_position(tmp_path: Path) -> None:
    flow = filled(tmp_path, trim=4)
    file = segment(tmp_path, 2)
    whole = file.read_bytes()
    file.write_bytes(whole + b"more")
    with pytest.raises(us.EnvironmentFailed, match=rf"{file.name} is damaged at byte {len(whole)}: it ended"):
        recovered(flow, tmp_path)


def test_damage_where_recovery_reads_is_named_with_its_position(tmp_path: Path) -> None:
    flow = filled(tmp_path, trim=4)
    file = segment(tmp_path, 6)
    data = bytearray(file.read_bytes())
    at = data.rindex(data[:4])
    data[30] ^= 1
    file.write_bytes(data)
    says = rf"{file.name} is damaged at byte 0: .*others follow at byte {at}\. .*acknowledged.*Restore"
    with pytest.raises(us.EnvironmentFailed, match=says):
        recovered(flow, tmp_path)


def test_damage_where_recovery_does_not_read_is_found_by_a_reader(tmp_path: Path) -> None:
    flow = filled(tmp_path, trim=4)
    file = segment(tmp_path, 3)
    data = bytearray(file.read_bytes())
    at = data.rindex(data[:4])
    data[-1] ^= 1
    file.write_bytes(data)
    ingest, again = recovered(flow, tmp_path)
    assert numbers(again) == [5, 6]
    reader = ingest.reader("s", NOTHING)
    assert numbers(reader.read(0)) == [0]
    assert numbers(reader.read(0)) == [1]
    for _ in range(2):
        with pytest.raises(
            us.EnvironmentFailed, match=rf"{file.name} is damaged at byte {at}: .*acknowledged.*Restore"
        ):
            reader.read(0)
    assert numbers(read_all(ingest.reader("s", 3))) == [4, 5, 6], "what lies behind it can be read"


def test_a_newest_segment_whose_state_is_damaged_is_named_with_its_position(tmp_path: Path) -> None:
    flow = filled(tmp_path, trim=4)
    file = segment(tmp_path, 8)
    data = bytearray(file.read_bytes())
    data[30] ^= 1
    file.write_bytes(data)
    with pytest.raises(us.EnvironmentFailed, match=rf"{file.name} is damaged at byte 0: .*Restore"):
        recovered(flow, tmp_path)
    file.write_bytes(b"")
    with pytest.raises(us.EnvironmentFailed, match=rf"{file.name} is damaged at byte 0: .*Restore"):
        recovered(flow, tmp_path)


def test_a_segment_under_the_name_of_another_is_refused(tmp_path: Path) -> None:
    flow = filled(tmp_path, trim=4)
    segment(tmp_path, 9).write_bytes(segment(tmp_path, 8).read_bytes())
    with pytest.raises(us.EnvironmentFailed, match=r"00000009\.wal, which was begun as 00000008\.wal"):
        recovered(flow, tmp_path)


def test_dropped_segments_that_came_back_with_a_loss_of_power_are_dropped_again(tmp_path: Path) -> None:
    flow = filled(tmp_path / "all")
    filled(tmp_path / "some", trim=6, forget=3)
    ingest, _ = recovered(flow, tmp_path / "some")
    # One more segment, whose table says what was dropped before it.
    ingest.push("s", rows(flow, 8), "c", 8, now_us=0)
    commit_and_roll(ingest)
    ingest.close()
    kept = segments(tmp_path / "some")
    assert kept[0] > 2
    segment(tmp_path / "some", 1).write_bytes(segment(tmp_path / "all", 1).read_bytes())
    again, _ = recovered(flow, tmp_path / "some")
    assert segments(tmp_path / "some") == kept
    assert numbers(read_all(again.reader("s", 3))) == [4, 5, 6, 7]


def test_a_failed_recovery_lets_go_of_its_folder(tmp_path: Path) -> None:
    flow = filled(tmp_path, trim=4)
    file = segment(tmp_path, 2)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(us.EnvironmentFailed, match="cut off"):
        recovered(flow, tmp_path)
    file.write_bytes(whole)
    assert numbers(recovered(flow, tmp_path)[1]) == [5, 6]
