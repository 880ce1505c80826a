"""Timers of a process: they fire in the order of their times, and a timer that is set again fires once."""

from __future__ import annotations

import queue
from collections.abc import Hashable, Iterator

import pytest

from understudy.runtime.timers import Timers


class Fired:
    def __init__(self) -> None:
        self.keys: queue.Queue[Hashable] = queue.Queue()
        self.timers = Timers(self.keys.put)

    def next(self) -> Hashable:
        return self.keys.get(timeout=10)


@pytest.fixture
def fired() -> Iterator[Fired]:
    made = Fired()
    yield made
    made.timers.end()


def test_timers_fire_in_the_order_of_their_times(fired: Fired) -> None:
    fired.timers.set("late", 200)
    fired.timers.set("soon", 1)
    fired.timers.set(("middle", 1), 100)
    assert [fired.next() for _ in range(3)] == ["soon", ("middle", 1), "late"]


def test_a_timer_that_is_set_again_fires_once_at_its_new_time(fired: Fired) -> None:
    fired.timers.set("again", 1_000_000)
    fired.timers.set("again", 20)
    fired.timers.set("again", 60)
    fired.timers.set("last", 150)
    assert [fired.next(), fired.next()] == ["again", "last"]
    assert fired.keys.empty()


def test_a_timer_can_be_set_anew_after_it_fired(fired: Fired) -> None:
    for _ in range(2):
        fired.timers.set("key", 1)
        assert fired.next() == "key"


def test_after_the_end_nothing_fires(fired: Fired) -> None:
    fired.timers.set("never", 50)
    fired.timers.end()
    fired.timers._thread.join(10)
    assert not fired.timers._thread.is_alive()
    assert fired.keys.empty()
