"""What a process notes down of the copies it holds, and that the judge can put it together again."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.view import Seat, Seats, Status, View
from understudy.engine.interface import Snapshot
from understudy.engine.segments import SINK_PREFIX
from understudy.history import evidence
from understudy.history.judging import judge
from understudy.history.reading import records_of
from understudy.history.records import (
    ArrivedRecord,
    DeliveredRecord,
    HandedRecord,
    InstalledRecord,
    ProducedRecord,
    Record,
    SealedRecord,
    SenderRecord,
    SnapshotRecord,
    SuspectedRecord,
    ViewRecord,
    parts_of,
)
from understudy.history.verdict import Verdict
from understudy.runtime import recording
from understudy.runtime.payload import decode, encode
from understudy.runtime.recording import RunRecorder, shown
from understudy.runtime.settings import RunSettings

PACKETS = Copy(Partition("packets"))
SESSIONS = [Copy(Partition("sessions", index)) for index in (0, 1)]
STATS = Partition(f"{SINK_PREFIX}stats")
SEATS = Seats(1, (Seat("n1", 1, Status.ACTIVE), Seat("n2", 1, Status.ACTIVE)))


def settings(folder: Path, *, history: bool = True) -> RunSettings:
    return RunSettings("run", "flow.py", str(folder), "localhost:1", history=history)


def table(*values: int, share: float = 0.5) -> pa.Table:
    return pa.table({"v": list(values), "share": [share] * len(values)})


def bucket(number: int, tables: Mapping[str, pa.Table]) -> Bucket:
    payload = encode(tables)
    return Bucket(number, payload, len(payload))


def together(number: int, parts: Mapping[Partition, Bucket]) -> Bucket:
    """What the merge hands out: one bucket with the parts of several producers."""
    return Bucket(number, tuple((partition, part.payload) for partition, part in parts.items()), 1)


def written(folder: Path, process: str) -> list[Record]:
    return list(records_of(settings(folder).history_file(process)))


def test_every_copy_has_its_own_place_in_its_input(tmp_path: Path) -> None:
    recorder = RunRecorder(settings(tmp_path), "flow", "n1")
    recorder.handed_to(SESSIONS[0], [bucket(1, {"a": table(1)}), Bucket(4)])
    recorder.handed_to(SESSIONS[1], [together(2, {PACKETS.partition: bucket(2, {"a": table(1)})})])
    recorder.installed_in(SESSIONS[1], 7, 3)
    recorder.handed_to(SESSIONS[0], [Bucket(6)])
    recorder.handed_to(SESSIONS[1], [Bucket(6)])
    recorder.close()
    first, second = map(str, SESSIONS)
    facts = [
        (each.of, each.after, each.through, each.numbers)
        for each in written(tmp_path, "n1")
        if isinstance(each, HandedRecord)
    ]
    assert facts == [
        (first, NOTHING, 4, (1,)),
        (second, NOTHING, 2, (2,)),
        (first, 4, 6, ()),
        (second, 3, 6, ()),
    ]


def test_a_delivered_bucket_shows_the_digests_that_its_producers_noted_down(tmp_path: Path) -> None:
    recorder = RunRecorder(settings(tmp_path), "flow", "n1")
    parts = {
        Partition("stats", 10): bucket(3, {"stats": table(1, 2)}),
        Partition("stats", 2): bucket(3, {"stats": table(3)}),
        Partition("both", 0): bucket(3, {"x": table(4), "y": table(5)}),
        Partition("stats", 3): bucket(3, {"stats": table()}),
    }
    for partition, part in parts.items():
        recorder.produced_for(Copy(partition, 1), STATS, [Bucket(2), part])
    recorder.close()
    made = {
        each.of.removesuffix(":1"): each.digest
        for each in written(tmp_path, "n1")
        if isinstance(each, ProducedRecord) and each.to == "sink:stats/0" and each.rows
    }
    number, rows, text = shown(together(3, parts))
    assert (number, rows) == (3, 5)
    assert [name for name, _ in parts_of(text)] == ["both/0", "stats/2", "stats/10"]
    assert dict(parts_of(text)) == made


def test_different_rows_show_and_the_last_digits_of_floats_do_not() -> None:
    def text(stats: pa.Table) -> str:
        return shown(together(3, {Partition("stats"): bucket(3, {"stats": stats})}))[2]

    assert text(table(1, 2)) == text(table(1, 2, share=0.5000001))
    assert text(table(1, 2)) != text(table(2, 1))
    assert shown(together(3, {Partition("stats"): bucket(3, {"stats": table()})})) == (3, 0, "")


def test_the_judge_and_the_runtime_call_sinks_alike() -> None:
    assert evidence.SINK == SINK_PREFIX


def test_views_states_senders_and_arrivals_name_partitions_and_copies(tmp_path: Path) -> None:
    recorder = RunRecorder(settings(tmp_path), "flow", "gateway")
    view = View(1, {copy.partition: SEATS for copy in SESSIONS})
    recorder.view(view)
    recorder.view(view)
    recorder.snapshot_of(SESSIONS[0], 5, Snapshot(tmp_path, "d", 8, 7, 900), 40)
    recorder.installed_in(SESSIONS[1], 5, 8)
    recorder.arrived(Partition("stats", 1), [bucket(3, {"stats": table(1, 2)}), Bucket(4)])
    recorder.arrived(Partition("stats", 1), [])
    recorder.sender(Copy(Partition("stats", 1), 1))
    recorder.suspected("n2")
    recorder.close()
    viewed, snapshot, installed, arrived, sender, suspected = written(tmp_path, "gateway")
    assert isinstance(viewed, ViewRecord)
    assert viewed.seats == tuple(
        (f"sessions/{index}:{replica}", node, 1, "ACTIVE")
        for index in (0, 1)
        for replica, node in enumerate(("n1", "n2"))
    )
    assert isinstance(snapshot, SnapshotRecord)
    assert (snapshot.of, snapshot.through, snapshot.bytes) == ("sessions/0:0", 8, 900)
    assert isinstance(installed, InstalledRecord)
    assert (installed.of, installed.through) == ("sessions/1:0", 8)
    assert isinstance(arrived, ArrivedRecord)
    assert (arrived.partition, arrived.through, arrived.rows) == ("stats/1", 4, 2)
    assert isinstance(sender, SenderRecord)
    assert sender.copy == "stats/1:1"
    assert isinstance(suspected, SuspectedRecord)
    assert suspected.node == "n2"


def test_only_a_bucket_with_rows_is_recorded_as_sealed(tmp_path: Path) -> None:
    recorder = RunRecorder(settings(tmp_path), "flow", "gateway")
    for source, number, rows in (("packets", 1, 0), ("packets", 2, 7), ("names", 1, 1)):
        recorder.sealed(source, number, rows)
    recorder.close()
    records = written(tmp_path, "gateway")
    assert [(each.source, each.number, each.rows) for each in records if isinstance(each, SealedRecord)] == [
        ("packets", 2, 7),
        ("names", 1, 1),
    ]


def test_a_restarted_process_does_not_record_views_and_deliveries_to_any_sink_again(tmp_path: Path) -> None:
    for _ in range(2):
        recorder = RunRecorder(settings(tmp_path), "flow", "gateway")
        recorder.view(View(1, {Partition("a"): SEATS}))
        for sink, through in (("stats", 4), ("counts", 3)):
            recorder.delivered_before(sink, NOTHING, through, [])
        recorder.close()
    recorder = RunRecorder(settings(tmp_path), "flow", "gateway")
    recorder.delivered_before("stats", 4, 5, [])
    recorder.delivered_before("other", NOTHING, 2, [])
    recorder.close()
    facts = [
        (each.sink, each.through) if isinstance(each, DeliveredRecord) else each.kind
        for each in written(tmp_path, "gateway")
    ]
    # The view waits for the writing thread, deliveries do not.
    assert sorted(facts, key=str) == [("counts", 3), ("other", 2), ("stats", 4), ("stats", 5), "view"]
    assert judge(settings(tmp_path).history_file("gateway")).findings == []


def test_a_delivery_is_on_record_before_its_caller_goes_on(tmp_path: Path) -> None:
    recorder = RunRecorder(settings(tmp_path), "flow", "gateway")
    for through in range(100):
        recorder.delivered("stats", through - 1, through, [])
        last = written(tmp_path, "gateway")[-1]
        assert isinstance(last, DeliveredRecord)
        assert (last.sink, last.through) == ("stats", through)
    recorder.close()


def recorded_run(folder: Path, made: Mapping[str, Mapping[Partition, Bucket]]) -> Verdict:
    """The verdict on a run of one bucket: what each of two nodes made of it. The first one's is delivered."""
    shares = [bucket(1, {"packets": table(*values)}) for values in ((1, 2), (3,))]
    gateway = RunRecorder(settings(folder), "flow", "gateway")
    gateway.view(View(1, {copy.partition: SEATS for copy in SESSIONS}))
    gateway.sealed("packets", 1, 3)
    for copy, share in zip(SESSIONS, shares, strict=True):
        gateway.produced_for(PACKETS, copy.partition, [share])
    for replica, (process, parts) in enumerate(made.items()):
        node = RunRecorder(settings(folder), "flow", process)
        for (partition, part), share in zip(parts.items(), shares, strict=True):
            node.handed_to(Copy(partition, replica), [together(1, {PACKETS.partition: share})])
            node.produced_for(Copy(partition, replica), STATS, [part])
        node.ended()
    gateway.delivered("stats", NOTHING, 1, [shown(together(1, next(iter(made.values()))))])
    gateway.ended()
    return judge((folder / "history").glob("*.jsonl"))


