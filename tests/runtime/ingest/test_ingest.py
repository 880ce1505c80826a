"""The ingest as its callers see it: repeats, commits, trims, ends, changed flows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import understudy as us
from understudy.core.bucket import NOTHING
from understudy.core.errors import BrokenInvariant
from understudy.runtime.ingest.buckets import SealedBucket, end_bucket
from understudy.runtime.ingest.clients import READER, Clients, LastPush
from understudy.runtime.ingest.frames import Record, RecordKind
from understudy.runtime.ingest.ingest import Ingest
from understudy.runtime.ingest.log import Log
from understudy.runtime.ingest.rows import to_table

WIDTH_US = 100_000
END = end_bucket(WIDTH_US)


def make_flow(*names: str, idle: str | None = None, schema: str = "id int, ts timestamp") -> us.Flow:
    flow = us.Flow("f", bucket="100 ms")
    for name in names or ("s",):
        flow.source(name, us.Push(schema), time="ts", idle=idle)
    return flow


def rows(flow: us.Flow, *buckets: int, source: str = "s") -> pa.Table:
    return to_table(flow.sources[source], [{"id": n, "ts": n * WIDTH_US} for n in buckets])


def opened(flow: us.Flow, folder: Path, **options: int) -> Ingest:
    ingest = Ingest(flow, folder, sync=False, **options)
    ingest.recover()
    return ingest


def listen(ingest: Ingest, from_us: int, to_us: int) -> None:
    for now_us in (*range(from_us, to_us, 20_000), to_us):
        ingest.tick(now_us)


def done(ingest: Ingest, source: str, through: int) -> None:
    """Neither a live copy nor a saved snapshot needs these."""
    ingest.trim(source, through)
    ingest.forget(source, through)


def numbers(buckets: list[SealedBucket], source: str = "s") -> list[int]:
    return [bucket.number for bucket in buckets if bucket.source == source]


def ids(*buckets: SealedBucket) -> list[int]:
    return [n for each in buckets if each.table is not None for n in each.table.column("id").to_pylist()]


def test_a_bucket_goes_out_only_after_its_rows_are_committed(tmp_path: Path) -> None:
    flow = make_flow()
    ingest = opened(flow, tmp_path)
    ingest.push("s", rows(flow, 1, 2, 3), "c", 1, now_us=0)
    assert ingest.take() == []
    ingest.commit()
    one, two = ingest.take()
    assert (one.number, two.number) == (1, 2)
    assert ids(one) == [1]
    assert ingest.take() == []


def test_a_repeated_push_is_acknowledged_and_not_taken_again(tmp_path: Path) -> None:
    flow = make_flow()
    ingest = opened(flow, tmp_path)
    assert not ingest.push("s", rows(flow, 1), "c", 5, "here", now_us=0).duplicate
    assert ingest.push("s", rows(flow, 1), "c", 5, now_us=0).duplicate
    assert ingest.push("s", rows(flow, 1), "c", 4, now_us=0).duplicate
    assert not ingest.push("s", rows(flow, 1), "other", 5, now_us=0).duplicate
    ingest.commit()
    ingest.close()
    again = opened(flow, tmp_path)
    assert again.push("s", rows(flow, 1), "c", 5, now_us=0).duplicate
    assert again.last("s", "c") == LastPush(5, "here")
    assert again.last("s", "another client") is None
    again.close_source("s")
    again.commit()
    assert ids(*again.take()) == [1, 1]


def test_late_rows_are_reported(tmp_path: Path) -> None:
    flow = make_flow()
    ingest = opened(flow, tmp_path)
    ingest.push("s", rows(flow, 5), "c", 1, now_us=0)
    assert ingest.push("s", rows(flow, 3, 5), "c", 2, now_us=0).late == 1
    assert ingest.late("s") == 1


def test_rows_left_out_for_the_wall_clock_are_left_out_again_in_a_replay(tmp_path: Path) -> None:
    flow = us.Flow("f", bucket="100 ms")
    flow.source("s", us.Push("id int, ts timestamp"), time="ts", late="drop", ahead="1 s")
    ingest = opened(flow, tmp_path)
    table = rows(flow, 1, 15)
    assert ingest.push("s", table, "c", 1, now_us=100_000).late == 1
    assert ingest.push("s", table, "c", 2, now_us=600_000).late == 0
    ingest.close_source("s")
    ingest.commit()
    before = ingest.take()
    assert ids(*before) == [1, 1, 15]
    ingest.close()
    again = Ingest(flow, tmp_path, sync=False)
    assert (again.recover(), again.late("s")) == (before, 1)


def test_buckets_that_nothing_needs_do_not_come_back_and_their_segments_go(tmp_path: Path) -> None:
    flow = make_flow()
    ingest = opened(flow, tmp_path, segment_bytes=2_000)
    largest = 0
    for number in range(200):
        ingest.push("s", rows(flow, number), "c", number, now_us=0)
        ingest.commit()
        for bucket in ingest.take():
            done(ingest, "s", bucket.number - 3)
        largest = max(largest, ingest.log_bytes)
    # 200 pushes take far more; three needed buckets and two segments are all that is kept.
    assert largest < 15_000
    ingest.commit()
    ingest.close()
    assert numbers(Ingest(flow, tmp_path, sync=False).recover()) == [196, 197, 198]


def test_segments_go_only_after_that_they_may_is_itself_on_disk(tmp_path: Path) -> None:
    flow = make_flow()
    ingest = opened(flow, tmp_path, segment_bytes=1)
    position = ingest.push("s", rows(flow, 1, 2), "c", 1, now_us=0).position
    ingest.commit()
    done(ingest, "s", 1)
    ingest.commit(position)
    assert (tmp_path / "00000001.wal").exists()
    ingest.commit()
    assert not (tmp_path / "00000001.wal").exists()


def test_a_segment_stays_until_every_source_is_forgotten_past_it(tmp_path: Path) -> None:
    flow = make_flow("a", "b")
    ingest = opened(flow, tmp_path, segment_bytes=1)
    ingest.push("a", rows(flow, 1, 5, source="a"), "c", 1, now_us=0)
    ingest.push("b", rows(flow, 1, 7, 9, source="b"), "c", 1, now_us=0)
    ingest.commit()
    done(ingest, "a", 4)
    done(ingest, "b", 6)
    ingest.commit()
    assert (tmp_path / "00000001.wal").exists()
    ingest.close()
    again = Ingest(flow, tmp_path, segment_bytes=1, sync=False)
    assert [(each.source, each.number) for each in again.recover()] == [("b", 7), ("b", 8)]
    done(again, "b", 7)
    again.commit()
    assert not (tmp_path / "00000001.wal").exists()


def test_boundaries_go_on_where_they_were_after_old_segments_are_gone(tmp_path: Path) -> None:
    flow = make_flow()
    ingest = opened(flow, tmp_path, segment_bytes=1)
    ingest.push("s", rows(flow, 1), "c", 1, now_us=0)
    ingest.seal_through("s", 5)
    ingest.commit()
    assert numbers(ingest.take()) == [0, 1, 5]
    done(ingest, "s", 5)
    ingest.commit()
    assert not (tmp_path / "00000001.wal").exists()
    ingest.close()
    again = Ingest(flow, tmp_path, sync=False)
    assert again.recover() == []
    assert (again.sealed_through, again.last_rows) == ({"s": 5}, 1)
    again.seal_through("s", 9)
    again.commit()
    assert again.take() == [SealedBucket("s", 9, None)]


def test_untrimmed_buckets_come_back_as_they_were(tmp_path: Path) -> None:
    flow = make_flow("a", "b")
    ingest = opened(flow, tmp_path, segment_bytes=1_000)
    for number in range(40):
        for source in ("b", "a"):
            ingest.push(source, rows(flow, number, number, source=source), "c", number, now_us=0)
    ingest.commit()
    before = ingest.take()
    assert numbers(before, "a") == list(range(-1, 39))
    assert numbers(before, "b") == numbers(before, "a")
    ingest.close()
    assert Ingest(flow, tmp_path, sync=False).recover() == before


def test_no_source_waits_for_another(tmp_path: Path) -> None:
    flow = make_flow("quick", "silent")
    ingest = opened(flow, tmp_path)
    ingest.push("quick", rows(flow, 1, 2, 9, source="quick"), "c", 1, now_us=0)
    ingest.commit()
    assert numbers(ingest.take(), "quick") == [1, 2, 8]
    assert ingest.sealed_through == {"quick": 8, "silent": NOTHING}


def test_an_idle_source_without_rows_follows_the_others(tmp_path: Path) -> None:
    flow = make_flow("a", idle="1 s")
    flow.source("b", us.Push("id int, ts timestamp"), time="ts")
    ingest = opened(flow, tmp_path)
    ingest.push("b", rows(flow, 1, 2, 9, source="b"), "c", 1, now_us=10)
    listen(ingest, 0, 999_999)
    ingest.commit()
    assert numbers(ingest.take(), "a") == []
    ingest.tick(1_000_000)
    ingest.commit()
    assert numbers(ingest.take(), "a") == [8]
    ingest.push("a", rows(flow, 9, source="a"), "c", 1, now_us=1_100_000)
    ingest.push("b", rows(flow, 30, source="b"), "c", 2, now_us=1_100_000)
    listen(ingest, 1_100_000, 2_550_000)
    ingest.commit()
    taken = ingest.take()
    assert (numbers(taken, "a")[0], numbers(taken, "a")[-1]) == (9, 12)


def test_an_idle_source_without_rows_outlives_the_others(tmp_path: Path) -> None:
    flow = make_flow("a", idle="1 s")
    flow.source("b", us.Push("id int, ts timestamp"), time="ts")
    ingest = opened(flow, tmp_path)
    ingest.push("b", rows(flow, 1, 2, source="b"), "c", 1, now_us=10)
    ingest.close_source("b")
    listen(ingest, 0, 2_000_000)
    assert ingest.sealed_through == {"a": 2, "b": END}, "all of b can be used, and a is still open"
    assert not ingest.ended


def test_the_time_that_a_restart_takes_is_not_silence(tmp_path: Path) -> None:
    flow = make_flow(idle="1 s")
    ingest = opened(flow, tmp_path)
    ingest.push("s", rows(flow, 5), "c", 1, now_us=0)
    ingest.commit()
    ingest.close()
    again = opened(flow, tmp_path)
    listen(again, 60_000_000, 60_900_000)
    assert again.push("s", rows(flow, 5), "c", 2, now_us=60_500_000).late == 0


def test_a_closed_source_seals_through_the_end_and_refuses_more(tmp_path: Path) -> None:
    flow = make_flow()
    ingest = opened(flow, tmp_path)
    ingest.push("s", rows(flow, 1, 2), "c", 1, now_us=0)
    ingest.close_source("s")
    ingest.commit()
    assert numbers(ingest.take()) == [1, 2, END]
    assert ingest.ended
    with pytest.raises(us.RowError, match="was closed"):
        ingest.push("s", rows(flow, 3), "c", 2, now_us=0)
    assert ingest.push("s", rows(flow, 1, 2), "c", 1, now_us=0).duplicate
    ingest.close_source("s")
    ingest.commit()
    assert ingest.take() == []
    ingest.close()
    again = Ingest(flow, tmp_path, sync=False)
    assert numbers(again.recover()) == [1, 2, END]
    assert (again.last_rows, again.sealed_through) == (2, {"s": END})
    assert again.ended
    assert again.closed("s")


def test_a_source_that_ends_does_not_end_the_others(tmp_path: Path) -> None:
    flow = make_flow("a", "b")
    ingest = opened(flow, tmp_path)
    ingest.push("a", rows(flow, 7, source="a"), "c", 1, now_us=0)
    ingest.close_source("a")
    assert not ingest.ended
    ingest.push("b", rows(flow, 3, source="b"), "c", 1, now_us=0)
    ingest.close_source("b")
    assert (ingest.ended, ingest.last_rows) == (True, 7)


def test_a_source_that_ends_without_rows_is_no_trouble(tmp_path: Path) -> None:
    ingest = opened(make_flow(), tmp_path)
    ingest.close_source("s")
    ingest.commit()
    assert ingest.take() == [SealedBucket("s", END, None)]
    assert ingest.ended
    assert ingest.last_rows == NOTHING


def test_a_log_of_another_flow_is_refused(tmp_path: Path) -> None:
    opened(make_flow(), tmp_path).close()
    for changed, says in (
        (make_flow(schema="id bigint, ts timestamp"), "source 's'"),
        (make_flow("t"), "its sources"),
    ):
        ingest = Ingest(changed, tmp_path, sync=False)
        with pytest.raises(us.FlowError, match=says):
            ingest.recover()


@pytest.mark.parametrize("head", [{}, {"format": 3}], ids=["none", "counted boundaries"])
def test_a_log_of_another_format_is_refused(tmp_path: Path, head: dict[str, int]) -> None:
    log = Log(tmp_path)
    log.recover(lambda segment, record: None)
    log.roll(Record(RecordKind.STATE, {**head, "flow": {}, "sources": {}}))
    log.close()
    with pytest.raises(us.EnvironmentFailed, match="another version"):
        opened(make_flow(), tmp_path)


def test_misuse_is_a_broken_invariant_and_an_unknown_source_the_users(tmp_path: Path) -> None:
    flow = make_flow()
    ingest = Ingest(flow, tmp_path, sync=False)
    with pytest.raises(BrokenInvariant, match="before it was recovered"):
        ingest.push("s", rows(flow, 1), "c", 1, now_us=0)
    ingest.recover()
    with pytest.raises(us.FlowError, match=r"no source 'x'\. It has s"):
        ingest.push("x", rows(flow, 1), "c", 1, now_us=0)
    with pytest.raises(BrokenInvariant, match="without conversion"):
        ingest.push("s", pa.table({"id": [1]}), "c", 1, now_us=0)


def test_the_client_that_was_silent_longest_is_forgotten_first() -> None:
    clients = Clients(limit=2)
    for sequence, name in enumerate(["a", "b", "a", "c"]):
        clients.record("s", name, sequence, None)
    assert clients.last("s", "b") is None
    assert clients.is_repeat("s", "a", 2)


@pytest.mark.parametrize("begins_again", [False, True])
def test_a_feed_is_not_forgotten_however_long_it_is_silent(begins_again: bool) -> None:
    clients = Clients(limit=2)
    for source in ("files", "table"):
        clients.record(source, READER, 7, {"at": source})
    for sequence in range(10):
        clients.record("pushed", f"client-{sequence}", sequence, None)
        if begins_again:
            state, clients = clients.state(), Clients(limit=2)
            clients.restore(state)
    assert clients.state() == [
        ["files", READER, 7, {"at": "files"}],
        ["table", READER, 7, {"at": "table"}],
        ["pushed", "client-8", 8, None],
        ["pushed", "client-9", 9, None],
    ]
    assert clients.last("files", READER) == LastPush(7, {"at": "files"})


def test_a_log_that_is_gone_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    with pytest.raises(
        us.EnvironmentFailed, match=r"has no segment .* although the journals say so.*acknowledged"
    ):
        Ingest(make_flow(), tmp_path, sync=False).recover(begun="the journals say so")
    assert not list(tmp_path.glob("*.wal")), "the next start must notice as well"
    new = opened(make_flow(), tmp_path)
    assert not new.goes_on
    new.close()
    again = Ingest(make_flow(), tmp_path, sync=False)
    again.recover(begun="the journals say so")
    assert not again.goes_on, "killed before the first push"
    again.push("s", rows(make_flow(), 1), "c", 1, now_us=0)
    again.commit()
    again.close()
    last = opened(make_flow(), tmp_path)
    assert last.goes_on


def test_first_segments_that_were_removed_are_missed_and_those_that_were_dropped_are_not(
    tmp_path: Path,
) -> None:
    flow = make_flow("a", "b")
    ingest = opened(flow, tmp_path, segment_bytes=1)
    for number in range(1, 5):
        for source in ("a", "b"):
            ingest.push(source, rows(flow, number, source=source), "c", number, now_us=0)
            ingest.commit()
    done(ingest, "a", 3)
    ingest.commit()
    ingest.close()
    segments = sorted(tmp_path.glob("*.wal"))
    newest = segments.pop()
    kept = {file: file.read_bytes() for file in segments}
    for file in segments:
        file.unlink()
    with pytest.raises(
        us.EnvironmentFailed,
        match=rf"lacks the segments before {newest.name}.* 'b', up to bucket 3, cannot be rec",
    ):
        opened(flow, tmp_path)
    for file, content in kept.items():
        file.write_bytes(content)
    again = opened(flow, tmp_path, segment_bytes=1)
    done(again, "b", 3)
    again.commit()
    again.close()
    assert not segments[0].exists()
    opened(flow, tmp_path).close()
