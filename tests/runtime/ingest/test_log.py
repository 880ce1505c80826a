"""The write-ahead log on a real disk: torn tails, damage, segments, group commit."""

from __future__ import annotations

import os
import resource
import struct
from pathlib import Path
from threading import Barrier, Thread

import pytest

from disk_kit import DiskRecord
from understudy.core.errors import BrokenInvariant
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.ingest.frames import HEADER_BYTES, Record, RecordKind, frame
from understudy.runtime.ingest.log import Log

STATE = Record(RecordKind.STATE, {"state": 0})


def push(number: int) -> Record:
    return Record(RecordKind.PUSH, {"n": number, "note": "größer"}, bytes([number % 256]) * 100)


def opened(folder: Path) -> tuple[Log, list[Record]]:
    records: list[Record] = []
    log = Log(folder)
    log.recover(lambda segment, record: records.append(record))
    if not log.segment:
        log.roll(STATE)
    return log, records


def read_again(folder: Path) -> list[Record]:
    log, records = opened(folder)
    log.close()
    return records


def filled(folder: Path, commits: int = 3) -> Path:
    """A closed log whose one segment holds a state and then one push for each commit."""
    log, _ = opened(folder)
    for number in range(commits):
        log.append(push(number))
        log.commit()
    log.close()
    return folder / "00000001.wal"


def roll_on(log: Log, segments: int) -> None:
    """Put one push into each of so many segments; the next one begins with the last one's number as state."""
    for number in range(1, segments + 1):
        log.append(push(number))
        log.commit()
        log.roll(Record(RecordKind.STATE, {"state": number}))


def test_what_was_committed_is_read_again(tmp_path: Path) -> None:
    filled(tmp_path)
    log, records = opened(tmp_path)
    assert records == [STATE, push(0), push(1), push(2)]
    log.append(push(3))
    log.commit()
    log.close()
    assert read_again(tmp_path) == [STATE, push(0), push(1), push(2), push(3)]


def test_any_text_is_read_again(tmp_path: Path) -> None:
    # A name of a file need not be UTF-8: Python reads its bytes as halves of characters.
    record = Record(RecordKind.PUSH, {"note": {"file": os.fsdecode(b"b\xff2 gr\xc3\xb6\xc3\x9fer")}})
    log, _ = opened(tmp_path)
    log.append(record)
    log.commit()
    log.close()
    assert read_again(tmp_path) == [STATE, record]


def test_a_head_in_utf_8_is_read_too(tmp_path: Path) -> None:
    segment, head = filled(tmp_path, commits=1), '{"note":"größer"}'.encode()
    written = struct.pack("<BIQ", RecordKind.PUSH, len(head), 4) + head + b"body"
    with segment.open("ab") as file:
        file.write(b"".join(frame([written])))
    assert read_again(tmp_path)[-1] == Record(RecordKind.PUSH, {"note": "größer"}, b"body")


def test_what_was_not_committed_is_not_durable(tmp_path: Path) -> None:
    log, _ = opened(tmp_path)
    first, second = log.append(push(0)), log.append(push(1))
    assert log.durable < first
    log.commit()
    assert log.durable == second
    assert log.append(push(2)) > log.durable
    log.close()
    assert read_again(tmp_path) == [STATE, push(0), push(1)]


def test_a_record_is_durable_once_it_is_synced_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = opened(tmp_path)
    disk = DiskRecord(tmp_path, monkeypatch)
    position = log.append(push(0))
    while_syncing: list[int] = []
    disk.during_sync = lambda _name: while_syncing.append(log.durable)
    log.commit(position)
    assert disk.steps == ["sync 00000001.wal"]
    assert disk.synced["00000001.wal"] == (tmp_path / "00000001.wal").read_bytes()
    assert push(0).body in disk.synced["00000001.wal"]
    assert [durable < position for durable in while_syncing] == [True]
    assert log.durable == position


def test_a_record_that_comes_during_a_sync_waits_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = opened(tmp_path)
    disk = DiskRecord(tmp_path, monkeypatch)
    first = log.append(push(0))
    meanwhile: list[int] = []

    def append_meanwhile(_name: str) -> None:
        if not meanwhile:
            meanwhile.append(log.append(push(1)))

    disk.during_sync = append_meanwhile
    log.commit(first)
    assert log.durable == first < meanwhile[0]
    assert push(1).body not in disk.synced["00000001.wal"]
    log.commit(meanwhile[0])
    assert log.durable == meanwhile[0]
    assert push(1).body in disk.synced["00000001.wal"]


