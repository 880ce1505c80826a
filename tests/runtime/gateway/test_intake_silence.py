"""When a source counts as silent: not while the gateway does not listen, whatever the clocks say."""

from __future__ import annotations

import queue
import threading
import time
from itertools import count
from pathlib import Path

import pytest
from intake_kit import PATIENCE_S, Gate, make_flow, push_of, rows

import understudy as us
from understudy.runtime.gateway import intake as module
from understudy.runtime.transport.channel import Channel


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


def test_a_client_that_waits_for_room_counts_as_heard(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Semaphore(0)
    honest = gate.intake.wait_room

    def waiting(source: str, timeout_s: float) -> bool:
        asked.release()
        return honest(source, timeout_s)

    monkeypatch.setattr(gate.intake, "wait_room", waiting)
    gate.intake.room("a", False)
    channel = Channel("client c", lambda _frame: None, lambda _reason: None)
    session = gate.intake.admit({"client": "c"})
    session.on_open(channel)
    channel.heard_at = long_ago = time.monotonic() - 1_000
    thread = threading.Thread(target=session.on_frame, args=(push_of(1),))
    thread.start()
    # The second time that it asks for room, it has waited once.
    for _ in range(2):
        assert asked.acquire(timeout=PATIENCE_S)
    assert channel.heard_at > long_ago
    gate.intake.room("a", True)
    thread.join()
    assert channel.waiting == 2, "its sources, and the answer to its push"


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


class OwnClock(Clock):
    """A clock of its own, that moves by `step_us` whenever it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.step_us = 0

    def __call__(self) -> int:
        self.ahead_us += self.step_us
        super().__call__()
        return self.ahead_us


def test_a_source_without_room_is_not_silent_although_no_push_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = OwnClock()
    monkeypatch.setattr(module, "monotonic_us", ticks)
    gate = Gate(make_flow(idle="10 s"), tmp_path)
    with gate.client() as client:
        client.push("a", rows(1))
        gate.intake.room("a", False)
        sealed = gate.intake.sealed_through["a"]
        ticks.step_us = 500_000
        # Three times the idle time, in steps too short to count as a stopped process.
        ticks.wait_reads(60)
        assert gate.intake.sealed_through["a"] == sealed
        gate.intake.room("a", True)
        # With room the same silence counts: the row's bucket is sealed.
        while gate.next() != ("a", 1):
            pass
    gate.end()


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


def test_a_reader_that_finds_nothing_more_is_silent(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"id": 1, "ts": "2026-01-01T00:00:00Z"}\n')
    flow = us.Flow("f", bucket="100 ms")
    files = us.Files(tmp_path / "in", "id int, ts timestamp", follow=True)
    flow.source("a", files, time="ts", idle="150 ms")
    gate = Gate(flow, tmp_path / "run")
    gate.intake.start_readers()
    while gate.sealed.get(timeout=PATIENCE_S).table is None:
        pass
    gate.end()
