"""Intake on a real log, with real clients over loopback: buckets source by source, and back pressure."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import understudy as us
from understudy.core.bucket import NOTHING, BucketId
from understudy.runtime.gateway import intake as module
from understudy.runtime.gateway.intake import Intake
from understudy.runtime.ingest.buckets import SealedBucket, end_bucket
from understudy.runtime.ingest.rows import to_stream, to_table
from understudy.runtime.transport.endpoint import Endpoint
from understudy.runtime.transport.wire import Frame

WIDTH_US = 100_000
PATIENCE_S = 30.0


def make_flow(**options: str) -> us.Flow:
    flow = us.Flow("f", bucket="100 ms")
    for name in ("a", "b"):
        flow.source(name, us.Push("id int, ts timestamp"), time="ts", **options)
    return flow


class Gate:
    """An intake behind a port, and what it sealed."""

    def __init__(self, flow: us.Flow, folder: Path) -> None:
        self.failures: list[BaseException] = []
        self.sealed: queue.Queue[SealedBucket] = queue.Queue()
        self.intake = Intake(flow, folder, self._on_sealed, self.failures.append)
        self.recovered = self.intake.recover()
        self.endpoint = Endpoint()
        self.endpoint.handle("push", self.intake.admit)
        self.endpoint.ready()
        self.intake.start()

    def _on_sealed(self, buckets: list[SealedBucket]) -> None:
        for bucket in buckets:
            self.sealed.put(bucket)

    def client(self) -> us.Client:
        return us.Client(self.endpoint.address, timeout_s=PATIENCE_S)

    def next(self) -> tuple[str, BucketId]:
        bucket = self.sealed.get(timeout=PATIENCE_S)
        return bucket.source, bucket.number

    def end(self) -> None:
        self.intake.end()
        self.endpoint.end()
        assert self.failures == []


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(make_flow(), tmp_path)
    yield gate
    gate.end()


def rows(*buckets: int) -> list[dict[str, int]]:
    return [{"id": number, "ts": number * WIDTH_US} for number in buckets]


def test_sources_seal_and_end_each_on_their_own(gate: Gate) -> None:
    end = end_bucket(WIDTH_US)
    with gate.client() as client:
        client.push("a", rows(5, 6))
        assert gate.next() == ("a", 5)
        client.close_source("a")
        assert [gate.next(), gate.next()] == [("a", 6), ("a", end)]
        assert (gate.intake.ended, gate.intake.last_bucket) == (False, None)
        assert gate.intake.sealed_through == {"a": end, "b": NOTHING}
        client.close_source("b")
        assert gate.next() == ("b", end)
    assert (gate.intake.ended, gate.intake.last_bucket) == (True, 6)
    assert gate.intake.rows_in == 2


def test_one_full_source_does_not_stop_another(gate: Gate) -> None:
    gate.intake.room("a", False)
    pushed = threading.Event()

    def push_to_the_full_source() -> None:
        with gate.client() as client:
            client.push("a", rows(1, 2))
            pushed.set()

    thread = threading.Thread(target=push_to_the_full_source)
    thread.start()
    with gate.client() as client:
        for number in range(10):
            client.push("b", rows(number))
    assert not pushed.is_set()
    assert gate.intake.sealed_through == {"a": NOTHING, "b": 8}
    gate.intake.room("a", True)
    assert pushed.wait(PATIENCE_S)
    thread.join()


def test_a_restarted_intake_hands_back_what_is_not_trimmed(tmp_path: Path) -> None:
    first = Gate(make_flow(), tmp_path)
    with first.client() as client:
        client.push("a", rows(1, 2, 3))
        client.push("b", rows(1, 2, 3))
    first.intake.trim("a", 1)
    first.end()
    second = Gate(make_flow(), tmp_path)
    assert [(each.source, each.number) for each in second.recovered] == [("a", 2), ("b", 1), ("b", 2)]
    second.end()


def pushed(gate: Gate, body: bytes) -> Frame:
    frame = Frame({"kind": "push", "source": "a", "sequence": 0}, (body,))
    answer = gate.intake.take_push("c", frame, lambda _source: True)
    assert answer is not None
    return answer


def test_the_log_keeps_the_bytes_that_a_client_sent(gate: Gate, tmp_path: Path) -> None:
    table = to_table(make_flow().sources["a"], rows(1, 2, 3))
    # Metadata shows whose bytes they are: rows that are encoded here have none.
    body = bytes(to_stream(table.replace_schema_metadata({"made by": "a client"})))
    assert pushed(gate, body).kind == "accepted"
    (log,) = (tmp_path / "log").glob("*.wal")
    assert body in log.read_bytes()


def test_bytes_that_are_no_rows_are_refused(gate: Gate) -> None:
    answer = pushed(gate, b"no rows")
    assert (answer.kind, answer.head["source"]) == ("refused", "a")


def test_rows_that_were_damaged_on_their_way_are_refused(gate: Gate) -> None:
    body = bytes(to_stream(to_table(make_flow().sources["a"], rows(1, 2, 3))))
    answer = pushed(gate, body[:-16])
    assert (answer.kind, answer.head["source"], answer.head["sequence"]) == ("refused", "a", 0)
    assert "no Arrow stream" in answer.head["why"]


def test_a_push_to_an_unknown_source_is_refused_with_its_name(gate: Gate) -> None:
    with gate.client() as client, pytest.raises(us.FlowError, match="no source 'c'"):
        client.push("c", rows(1))


def test_back_pressure_is_not_silence(tmp_path: Path) -> None:
    gate = Gate(make_flow(idle="300 ms", late="drop"), tmp_path)
    with gate.client() as client:
        client.push("a", rows(1))
        gate.intake.room("a", False)
        late: queue.Queue[int] = queue.Queue()
        pushing = threading.Thread(
            target=lambda: [late.put(client.push("a", rows(n)).late) for n in range(2, 8)]
        )
        pushing.start()
        # Silence is time that passes: five times the idle time, in which all these buckets would be sealed.
        time.sleep(1.5)
        gate.intake.room("a", True)
        assert [late.get(timeout=PATIENCE_S) for _ in range(2, 8)] == [0] * 6
        pushing.join()
    gate.end()


class Clock:
    """The monotonic clock, moved ahead at will. It tells when it was read again."""

    def __init__(self) -> None:
        self.ahead_us = 0
        self._reads = threading.Semaphore(0)

    def __call__(self) -> int:
        self._reads.release()
        return time.monotonic_ns() // 1_000 + self.ahead_us

    def wait_reads(self, times: int) -> None:
        while self._reads.acquire(blocking=False):
            pass
        for _ in range(times):
            assert self._reads.acquire(timeout=PATIENCE_S)


def test_a_stopped_process_is_not_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = Clock()
    monkeypatch.setattr(module, "monotonic_us", ticks)
    gate = Gate(make_flow(idle="10 s", late="drop"), tmp_path)
    with gate.client() as client:
        client.push("a", rows(1))
        ticks.ahead_us = 30_000_000
        ticks.wait_reads(5)
        assert client.push("a", rows(2)).late == 0
    gate.end()


def test_a_wall_clock_that_is_set_forward_is_not_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks, walls = Clock(), count(time.time_ns() // 1_000, 900_000)
    monkeypatch.setattr(module, "monotonic_us", ticks)
    monkeypatch.setattr(module, "now_us", lambda: next(walls))
    gate = Gate(make_flow(idle="10 s", late="drop"), tmp_path)
    with gate.client() as client:
        client.push("a", rows(1))
        ticks.wait_reads(30)
        assert client.push("a", rows(2)).late == 0
    gate.end()


def test_a_reader_that_has_not_begun_is_not_silent(tmp_path: Path) -> None:
    flow = us.Flow("f", bucket="100 ms")
    generator = us.Generator("id int, ts timestamp", lambda seed, first, count: {"id": [0] * count}, 100)
    flow.source("a", generator, time="ts", idle="100 ms", late="drop")
    first = Gate(flow, tmp_path)
    first.intake.start_readers()
    assert first.next()[0] == "a"
    first.end()
    sealed = first.intake.sealed_through
    again = Gate(flow, tmp_path)
    # Silence is time that passes: nodes may take this long to start, and far longer.
    time.sleep(0.5)
    assert again.intake.sealed_through == sealed
    again.end()
