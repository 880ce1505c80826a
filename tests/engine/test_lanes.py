"""Tasks run side by side, results come to one thread, and nothing waits for ever."""

from __future__ import annotations

import threading

import pytest

from understudy.engine.lanes import Lanes
from understudy.flow.errors import EnvironmentFailed


def failing() -> int:
    raise OSError("broken")


def test_two_lanes_run_two_tasks_at_once() -> None:
    lanes: Lanes[int] = Lanes(2, "test")
    meeting = threading.Barrier(2, timeout=30)
    lanes.add("a", meeting.wait)
    lanes.add("b", meeting.wait)
    assert {lanes.next()[0], lanes.next()[0]} == {"a", "b"}
    lanes.close()


def test_one_lane_runs_tasks_in_order_in_the_thread_that_asks() -> None:
    lanes: Lanes[int] = Lanes(1, "test")
    lanes.add("a", threading.get_ident)
    lanes.add("b", threading.get_ident)
    assert [lanes.next(), lanes.next()] == [("a", threading.get_ident()), ("b", threading.get_ident())]


@pytest.mark.parametrize("count", [1, 2])
def test_a_failure_is_raised_and_what_else_was_to_run_is_forgotten(count: int) -> None:
    lanes: Lanes[int] = Lanes(count, "test")
    for key in "abcdef":
        lanes.add(key, failing)
    with pytest.raises(OSError, match="broken"):
        lanes.next()
    lanes.settle()
    lanes.add("g", lambda: 7)
    assert lanes.next() == ("g", 7)
    lanes.close()


def test_tasks_come_to_their_end_when_lanes_are_closed_and_later_ones_are_refused() -> None:
    lanes: Lanes[int] = Lanes(2, "test")
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> int:
        begun.set()
        go_on.wait(30)
        return 1

    for key in "abc":
        lanes.add(key, slow)
    assert begun.wait(30)
    lanes.close()
    lanes.close()
    go_on.set()
    assert sorted(lanes.next() for _ in "abc") == [("a", 1), ("b", 1), ("c", 1)]
    with pytest.raises(EnvironmentFailed, match="test was closed"):
        lanes.add("d", slow)
    lanes.settle()
