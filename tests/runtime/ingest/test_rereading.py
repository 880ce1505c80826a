"""Reading a log again while it is written: chunks, ends that move, segments that go, damage."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from log_kit import commit_and_roll, make_flow, of, opened, read_all, rows, segments, shown

import understudy as us
from understudy.core.bucket import NOTHING
from understudy.runtime.ingest import rereading
from understudy.runtime.ingest.buckets import SealedBucket, end_bucket
from understudy.runtime.ingest.ingest import Ingest


def numbers(buckets: list[SealedBucket]) -> list[int]:
    return [each.number for each in buckets]


def push(ingest: Ingest, flow: us.Flow, number: int, *, source: str = "s") -> list[SealedBucket]:
    """Rows of one bucket, committed. Returns what came out."""
    ingest.push(source, rows(flow, number, number, source=source), "c", number, now_us=0)
    ingest.commit()
    return ingest.take()


def push_and_roll(ingest: Ingest, flow: us.Flow, number: int, *, source: str = "s") -> list[SealedBucket]:
    """The same, as the last push of its segment."""
    taken = push(ingest, flow, number, source=source)
    commit_and_roll(ingest)
    return taken


def test_a_reader_gives_the_buckets_after_its_number_as_they_were(tmp_path: Path) -> None:
    flow = make_flow()
    ingest = opened(flow, tmp_path)
    taken = [bucket for number in range(1, 8) for bucket in push(ingest, flow, number)]
    reader = ingest.reader("s", 3)
    given = reader.read(1 << 20)
    assert shown(given) == shown(of("s", taken, 3))
    assert numbers(given) == [4, 5, 6]
    reader.close()


def test_a_read_gives_what_fits_and_at_least_one_bucket(tmp_path: Path) -> None:
    flow = make_flow()
    ingest = opened(flow, tmp_path)
    ingest.push("s", rows(flow, *range(1, 11)), "c", 1, now_us=0)
    ingest.commit()
    reader = ingest.reader("s", NOTHING)
    assert numbers(reader.read(0)) == [1]
    one = 100 + ingest.take()[0].table.nbytes  # type: ignore[union-attr]
    assert numbers(reader.read(3 * one)) == [2, 3, 4]
    assert numbers(reader.read(3 * one - 1)) == [5, 6]
    assert numbers(reader.read(1 << 20)) == [7, 8, 9]
    assert reader.read(1 << 20) == []


def test_a_reader_at_the_end_goes_on_when_more_is_committed(tmp_path: Path) -> None:
    flow = make_flow()
    ingest = opened(flow, tmp_path)
    reader = ingest.reader("s", NOTHING)
    assert reader.read(0) == []
    ingest.push("s", rows(flow, 1, 2), "c", 1, now_us=0)
    assert reader.read(1 << 20) == [], "not committed"
    ingest.commit()
    assert numbers(reader.read(1 << 20)) == [1]
    assert reader.read(1 << 20) == []
    push(ingest, flow, 5)
    assert numbers(reader.read(1 << 20)) == [2, 4]


def test_a_reader_that_is_ahead_waits_for_its_number(tmp_path: Path) -> None:
    flow = make_flow()
    ingest = opened(flow, tmp_path)
    reader = ingest.reader("s", 3)
    for number in range(1, 5):
        push_and_roll(ingest, flow, number)
        assert reader.read(1 << 20) == []
    push_and_roll(ingest, flow, 6)
    assert numbers(read_all(reader)) == [4, 5]


def test_boundaries_and_ends_are_given_again_and_only_the_last_of_those_that_follow_one_another(
    tmp_path: Path,
) -> None:
    flow = make_flow()
    ingest = opened(flow, tmp_path)
    ingest.push("s", rows(flow, 1), "c", 1, now_us=0)
    commit_and_roll(ingest)
    ingest.seal_through("s", 1)
    commit_and_roll(ingest)
    ingest.seal_through("s", 5)
    commit_and_roll(ingest)
    ingest.close_source("s")
    commit_and_roll(ingest)
    given = read_all(ingest.reader("s", NOTHING), 0)
    end = end_bucket(flow.bucket_us)
    assert [(each.number, each.table is None) for each in given] == [
        (0, True),
        (1, False),
        (end, True),
    ]
    taken = ingest.take()
    assert shown(given) == shown([each for each in taken if each.number != 5])


def test_rows_left_out_for_the_wall_clock_are_left_out_again(tmp_path: Path) -> None:
    flow = us.Flow("f", bucket="100 ms")
    flow.source("s", us.Push("id int, ts timestamp"), time="ts", late="drop", ahead="1 s")
    ingest = opened(flow, tmp_path)
    assert ingest.push("s", rows(flow, 1, 15), "c", 1, now_us=100_000).late == 1
    assert ingest.push("s", rows(flow, 2, 15), "c", 2, now_us=600_000).late == 0
    ingest.close_source("s")
    ingest.commit()
    taken = ingest.take()
    assert shown(read_all(ingest.reader("s", NOTHING))) == shown(taken)


def test_rows_that_were_open_when_a_segment_began_are_read_from_its_state(tmp_path: Path) -> None:
    flow = make_flow()
    ingest = opened(flow, tmp_path)
    for at in range(5):
        ingest.push("s", rows(flow, 4), "c", at, now_us=0)
        commit_and_roll(ingest)
    taken = [*ingest.take(), *push_and_roll(ingest, flow, 5)]
    newest = segments(tmp_path)[-1]
    reader = ingest.reader("s", 3)
    given = read_all(reader)
    assert shown(given) == shown(of("s", taken, 3))
    assert given[0].table is not None
    assert given[0].table.num_rows == 5
    assert newest >= 3, "the rows came in several segments"


def test_a_reader_opens_only_segments_in_which_rows_of_its_source_were_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = make_flow("a", "b")
    ingest = opened(flow, tmp_path)
    push_and_roll(ingest, flow, 1, source="b")
    for number in range(1, 20):
        push_and_roll(ingest, flow, number, source="a")
    push_and_roll(ingest, flow, 2, source="b")
    opens: list[int] = []
    open_segment = ingest._log.open_segment
    monkeypatch.setattr(
        ingest._log, "open_segment", lambda number: (opens.append(number), open_segment(number))[1]
    )
    assert numbers(read_all(ingest.reader("b", NOTHING))) == [0, 1]
    assert len(opens) == 2, "of the rows, which begins behind the first boundary, and the newest"


def test_pushes_of_other_sources_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = make_flow("a", "b")
    ingest = opened(flow, tmp_path)
    for number in range(1, 4):
        for source in ("a", "b"):
            push(ingest, flow, number, source=source)
    decoded: list[str] = []
    read_stream = rereading.read_stream
    monkeypatch.setattr(
        rereading,
        "read_stream",
        lambda source, body: (decoded.append(source.name), read_stream(source, body))[1],
    )
    assert numbers(read_all(ingest.reader("a", NOTHING))) == [0, 1, 2]
    assert decoded == ["a", "a", "a"]


def test_the_ingest_is_not_locked_while_a_reader_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = make_flow()
    ingest = opened(flow, tmp_path)
    for number in range(1, 5):
        push_and_roll(ingest, flow, number)
    free: list[bool] = []
    read_stream = rereading.read_stream

    def reading(source: us.flow.model.Source, body: bytes) -> object:
        free.append(not ingest._lock.locked() and not ingest._retention._lock.locked())
        return read_stream(source, body)

    monkeypatch.setattr(rereading, "read_stream", reading)
    read_all(ingest.reader("s", NOTHING))
    assert free == [True, True, True]


def test_segments_may_go_behind_a_reader(tmp_path: Path) -> None:
    flow = make_flow("a", "b")
    ingest = opened(flow, tmp_path)
    for number in range(1, 6):
        for source in ("a", "b"):
            push_and_roll(ingest, flow, number, source=source)
    reader = ingest.reader("a", NOTHING)
    given = []
    for _ in range(5):
        given += reader.read(0)
        for source in ("a", "b"):
            ingest.trim(source, given[-1].number)
            ingest.forget(source, given[-1].number)
        commit_and_roll(ingest)
    assert numbers(given) == [0, 1, 2, 3, 4]
    assert segments(tmp_path)[0] > 5


def test_a_reader_that_rested_at_the_end_finds_on_after_its_segment_and_others_went(tmp_path: Path) -> None:
    """Segments in which its source was silent are gone although it never opened them."""
    flow = make_flow("a", "b")
    ingest = opened(flow, tmp_path)
    push_and_roll(ingest, flow, 1, source="a")
    push_and_roll(ingest, flow, 2, source="a")
    reader = ingest.reader("a", NOTHING)
    assert numbers(read_all(reader)) == [0, 1]
    for number in range(1, 10):
        push_and_roll(ingest, flow, number, source="b")
    for source, through in (("a", 1), ("b", 8)):
        ingest.trim(source, through)
        ingest.forget(source, through)
    for _ in range(2):
        commit_and_roll(ingest)
    assert len(segments(tmp_path)) == 1
    push_and_roll(ingest, flow, 4, source="a")
    assert numbers(read_all(reader)) == [2, 3]


def test_what_the_log_no_longer_holds_is_refused(tmp_path: Path) -> None:
    flow = make_flow()
    ingest = opened(flow, tmp_path)
    for number in range(1, 6):
        push_and_roll(ingest, flow, number)
    ingest.trim("s", 3)
    ingest.forget("s", 2)
    commit_and_roll(ingest)
    for after, asked in ((1, "after 1"), (NOTHING, "from the first on")):
        with pytest.raises(us.EnvironmentFailed, match=rf"no bucket .* 's' up to 2 any .* those {asked} are"):
            ingest.reader("s", after)
    assert numbers(read_all(ingest.reader("s", 2))) == [3, 4]


def test_a_reader_from_which_its_next_bucket_was_taken_says_so(tmp_path: Path) -> None:
    flow = make_flow()
    ingest = opened(flow, tmp_path)
    for number in range(1, 6):
        push_and_roll(ingest, flow, number)
    reader = ingest.reader("s", NOTHING)
    assert [numbers(reader.read(0)) for _ in range(2)] == [[0], [1]]
    ingest.trim("s", 3)
    ingest.forget("s", 3)
    commit_and_roll(ingest)
    with pytest.raises(us.EnvironmentFailed, match="Begin with a newer snapshot"):
        reader.read(0)


def test_a_log_that_is_cut_off_while_it_is_read_is_damage(tmp_path: Path) -> None:
    flow = make_flow()
    ingest = opened(flow, tmp_path)
    for number in range(1, 4):
        push(ingest, flow, number)
    reader = ingest.reader("s", NOTHING)
    file = tmp_path / "00000001.wal"
    whole = file.read_bytes()
    with file.open("r+b") as cut:
        cut.truncate(len(whole) - 1)
    with pytest.raises(us.EnvironmentFailed, match=rf"{file.name} is cut off at byte {len(whole) - 1}: "):
        read_all(reader)


def test_a_system_that_reads_less_than_it_was_asked_for_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = make_flow()
    ingest = opened(flow, tmp_path)
    taken = [bucket for number in range(1, 4) for bucket in push(ingest, flow, number)]
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, count, at: pread(file, min(count, 7), at))
    assert shown(read_all(ingest.reader("s", NOTHING))) == shown(taken)


@pytest.mark.parametrize("where", [0, 9], ids=["magic", "length"])
def test_a_damaged_header_is_damage_and_named_with_its_position(tmp_path: Path, where: int) -> None:
    flow = make_flow()
    ingest = opened(flow, tmp_path)
    for number in range(1, 4):
        push(ingest, flow, number)
    file = tmp_path / "00000001.wal"
    data = bytearray(file.read_bytes())
    at = data.rindex(data[:4])
    data[at + where] ^= 1
    file.write_bytes(data)
    with pytest.raises(us.EnvironmentFailed, match=rf"{file.name} is damaged at byte {at}: "):
        read_all(ingest.reader("s", NOTHING))


def test_what_lies_before_damage_is_given_before_it_is_said(tmp_path: Path) -> None:
    flow = make_flow()
    ingest = opened(flow, tmp_path)
    for number in range(1, 5):
        push(ingest, flow, number)
    file = tmp_path / "00000001.wal"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    reader = ingest.reader("s", NOTHING)
    assert numbers(reader.read(1 << 20)) == [0, 1, 2]
    with pytest.raises(us.EnvironmentFailed, match="is damaged"):
        reader.read(1 << 20)
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(us.EnvironmentFailed, match="is damaged"):
        reader.read(1 << 20)
    assert numbers(read_all(ingest.reader("s", 2))) == [3], "another reader finds it repaired"


def test_an_unknown_source_and_a_log_that_was_not_recovered_are_refused(tmp_path: Path) -> None:
    ingest = Ingest(make_flow(), tmp_path, sync=False)
    with pytest.raises(us.core.errors.BrokenInvariant, match="before it was recovered"):
        ingest.reader("s", NOTHING)
    ingest.recover()
    with pytest.raises(us.FlowError, match="no source 'x'"):
        ingest.reader("x", NOTHING)


def test_readers_follow_a_log_that_is_pushed_to_rolled_and_forgotten_meanwhile(tmp_path: Path) -> None:
    flow = make_flow("a", "b")
    ingest = opened(flow, tmp_path, segment_bytes=4_000)
    taken: list[SealedBucket] = []
    given: dict[str, list[SealedBucket]] = {"a": [], "b": []}
    problems: list[BaseException] = []
    pushed = threading.Event()

    def pushing() -> None:
        try:
            for number in range(1, 600):
                # One source has a bucket in every tenth push only.
                source = "b" if number % 10 == 0 else "a"
                taken.extend(push(ingest, flow, number, source=source))
        except BaseException as problem:
            problems.append(problem)
        finally:
            pushed.set()

    def reading(source: str, bytes_max: int) -> None:
        try:
            reader = ingest.reader(source, NOTHING)
            while True:
                over = pushed.is_set()
                more = reader.read(bytes_max)
                given[source] += more
                if more:
                    ingest.trim(source, more[-1].number)
                    ingest.forget(source, more[-1].number)
                elif over:
                    break
            reader.close()
        except BaseException as problem:
            problems.append(problem)

    threads = [
        threading.Thread(target=pushing),
        threading.Thread(target=reading, args=("a", 500)),
        threading.Thread(target=reading, args=("b", 0)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    for source in ("a", "b"):
        assert shown(given[source]) == shown(of(source, taken, NOTHING))
    ingest.commit()
    assert segments(tmp_path)[0] > 10, "many segments went meanwhile"
