"""A process that was itself paused calls no other process silent or dead."""

from __future__ import annotations

from typing import Any

import pytest

from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.events import CopyCaughtUp, CopyMoveFailed, CopySuspected
from understudy.runtime.coordination.client import Report
from understudy.runtime.coordination.reports import DrainWish, event_of, written
from understudy.runtime.pauses import CarefulReports, OwnPauses
from understudy.runtime.transport.channel import Channel

SILENCE_S = 2.0
LOOK_S = 0.125


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def looks_until_silent(channel: Channel, clock: FakeClock) -> float:
    """How long it takes, looked at regularly and without a word from the peer."""
    began_s = clock.now_s
    while not channel.silent:
        clock.now_s += LOOK_S
    return clock.now_s - began_s


@pytest.fixture
def channel(clock: FakeClock) -> Channel:
    return Channel("peer", lambda _f: None, lambda _r: None, silence_s=SILENCE_S, clock=clock)


def test_a_peer_that_says_nothing_is_silent_in_time(channel: Channel, clock: FakeClock) -> None:
    assert looks_until_silent(channel, clock) == pytest.approx(SILENCE_S, abs=LOOK_S)


def test_after_a_pause_of_this_process_its_peers_get_a_fresh_period(
    channel: Channel, clock: FakeClock
) -> None:
    assert not channel.silent
    clock.now_s += 5.0
    assert not channel.silent, "it was this process that did not listen"
    assert looks_until_silent(channel, clock) == pytest.approx(SILENCE_S, abs=LOOK_S)


def test_ticks_in_time_are_no_pause_and_a_late_one_is_remembered_for_a_while(clock: FakeClock) -> None:
    pauses = OwnPauses(1.0, clock)
    for _ in range(50):
        clock.now_s += 0.9
        assert not pauses.tick()
    assert not pauses.lately(2.0)
    clock.now_s += 1.1
    assert pauses.lately(2.0), "before the tick that notices it"
    assert pauses.tick()
    clock.now_s += 0.9
    assert not pauses.tick()
    clock.now_s += 0.9
    assert pauses.lately(2.0)
    assert not pauses.tick()
    clock.now_s += 0.9
    assert not pauses.lately(2.0)


COPY = Copy(Partition("sessions"), 1)


def test_after_a_pause_no_suspicion_is_reported_for_a_while_but_all_else_is(clock: FakeClock) -> None:
    sent: list[object] = []

    def report(kind: str, facts: dict[str, Any]) -> None:
        sent.append(event_of(Report("r-1", kind, facts)))

    reports = CarefulReports(report, SILENCE_S, clock)
    before, healthy, still_away = (CopySuspected(COPY, epoch, "gateway") for epoch in (1, 2, 3))
    others = [CopyCaughtUp(COPY, 2), CopyMoveFailed(COPY, 2, "the disk is full"), DrainWish("n1", "7")]
    assert reports.send(*written(before))
    clock.now_s += 3.0
    assert not reports.send(*written(healthy))
    reports.tick()
    assert not reports.send(*written(healthy))
    assert all(reports.send(*written(other)) for other in others)  # type: ignore[arg-type]
    for _ in range(5):
        clock.now_s += 0.5
        reports.tick()
    assert reports.send(*written(still_away))
    assert sent == [before, *others, still_away]


def test_a_pause_of_half_the_silence_is_long_enough_to_doubt_a_suspicion(clock: FakeClock) -> None:
    """A peer that had not spoken for a while before the pause would seem silent after it."""
    sent: list[str] = []
    reports = CarefulReports(lambda kind, _facts: sent.append(kind), SILENCE_S, clock)
    clock.now_s += 0.6 * SILENCE_S
    assert not reports.send(*written(CopySuspected(COPY, 1, "gateway")))
    assert sent == []