def test_a_record_that_comes_the_moment_that_a_commit_has_taken_the_others_waits_for_the_next_one(
    tmp_path: Path,
) -> None:
    log, _ = opened(tmp_path)
    first = log.append(push(0))
    queue_lock, meanwhile = log._queue_lock, list[int]()

    class LetsOneIn:
        def __enter__(self) -> None:
            queue_lock.acquire()

        def __exit__(self, *_: object) -> None:
            queue_lock.release()
            log._queue_lock = queue_lock
            meanwhile.append(log.append(push(1)))

    log._queue_lock = LetsOneIn()  # type: ignore[assignment]
    log.commit(first)
    assert log.durable == first < meanwhile[0]
    log.close()
    assert read_again(tmp_path) == [STATE, push(0)]


def test_one_commit_makes_all_durable_that_was_appended_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = opened(tmp_path)
    disk = DiskRecord(tmp_path, monkeypatch)
    first, second = log.append(push(0)), log.append(push(1))
    log.commit(first)
    assert log.durable == second
    log.commit(second)
    assert disk.steps == ["sync 00000001.wal"]


def test_what_is_on_disk_is_not_written_or_synced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway commits many times a second, also while nothing arrives."""
    log, _ = opened(tmp_path)
    position = log.append(push(0))
    log.commit()
    disk = DiskRecord(tmp_path, monkeypatch)
    before = log.segment_bytes
    log.commit()
    log.commit(position)
    assert (disk.steps, log.segment_bytes) == ([], before)


def test_a_segment_is_synced_before_it_has_its_name_and_its_name_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = opened(tmp_path)
    disk = DiskRecord(tmp_path, monkeypatch)
    log.roll(Record(RecordKind.STATE, {"state": 1}))
    assert disk.steps == ["sync 00000002.wal.new", "rename 00000002.wal.new to 00000002.wal", "sync ."]
    assert disk.synced["00000002.wal.new"] == (tmp_path / "00000002.wal").read_bytes()


def test_a_cut_is_synced_before_anything_is_appended_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = filled(tmp_path)
    file.write_bytes(file.read_bytes()[:-1])
    disk = DiskRecord(tmp_path, monkeypatch)
    log, _ = opened(tmp_path)
    assert disk.steps == ["cut 00000001.wal", "sync 00000001.wal"]
    log.close()


def test_a_torn_tail_is_cut_off_wherever_it_tore(tmp_path: Path) -> None:
    file = filled(tmp_path / "whole")
    whole = file.read_bytes()
    last = len(whole) - (len(whole) - len(filled(tmp_path / "less", 2).read_bytes()))
    for cut in range(last, len(whole)):
        folder = tmp_path / f"cut{cut}"
        folder.mkdir()
        (folder / file.name).write_bytes(whole[:cut])
        log, records = opened(folder)
        assert records == [STATE, push(0), push(1)]
        assert (folder / file.name).stat().st_size == last
        log.append(push(7))
        log.commit()
        log.close()
        assert read_again(folder) == [STATE, push(0), push(1), push(7)]


def test_a_tail_of_zeros_or_half_written_bytes_is_cut_off(tmp_path: Path) -> None:
    file = filled(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole + bytes(300))
    assert len(read_again(tmp_path)) == 4
    file.write_bytes(whole[:-50] + bytes(50))
    assert read_again(tmp_path) == [STATE, push(0), push(1)]


@pytest.mark.parametrize("where", ["magic", "length", "body"])
def test_damage_in_the_middle_names_file_and_offset(tmp_path: Path, where: str) -> None:
    start = len(filled(tmp_path / "one", 1).read_bytes())
    file = filled(tmp_path / "three")
    data = bytearray(file.read_bytes())
    data[start + {"magic": 0, "length": 9, "body": HEADER_BYTES + 5}[where]] ^= 0x10
    file.write_bytes(data)
    with pytest.raises(EnvironmentFailed, match=rf"00000001\.wal is damaged at byte {start}"):
        opened(tmp_path / "three")


def test_segments_follow_each_other_and_old_ones_go(tmp_path: Path) -> None:
    log, _ = opened(tmp_path)
    roll_on(log, 3)
    assert log.segments == [1, 2, 3, 4]
    log.drop_through(2)
    log.drop_through(0)
    assert log.segments == [3, 4]
    log.drop_through(99)
    assert log.segments == [4]
    log.close()
    assert read_again(tmp_path) == [Record(RecordKind.STATE, {"state": 3})]


def test_a_crash_while_a_segment_begins_leaves_the_last_one_in_charge(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "00000002.wal.new").write_bytes(b"half a st")
    log, records = opened(tmp_path)
    assert len(records) == 4
    assert not list(tmp_path.glob("*.new"))
    log.roll(Record(RecordKind.STATE, {"state": 1}))
    assert log.segment == 2


def test_a_missing_or_cut_segment_in_the_middle_is_damage(tmp_path: Path) -> None:
    log, _ = opened(tmp_path)
    roll_on(log, 2)
    log.close()
    middle = tmp_path / "00000002.wal"
    whole = middle.read_bytes()
    middle.write_bytes(whole[:-1])
    with pytest.raises(EnvironmentFailed, match=r"00000002\.wal is damaged at byte"):
        opened(tmp_path)
    middle.unlink()
    with pytest.raises(EnvironmentFailed, match=r"lacks its segment 00000002\.wal"):
        opened(tmp_path)


@pytest.mark.parametrize("left", [b"", b"".join(frame(push(0).encoded()))], ids=["nothing", "no state"])
def test_a_segment_without_the_state_that_it_began_with_is_damage(tmp_path: Path, left: bytes) -> None:
    """What the segments before it held may be gone: all that was known then is in the state."""
    file = filled(tmp_path)
    file.write_bytes(left)
    with pytest.raises(EnvironmentFailed, match=rf"00000001\.wal is damaged at byte {len(left)}"):
        opened(tmp_path)


def test_a_segment_counts_what_it_held_before_a_restart(tmp_path: Path) -> None:
    """Its owner rolls on when it is large; a gateway that often starts again would never do so."""
    log, _ = opened(tmp_path)
    for life in range(3):
        log.append(push(life))
        log.commit()
        assert log.segment_bytes == (tmp_path / "00000001.wal").stat().st_size
        log.close()
        log, _ = opened(tmp_path)
    log.roll(STATE)
    assert log.segment_bytes == (tmp_path / "00000002.wal").stat().st_size


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    log, _ = opened(tmp_path)
    with pytest.raises(EnvironmentFailed, match="in use by another process"):
        Log(tmp_path)
    log.close()
    opened(tmp_path)


def test_a_log_whose_reader_fails_lets_go_of_its_folder(tmp_path: Path) -> None:
    filled(tmp_path)

    def fails(_segment: int, _record: Record) -> None:
        raise ValueError("not what was expected")

    failed = Log(tmp_path)
    with pytest.raises(ValueError, match="not what was expected"):
        failed.recover(fails)
    assert len(read_again(tmp_path)) == 4


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EnvironmentFailed, match="cannot be used"):
        Log(tmp_path / "file" / "log")


def test_many_threads_share_their_commits(tmp_path: Path) -> None:
    log, _ = opened(tmp_path)
    start = Barrier(8)

    def work(first: int) -> None:
        start.wait()
        for number in range(first, first + 20):
            position = log.append(push(number))
            log.commit(position)
            assert log.durable >= position

    threads = [Thread(target=work, args=(20 * index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    records = read_again(tmp_path)
    assert sorted(record.head["n"] for record in records[1:]) == list(range(160))


def test_a_log_that_failed_once_does_not_go_on(tmp_path: Path) -> None:
    log, _ = opened(tmp_path)
    position = log.append(push(0))
    log.close()
    with pytest.raises(EnvironmentFailed, match="Restart"):
        log.commit(position)
    assert log.durable < position


def test_a_segment_begins_only_with_a_state_and_an_empty_queue(tmp_path: Path) -> None:
    log, _ = opened(tmp_path)
    with pytest.raises(BrokenInvariant):
        log.roll(push(0))
    log.append(push(0))
    with pytest.raises(BrokenInvariant):
        log.roll(STATE)


def test_a_disk_that_takes_only_half_a_commit_stops_the_log_but_harms_nothing(tmp_path: Path) -> None:
    log, _ = opened(tmp_path)
    log.append(push(1))
    log.commit()
    log.append(push(2))
    position = log.append(push(3))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.segment_bytes + 150, before[1]))
    try:
        with pytest.raises(EnvironmentFailed, match="cannot be written"):
            log.commit()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert log.durable < position
    with pytest.raises(EnvironmentFailed, match="has failed before"):
        log.commit()
    log.close()
    assert (tmp_path / "00000001.wal").stat().st_size > len(filled(tmp_path / "one", 1).read_bytes())
    assert read_again(tmp_path) == [STATE, push(1)]


def test_a_system_that_writes_less_than_it_was_given_gets_the_rest_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = opened(tmp_path)
    for number in range(3):
        log.append(push(number))
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", lambda file, pieces: write(file, b"".join(pieces)[:130]))
        patch.setattr(os, "write", lambda file, rest: write(file, rest[:7]))
        log.commit()
    assert log.segment_bytes == (tmp_path / "00000001.wal").stat().st_size
    log.close()
    assert read_again(tmp_path) == [STATE, push(0), push(1), push(2)]


def test_more_records_than_one_system_call_takes_are_one_commit(tmp_path: Path) -> None:
    log, _ = opened(tmp_path)
    for number in range(3_000):
        log.append(push(number))
    log.commit()
    log.close()
    assert read_again(tmp_path) == [STATE, *(push(number) for number in range(3_000))]