def parts_of_bucket(*more: int, share: float = 0.5) -> dict[Partition, Bucket]:
    """What two partitions make of bucket 1; the second one perhaps more rows."""
    tables = (table(0, share=share), table(1, *more, share=share))
    return {
        copy.partition: bucket(1, {"sessions": rows}) for copy, rows in zip(SESSIONS, tables, strict=True)
    }


def test_what_was_recorded_of_a_partitioned_run_is_judged_clean(tmp_path: Path) -> None:
    verdict = recorded_run(tmp_path, {"n1": parts_of_bucket(), "n2": parts_of_bucket()})
    assert verdict.findings == []
    assert verdict.clean
    assert (verdict.sealed, verdict.delivered, verdict.partitions, verdict.copies) == (1, 1, 2, 4)


def test_what_was_recorded_of_an_upgraded_run_is_judged_clean(tmp_path: Path) -> None:
    """Version 2 begins with the state after bucket 1, and delivers bucket 2."""
    copy = SESSIONS[0]
    ends = (PACKETS.partition.name, STATS.name)
    inputs = {number: bucket(number, {"packets": table(number)}) for number in (1, 2)}
    gateway = RunRecorder(settings(tmp_path), "flow", "gateway", ends=ends)
    for number in inputs:
        gateway.sealed("packets", number, 1)
    for recorder, fed in ((gateway, (1, 2)), (gateway.of_version(2), (2,))):
        recorder.view(View(1, {copy.partition: SEATS}))
        recorder.produced_for(PACKETS, copy.partition, [inputs[number] for number in fed])
    for version, taken in ((1, (1, 2)), (2, (2,))):
        node = RunRecorder(settings(tmp_path), "flow", f"n{version}", version=version, ends=ends)
        if version == 2:
            node.installed_in(copy, 1, 1)
        made = {number: bucket(number, {"sessions": table(number, version)}) for number in taken}
        node.handed_to(copy, [inputs[number] for number in taken])
        node.produced_for(copy, STATS, list(made.values()))
        node.ended()
        # Each version delivers the bucket of its own number.
        whole = shown(together(version, {copy.partition: made[version]}))
        gateway.delivered("stats", NOTHING if version == 1 else 1, version, [whole], version)
    gateway.ended()
    verdict = judge((tmp_path / "history").glob("*.jsonl"))
    assert verdict.findings == []
    assert (verdict.sealed, verdict.delivered, verdict.partitions, verdict.copies) == (2, 2, 2, 4)
    names = [each.of for each in written(tmp_path, "n2") if isinstance(each, ProducedRecord)]
    assert names == ["sessions@2/0:0"]


