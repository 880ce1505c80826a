"""Every interleaving of one quartet, with a death at every point and the catch-up that follows."""

from __future__ import annotations

import random
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
from understudy.sim.explore_quartet import QuartetBounds, QuartetSpace, explore_quartet


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


@pytest.mark.parametrize("producer", ["n1", "n2"])
@pytest.mark.parametrize("consumer", ["n3", "n4"])
def test_any_one_producer_and_any_one_consumer_are_enough(producer: str, consumer: str) -> None:
    """The four ways in which a quartet can live on: the two nodes that are named die, at any moment."""
    bounds = QuartetBounds(buckets=4, kills=2, spares=0, victims=frozenset({producer, consumer}))
    space = QuartetSpace(bounds)
    gateway, kills_at = space.gateway, space.quartet.kills_at
    first = space.quartet.first(bounds.kills)
    both_died_on_the_way = 0
    for seed in range(40):
        rng = random.Random(seed)
        state = first
        while moves := space.moves(state):
            deaths = [move for move in moves if move[0] == "kill"]
            state = space.after(state, rng.choice(deaths if deaths and rng.random() < 0.1 else moves), [])
            if state[kills_at] == 0 and space.quartet.process(state, gateway).sealed < bounds.buckets:
                both_died_on_the_way += 1
                break
        while moves := space.moves(state):
            state = space.after(state, rng.choice(moves), [])
        space.quartet.check_converged(state)
    assert both_died_on_the_way > 15


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
