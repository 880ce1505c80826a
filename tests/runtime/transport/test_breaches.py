"""Peers whose messages could not be read."""

from __future__ import annotations

import pytest

from understudy.core.host.limits import Timing
from understudy.flow.policy import POLICIES
from understudy.runtime.transport.breaches import KEPT_OUT_FIRST, KEPT_OUT_MAX, PARDONED, Breaches

SILENCE_S = 2.0


def kept_out_s(breaches: Breaches, now_s: float) -> float:
    """For how long a peer is kept out that breaks the protocol now."""
    breaches.note("a", now_s)
    step_s = SILENCE_S / 64
    steps = 0
    while breaches.keep_out("a", now_s + steps * step_s):
        steps += 1
    return steps * step_s


def test_no_other_peer_is_kept_out() -> None:
    breaches = Breaches(SILENCE_S)
    breaches.note("a", 0.0)
    assert breaches.keep_out("a", 0.0)
    assert not breaches.keep_out("b", 0.0)


def test_each_breach_doubles_the_time_up_to_a_bound_however_many_there_are() -> None:
    breaches = Breaches(SILENCE_S)
    times_s = [kept_out_s(breaches, at_s) for at_s in range(2_000)]
    assert times_s[:3] == [SILENCE_S / 16, SILENCE_S / 8, SILENCE_S / 4]
    assert set(times_s[10:]) == {KEPT_OUT_MAX * SILENCE_S}


@pytest.mark.parametrize(("later_s", "factor"), [(PARDONED * SILENCE_S, 2), (PARDONED * SILENCE_S + 1, 1)])
def test_a_breach_long_ago_does_not_count(later_s: float, factor: int) -> None:
    breaches = Breaches(SILENCE_S)
    breaches.note("a", 0.0)
    assert kept_out_s(breaches, later_s) == factor * SILENCE_S / 16


def test_after_three_breaches_a_peer_is_kept_out_for_longer_than_a_host_waits_before_it_suspects() -> None:
    silence_ms = POLICIES["pair"].silence_ms
    first_ms = KEPT_OUT_FIRST * silence_ms
    assert first_ms < Timing.suspect_ms < first_ms * 2**2
