"""A Java that does not answer is noticed, by the node's own ticks."""

from __future__ import annotations

import threading

import pytest

from understudy.runtime.node import java_watch
from understudy.runtime.node.java_watch import JavaWatch


def test_a_java_that_answers_is_never_blamed() -> None:
    watch = JavaWatch(limit_s=2.0, tick_s=0.5)
    for _ in range(8):
        watch.answered()
        assert watch.tick() is None


def test_a_java_that_does_not_answer_is_blamed_after_its_limit_and_an_answer_begins_it_anew() -> None:
    watch = JavaWatch(limit_s=2.0, tick_s=0.5)
    for _ in range(2):
        watch.answered()
        assert [watch.tick() for _ in range(5)] == [None] * 5
    assert "Java has not answered for 2 s" in str(watch.tick())


def test_java_is_asked_again_after_a_question_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_watch, "ASK_S", 0.001)
    answers, asked_twice = iter([True, False]), threading.Event()

    def ask() -> None:
        if next(answers, None):
            raise ConnectionError("nobody there")
        asked_twice.set()

    watch = JavaWatch(limit_s=2.0, tick_s=0.5).start(ask)
    assert asked_twice.wait(30)
    watch.end()
