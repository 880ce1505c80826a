"""The ends of a flow at the gateway: sources deal out, wait and are trimmed each on its own; sinks take in.

The boundary is the real one, on its own actor. The nodes are played by the test, parcel by parcel.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from boundary_kit import FAST, ROWS, SLOW, Gateway, gateway

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.edge.messages import Ack, Data
from understudy.core.host.parcels import Attach, Here, ParcelFrom, Say, Welcome
from understudy.core.shape.partition import Copy, Partition
from understudy.core.timers import TimerFired
from understudy.history.records import ProducedRecord, SenderRecord, SuspectedRecord, ViewRecord
from understudy.runtime.gateway import shares as module
from understudy.runtime.ingest.buckets import SealedBucket
from understudy.runtime.payload import decode, encode


def test_a_bucket_for_unsplit_segments_is_encoded_once(
    made: list[Gateway], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[int] = []
    monkeypatch.setattr(module, "encode", lambda tables: times.append(1) or encode(tables))
    gate = gateway(made, tmp_path)
    one, both = Copy(Partition("one")), Copy(Partition("both"))
    gate.connect()
    gate.attach(one, FAST)
    gate.attach(both, FAST)
    gate.sealed("fast", 5)
    assert [bucket.number for bucket in gate.data_for(one)] == [5]
    assert gate.data_for(one)[0] is gate.data_for(both)[0]
    assert len(times) == 1
    assert decode(gate.data_for(one)[0].payload)["fast"].equals(ROWS)  # type: ignore[arg-type]


def test_rows_are_dealt_out_to_the_partitions_of_a_split_segment(made: list[Gateway], tmp_path: Path) -> None:
    gate = gateway(made, tmp_path, "flux")
    gate.connect()
    parts = [Copy(Partition("one", index)) for index in range(2)]
    for part in parts:
        gate.attach(part, FAST)
    gate.sealed("fast", 5)
    got = [decode(b.payload)["fast"] for part in parts for b in gate.data_for(part) if not b.empty]  # type: ignore[arg-type]
    assert sorted(k for table in got for k in table["k"].to_pylist()) == [1, 2, 3, 4]
    assert [[bucket.number for bucket in gate.data_for(part)] for part in parts] == [[5], [5]]


def test_a_boundary_without_rows_reaches_every_reader(made: list[Gateway], tmp_path: Path) -> None:
    gate = gateway(made, tmp_path)
    both = Copy(Partition("both"))
    gate.connect()
    gate.attach(both, SLOW)
    gate.sealed("slow", 9, table=None)
    assert [(bucket.number, bucket.empty) for bucket in gate.data_for(both)] == [(9, True)]


def test_a_source_that_is_full_stops_no_other(made: list[Gateway], tmp_path: Path) -> None:
    gate = gateway(made, tmp_path, input_buckets_max=3)
    gate.sealed("fast", *range(5))
    assert gate.around.rooms == {"fast": False}
    gate.sealed("slow", 0)
    assert gate.around.rooms == {"fast": False}
    assert gate.boundary.status()["waiting_for_room"] == ["fast"]


def test_before_the_first_view_as_much_may_wait_as_a_source_keeps(
    made: list[Gateway], tmp_path: Path
) -> None:
    gate = gateway(made, tmp_path, seated=False, input_buckets_max=3)
    gate.sealed("fast", 0, 1)
    assert gate.around.rooms == {}
    gate.sealed("fast", 2)
    assert gate.around.rooms == {"fast": False}
    gate.tell(gate.first_view)
    one = Copy(Partition("one"))
    gate.connect()
    gate.attach(one, FAST)
    assert [bucket.number for bucket in gate.data_for(one)] == [0, 1, 2]


@pytest.mark.parametrize("shares_max", [3, 4])
def test_before_the_first_view_few_buckets_may_be_too_large_to_wait(
    made: list[Gateway], tmp_path: Path, shares_max: int
) -> None:
    bytes_max = shares_max * len(encode({"fast": ROWS}))
    gate = gateway(made, tmp_path, seated=False, input_bytes_max=bytes_max)
    gate.sealed("slow", *range(9), table=None)
    gate.sealed("fast", 0)
    assert gate.around.rooms == {}
    gate.sealed("fast", 1)
    assert gate.around.rooms == {"fast": False}, "each bucket waits for two readers"


def test_room_comes_back_when_every_reader_has_what_was_kept(made: list[Gateway], tmp_path: Path) -> None:
    gate = gateway(made, tmp_path, input_buckets_max=3)
    one, both = Copy(Partition("one")), Copy(Partition("both"))
    gate.connect()
    gate.attach(one, FAST)
    gate.attach(both, FAST)
    gate.sealed("fast", *range(3))
    gate.sealed("fast", 3, 4)
    assert gate.around.rooms == {"fast": False}
    gate.say(one, FAST, Ack(2))
    assert gate.around.rooms == {"fast": False}
    assert "fast" not in gate.around.trimmed
    gate.say(both, FAST, Ack(2))
    assert gate.around.rooms == {"fast": True}
    assert gate.around.trimmed == {"fast": 2}
    assert [bucket.number for bucket in gate.data_for(one)] == [0, 1, 2, 3, 4]


def test_room_comes_back_to_a_source_that_is_full_with_nothing_waiting(
    made: list[Gateway], tmp_path: Path
) -> None:
    gate = gateway(made, tmp_path, input_buckets_max=3)
    both = Copy(Partition("both"))
    gate.connect()
    gate.attach(both, SLOW)
    gate.sealed("slow", *range(3))
    assert gate.around.rooms == {"slow": False}
    gate.say(both, SLOW, Ack(0))
    assert gate.around.rooms == {"slow": True}


def test_what_the_log_kept_is_put_in_again_after_a_restart(made: list[Gateway], tmp_path: Path) -> None:
    kept = [SealedBucket("fast", n, ROWS) for n in (7, 8)]
    gate = gateway(made, tmp_path, recovered=kept)
    one = Copy(Partition("one"))
    gate.connect()
    gate.sealed("fast", 9)
    gate.attach(one, FAST, through=7)
    assert [bucket.number for bucket in gate.data_for(one)] == [8, 9]


def welcomed(gate: Gateway, producer: Copy, sink: Copy, node: str = "n") -> None:
    """The node's copy has its state, and answers the sink that attaches."""
    gate.tell(ParcelFrom(node, 1, Here(producer, 1)))
    attach = next(
        p for _, p in reversed(gate.sent) if isinstance(p, Attach) and p.sender == sink and p.to == producer
    )
    gate.tell(ParcelFrom(node, 1, Welcome(producer, sink, attach.serial, NOTHING)))


