"""What the status says of a gateway's output."""

from __future__ import annotations

from typing import Any

import pytest

from understudy.runtime.gateway.counts import LATENCY_S_MAX, LATENCY_STANDS_S, Counts
from understudy.runtime.gateway.delivery import DeliveredRange

WIDTH_US = 100_000
NOW_S = 1_700_000_000.0


class Clock:
    def __init__(self) -> None:
        self.s = NOW_S

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counts(clock: Clock) -> Counts:
    return Counts(WIDTH_US, clock)


def puts_out(counts: Counts, clock: Clock, sink: str, late_s: float, rows: int = 1) -> None:
    """A bucket whose end was so long ago reaches a sink; without rows if there are none."""
    number = round((clock.s - late_s) * 1e6) // WIDTH_US - 1
    buckets = ((number, rows, "digest"),) if rows else ()
    counts.delivered(sink, DeliveredRange(number - 1, number, buckets))


def said(counts: Counts) -> tuple[Any, Any]:
    summary = counts.summary()
    return summary["latency_ms"], summary["last_output_s"]


def test_before_the_first_output_there_is_no_latency(counts: Counts, clock: Clock) -> None:
    puts_out(counts, clock, "one", 0.5, rows=0)
    assert said(counts) == (None, None)


def test_the_sink_that_is_furthest_behind_counts(counts: Counts, clock: Clock) -> None:
    puts_out(counts, clock, "one", 60.0)
    puts_out(counts, clock, "two", 1.0)
    assert said(counts) == (60_000.0, 0.0)


def test_a_sink_that_had_nothing_to_take_since_is_not_behind(counts: Counts, clock: Clock) -> None:
    puts_out(counts, clock, "sessions", 42.0)
    for _ in range(4):
        clock.s += LATENCY_STANDS_S / 3
        puts_out(counts, clock, "totals", 0.5)
        puts_out(counts, clock, "sessions", 0.5, rows=0)
    assert said(counts) == (500.0, 0.0)


def test_without_output_for_long_there_is_no_latency_and_the_last_output_is_known(
    counts: Counts, clock: Clock
) -> None:
    puts_out(counts, clock, "sessions", 42.0)
    clock.s += LATENCY_STANDS_S
    assert said(counts) == (42_000.0, LATENCY_STANDS_S)
    clock.s += 170.0
    assert said(counts) == (None, LATENCY_STANDS_S + 170.0)


def test_rows_that_are_dated_back_say_nothing_of_the_latency(counts: Counts, clock: Clock) -> None:
    puts_out(counts, clock, "old", 323 * LATENCY_S_MAX)
    assert said(counts) == (None, 0.0)
    puts_out(counts, clock, "new", 1.0)
    assert said(counts) == (1_000.0, 0.0)


def test_rows_from_the_future_are_not_late(counts: Counts, clock: Clock) -> None:
    puts_out(counts, clock, "one", -60.0)
    assert said(counts) == (0.0, 0.0)
