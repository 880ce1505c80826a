"""Intake on a real log, with real clients over loopback: buckets source by source, and back pressure."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import understudy as us
from understudy.core.bucket import NOTHING, BucketId
from understudy.runtime.gateway.intake import Intake
from understudy.runtime.ingest.buckets import SealedBucket, end_bucket
from understudy.runtime.transport.endpoint import Endpoint

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


def test_a_push_to_an_unknown_source_is_refused_with_its_name(gate: Gate) -> None:
    with gate.client() as client, pytest.raises(us.FlowError, match="no source 'c'"):
        client.push("c", rows(1))