def brought(gate: Gateway, producer: Copy, sink: Copy, *numbers: BucketId) -> None:
    serial = next(
        p.serial
        for _, p in reversed(gate.sent)
        if isinstance(p, Attach) and (p.sender, p.to) == (sink, producer)
    )
    run = tuple(Bucket(n, encode({producer.partition.name: ROWS}), 10) for n in numbers)
    gate.tell(ParcelFrom("n", 1, Say(producer, sink, serial, Data(run))))


def acks_for(gate: Gateway, producer: Copy) -> list[BucketId]:
    said = [p.message for _, p in gate.sent if isinstance(p, Say) and p.to == producer]
    return [message.through for message in said if isinstance(message, Ack)]


def test_a_sink_acknowledges_what_it_holds_and_not_what_it_got(made: list[Gateway], tmp_path: Path) -> None:
    gate = gateway(made, tmp_path)
    one, sink = Copy(Partition("one")), Copy(Partition("sink:first"))
    gate.connect()
    welcomed(gate, one, sink)
    brought(gate, one, sink, 3, 4)
    assert gate.around.delivered == [("first", (3, 4))]
    assert acks_for(gate, one) == []
    gate.holds("first", 3)
    assert acks_for(gate, one) == []
    gate.holds("first", 4)
    assert acks_for(gate, one) == [4]