def test_last_digits_of_floats_are_not_held_against_replicas_and_the_verdict_says_so(tmp_path: Path) -> None:
    verdict = recorded_run(tmp_path, {"n1": parts_of_bucket(), "n2": parts_of_bucket(share=0.5000000001)})
    assert verdict.findings == []
    assert verdict.left_out == {"packets": ("share",), "sessions": ("share",)}


def test_a_row_more_that_a_predicate_on_a_float_let_through_is_noticed(tmp_path: Path) -> None:
    verdict = recorded_run(tmp_path, {"n1": parts_of_bucket(), "n2": parts_of_bucket(1)})
    assert [finding.invariant for finding in verdict.findings] == ["replicas-agree"]
    assert "1 and 2 of them" in verdict.findings[0].what


def test_without_a_history_nothing_is_computed_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def computed(*_: object, **__: object) -> None:
        raise AssertionError("a payload was looked into")

    monkeypatch.setattr(recording, "decode", computed)
    monkeypatch.setattr(recording, "rows_and_digest", computed)
    recorder = RunRecorder(settings(tmp_path, history=False), "flow", "n1")
    made = bucket(1, {"a": table(1)})
    recorder.sealed("packets", 1, 1)
    recorder.handed_to(SESSIONS[0], [made])
    recorder.produced_for(SESSIONS[0], STATS, [made])
    recorder.delivered("stats", NOTHING, 1, [])
    recorder.delivered_before("stats", 1, 2, [])
    recorder.view(View(1, {Partition("a"): SEATS}))
    recorder.sender(SESSIONS[0])
    recorder.of_version(2).sender(SESSIONS[0])
    recorder.arrived(Partition("sessions"), [made])
    recorder.installed_in(SESSIONS[0], 1, 1)
    recorder.ended()
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_is_looked_into_by_the_writing_thread_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: set[str] = set()

    def decoded(payload: bytes) -> dict[str, pa.Table]:
        looked.add(threading.current_thread().name)
        return decode(payload)

    monkeypatch.setattr(recording, "decode", decoded)
    recorder = RunRecorder(settings(tmp_path), "flow", "n1")
    made = bucket(1, {"a": table(1)})
    recorder.sealed("packets", 1, 1)
    recorder.produced_for(PACKETS, SESSIONS[0].partition, [made])
    recorder.produced_for(SESSIONS[0], STATS, [made])
    recorder.arrived(Partition("sessions"), [made])
    recorder.close()
    kinds = [each.kind for each in written(tmp_path, "n1")]
    assert kinds == ["sealed", "left-out", "produced", "produced", "arrived"]
    assert looked == {"history"}
