"""Work in threads: results in order, the first trouble, and no wait without progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from understudy.runtime.saving import bounded as bounded_module
from understudy.runtime.saving.bounded import WIDTH, Bounded


def test_results_come_in_the_order_of_the_items() -> None:
    def slower_first(item: int, _tick: Callable[[], None]) -> int:
        time.sleep((20 - item) / 1000)
        return item * 2

    assert Bounded(5).each(slower_first, range(20)) == [item * 2 for item in range(20)]
    assert Bounded(5).each(slower_first, []) == []


def test_so_many_run_at_once_and_no_more() -> None:
    together = threading.Barrier(WIDTH)
    running: list[int] = []
    most: list[int] = []

    def meet(item: int, _tick: Callable[[], None]) -> None:
        running.append(item)
        most.append(len(running))
        together.wait(5)
        running.remove(item)

    Bounded(10).each(meet, range(2 * WIDTH))
    assert max(most) <= WIDTH


def test_trouble_is_raised_once_no_other_is_at_work() -> None:
    finished: list[int] = []

    def work(item: int, _tick: Callable[[], None]) -> None:
        if item == 0:
            raise ValueError("trouble")
        time.sleep(0.1)
        finished.append(item)

    with pytest.raises(ValueError, match="trouble"):
        Bounded(5).each(work, range(100))
    assert len(finished) < WIDTH
    before = list(finished)
    time.sleep(0.2)
    assert finished == before


def test_work_may_take_long_as_long_as_it_gets_on() -> None:
    def slow(tick: Callable[[], None]) -> str:
        for _ in range(10):
            time.sleep(0.1)
            tick()
        return "done"

    assert Bounded(0.5).one(slow) == "done"


def test_work_that_hangs_is_left_and_ends_when_it_goes_on() -> None:
    go_on, ended = threading.Event(), threading.Event()

    def hang(tick: Callable[[], None]) -> None:
        go_on.wait(10)
        try:
            tick()
        except BaseException:
            ended.set()
            raise

    with pytest.raises(TimeoutError, match=r"there was no answer for 0\.1 s"):
        Bounded(0.1).one(hang)
    go_on.set()
    assert ended.wait(5)


def test_hanging_threads_do_not_collect_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_module, "HANGING_MAX", 2)
    go_on = threading.Event()
    bounded = Bounded(0.1)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            bounded.one(lambda _tick: go_on.wait(10))
    with pytest.raises(TimeoutError, match="2 earlier requests were never answered"):
        bounded.one(lambda _tick: None)
    go_on.set()
    ends_at = time.monotonic() + 5
    while time.monotonic() < ends_at:
        try:
            assert bounded.one(lambda _tick: "again") == "again"
            break
        except TimeoutError:
            time.sleep(0.01)
    else:
        pytest.fail("the threads have ended, and no work is begun")
