"""Every order of what the gateway does in small runs that are upgraded, with a crash of it at any point."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mutations import upgrades

from understudy.sim.checkers import Violation
from understudy.sim.setup import Setup
from understudy.sim.shapes import small
from understudy.sim.upgrade_space import UpgradeBounds, UpgradeSpace, explore_upgrades

TURNS = ("turn", "back")


def saved(policy: str, buckets: int, replicas: int | None = None) -> Setup:
    return small(policy, buckets, replicas, saved=True)


@pytest.mark.parametrize(
    ("bounds", "states_least"),
    [
        (UpgradeBounds(saved("none", 2), TURNS), 500),
        (UpgradeBounds(saved("none", 2), ("turn", "commit")), 150),
        (UpgradeBounds(saved("none", 1), crashes=1), 700),
    ],
    ids=["a turn and back", "a turn and a commit", "a whole upgrade beside a crash"],
)
def test_every_order_delivers_everything_once(bounds: UpgradeBounds, states_least: int) -> None:
    explored = explore_upgrades(bounds)
    print(explored)
    assert explored.whole
    assert explored.ends > 0
    assert explored.states > states_least


#: Too many orders to try them all in a test; `understudy simulate --explore --upgrades` does.
LARGE = {
    "a turn and back beside a crash": UpgradeBounds(saved("none", 3), TURNS, crashes=1),
    "two crashes": UpgradeBounds(saved("none", 2), TURNS, crashes=2),
    "a pair": UpgradeBounds(saved("pair", 2), crashes=1),
    "a producer and a consumer": UpgradeBounds(saved("flux", 2, 1), crashes=1),
    "taken back and away": UpgradeBounds(saved("none", 3), ("begin", "turn", "back", "discard"), crashes=1),
    "two upgrades": UpgradeBounds(saved("none", 2), ("begin", "turn", "commit", "begin", "turn"), crashes=1),
}


@pytest.mark.parametrize("name", LARGE)
def test_no_violation_within_the_first_states_of_a_larger_space(name: str) -> None:
    explored = explore_upgrades(LARGE[name], states_max=600, seed=1)
    print(explored)
    assert explored.states >= 600


@pytest.mark.parametrize(
    ("mutation", "bounds", "invariants"),
    [
        (upgrades.wake_without_waiting, UpgradeBounds(saved("none", 2), TURNS), {"sound", "one-awake"}),
        (upgrades.rest_with_a_group_in_hand, UpgradeBounds(saved("none", 2), TURNS), {"one-awake"}),
        (upgrades.wake_one_too_low, UpgradeBounds(saved("none", 2), TURNS), {"dup-free"}),
        (upgrades.wake_without_a_number, UpgradeBounds(saved("none", 2), TURNS), {"dup-free"}),
        (upgrades.begin_again_awake, UpgradeBounds(saved("none", 2), TURNS, crashes=1), {"one-awake"}),
        (
            upgrades.begin_again_with_the_base,
            UpgradeBounds(saved("none", 1), ("begin", "turn"), crashes=1),
            {"converged"},
        ),
    ],
)
def test_exploration_finds_a_known_mistake(
    mutation: Callable[[pytest.MonkeyPatch], None],
    bounds: UpgradeBounds,
    invariants: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutation(monkeypatch)
    with pytest.raises(Violation, match="the path") as caught:
        explore_upgrades(bounds)
    assert caught.value.invariant in invariants


def test_a_copy_of_a_run_leaves_the_run_as_it_was() -> None:
    space = UpgradeSpace(UpgradeBounds(saved("none", 3), crashes=1))
    run = space.first()
    for at in range(80):
        mark = run.mark()
        moves = space.moves(run)
        after = [space.after(run, move, []) for move in moves]
        assert run.mark() == mark
        if not after:
            break
        run = after[at % len(after)]
    assert run.happened["turns"] > 0
