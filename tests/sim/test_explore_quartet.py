"""Every interleaving of one quartet, with a death at every point and the catch-up that follows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from test_exchange_schedules import (
    acknowledge_on_receipt,
    drop_when_sent,
    keep_the_old_sender,
    reserve_nothing,
    send_to_a_newcomer_at_once,
)

from understudy.sim.checkers import Violation
from understudy.sim.explore_quartet import QuartetBounds, explore_quartet


def test_every_order_without_a_death_delivers_everything() -> None:
    explored = explore_quartet(QuartetBounds(buckets=3, kills=0))
    print(explored)
    assert explored.whole
    assert explored.ends >= 1
    assert explored.states > 1_000


def test_the_death_of_any_node_at_any_point_is_survived_and_so_is_the_catch_up_after_it() -> None:
    explored = explore_quartet(QuartetBounds(buckets=1, kills=1))
    print(explored)
    assert explored.whole
    assert explored.states > 100_000


@pytest.mark.parametrize("victim", ["n1", "n3"])
def test_no_violation_within_the_first_states_of_more_buckets(victim: str) -> None:
    bounds = QuartetBounds(buckets=2, victims=frozenset({victim}), states_max=20_000)
    assert explore_quartet(bounds).states >= 20_000


def test_no_violation_within_the_first_states_of_two_deaths() -> None:
    explored = explore_quartet(QuartetBounds(buckets=1, kills=2, states_max=20_000))
    print(explored)
    assert explored.states >= 20_000


def test_quiet_steps_commute_with_every_other_step() -> None:
    bounds = QuartetBounds(victims=frozenset({"n4"}), reduced=False, prove_quiet=True, states_max=8_000)
    explored = explore_quartet(bounds)
    print(explored)
    assert explored.commuted > 20_000


def test_a_violation_tells_the_path_that_leads_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reserve_nothing(monkeypatch)
    with pytest.raises(Violation, match="the path") as caught:
        explore_quartet(QuartetBounds())
    assert "kill n" in caught.value.what
    assert "seal gateway" in caught.value.what


@pytest.mark.parametrize(
    ("mutate", "bounds"),
    [
        (send_to_a_newcomer_at_once, QuartetBounds(buckets=2)),
        (acknowledge_on_receipt, QuartetBounds(buckets=2)),
        (reserve_nothing, QuartetBounds(buckets=2)),
        (drop_when_sent, QuartetBounds(buckets=2)),
        (keep_the_old_sender, QuartetBounds(victims=frozenset({"n1"}))),
    ],
)
def test_exploration_finds_a_known_mistake(
    mutate: Callable[[pytest.MonkeyPatch], None], bounds: QuartetBounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises(Violation, match="the path") as caught:
        explore_quartet(bounds)
    print(caught.value.invariant, str(caught.value).splitlines()[0])