def test_a_sink_waits_for_no_other(made: list[Gateway], tmp_path: Path) -> None:
    gate = gateway(made, tmp_path)
    one, both = Copy(Partition("one")), Copy(Partition("both"))
    gate.connect()
    welcomed(gate, one, Copy(Partition("sink:first")))
    welcomed(gate, both, Copy(Partition("sink:second")))
    brought(gate, both, Copy(Partition("sink:second")), 1)
    brought(gate, one, Copy(Partition("sink:first")), 1)
    gate.holds("first", 1)
    brought(gate, one, Copy(Partition("sink:first")), 2)
    assert gate.around.delivered == [("second", (1,)), ("first", (1,)), ("first", (2,))]


def test_it_runs_when_every_partition_that_feeds_a_sink_sends(made: list[Gateway], tmp_path: Path) -> None:
    gate = gateway(made, tmp_path)
    gate.connect()
    welcomed(gate, Copy(Partition("one")), Copy(Partition("sink:first")))
    assert not gate.boundary.running
    welcomed(gate, Copy(Partition("both")), Copy(Partition("sink:second")))
    assert gate.boundary.running
    assert gate.boundary.status()["senders"] == {"one/0": 0, "both/0": 0}


def test_the_status_names_the_senders_of_a_pair_also_after_a_broken_connection(
    made: list[Gateway], tmp_path: Path
) -> None:
    gate = gateway(made, tmp_path, "pair")
    one, sink = Partition("one"), Copy(Partition("sink:first"))
    gate.connect("n")
    gate.connect("m")
    welcomed(gate, Copy(one, 0), sink, "n")
    welcomed(gate, Copy(one, 1), sink, "m")
    assert gate.boundary.status()["senders"]["one/0"] == 0
    gate.actor.ask(lambda: gate.boundary.peer_down("n", 1))
    assert gate.boundary.status()["senders"]["one/0"] == 1


def test_views_and_what_left_a_source_are_on_record(made: list[Gateway], tmp_path: Path) -> None:
    gate = gateway(made, tmp_path, history=True)
    gate.sealed("fast", 5)
    assert [record.epoch for record in gate.recorded(ViewRecord)] == [1]
    produced = [(r.of, r.to, r.number, r.rows) for r in gate.recorded(ProducedRecord)]
    assert sorted(produced) == [("fast/0:0", "both/0", 5, 4), ("fast/0:0", "one/0", 5, 4)]


def test_a_sender_is_on_record_once_until_another_takes_over(made: list[Gateway], tmp_path: Path) -> None:
    gate = gateway(made, tmp_path, "pair", history=True)
    one, sink = Partition("one"), Copy(Partition("sink:first"))
    gate.connect("n")
    gate.connect("m")
    welcomed(gate, Copy(one, 0), sink, "n")
    welcomed(gate, Copy(one, 1), sink, "m")
    gate.actor.ask(lambda: gate.boundary.peer_down("n", 1))
    assert [record.copy for record in gate.recorded(SenderRecord)] == ["one/0:0", "one/0:1"]


@pytest.mark.parametrize(("sure", "nodes"), [(True, {"n"}), (False, set())])
def test_only_a_suspicion_that_was_reported_is_on_record(
    made: list[Gateway], tmp_path: Path, sure: bool, nodes: set[str]
) -> None:
    gate = gateway(made, tmp_path, "pair", history=True)
    gate.around.sure = sure
    gate.connect("n")
    gate.actor.ask(lambda: gate.boundary.peer_down("n", 1))
    gate.tell(TimerFired(("absent", "n")))
    assert gate.around.reports
    assert {record.node for record in gate.recorded(SuspectedRecord)} == nodes
