"""Every interleaving of small worlds, with a kill at every point, and the catch-up after it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mutations import backups, edges, hosts

from understudy.sim.checkers import Violation
from understudy.sim.explore import Bounds, Space, explore
from understudy.sim.setup import Setup
from understudy.sim.shapes import small
from understudy.sim.state import clone, freeze


def replicas(count: int, buckets: int) -> Setup:
    return small("pair", buckets, count)


def saved(policy: str, buckets: int, count: int | None = None) -> Setup:
    return small(policy, buckets, count, saved=True)


def quartet(buckets: int) -> Setup:
    return small("flux", buckets)


@pytest.mark.parametrize(
    ("bounds", "states_least"),
    [
        (Bounds(replicas(1, 3)), 10),
        (Bounds(replicas(2, 3)), 500),
        (Bounds(replicas(2, 2), kills=1), 5_000),
        (Bounds(quartet(1)), 100),
        (Bounds(small("cluster", 2)), 50),
        (Bounds(small("passive", 2)), 1_000),
        (Bounds(saved("none", 1), spares=1, kills=1, saves=1), 4_000),
        (Bounds(saved("none", 2), saves=2, powers=1), 11_000),
        (Bounds(saved("none", 3), saves=1, powers=1), 5_000),
    ],
    ids=[
        *("one", "pair", "one of a pair", "quartet", "cluster", "passive"),
        *("saved, the only copy is killed", "saved, two saves and a power failure", "saved, a power failure"),
    ],
)
def test_every_order_delivers_everything(bounds: Bounds, states_least: int) -> None:
    explored = explore(bounds)
    print(explored)
    assert explored.whole
    assert explored.states > states_least


#: Too many orders to try them all in a test; `understudy simulate --explore` does.
LARGE = {
    "pair, one killed, a standby catches up": Bounds(replicas(2, 1), spares=1, kills=1),
    "pair, both killed, standbys catch up": Bounds(replicas(2, 1), spares=2, kills=2),
    "pair, connections come up late": Bounds(replicas(2, 1), spares=1, kills=1, eager=False),
    "pair, a connection breaks": Bounds(replicas(2, 1), spares=1, kills=1, severs=1),
    "pair, the gateway crashes": Bounds(replicas(2, 1), crashes=1),
    "pair, one killed, the gateway crashes": Bounds(replicas(2, 1), spares=1, kills=1, crashes=1),
    "three replicas, two killed": Bounds(replicas(3, 1), kills=2),
    "three replicas, two killed, a standby catches up": Bounds(replicas(3, 1), spares=1, kills=2),
    "cluster, one killed": Bounds(small("cluster", 1), kills=1),
    "passive, one killed": Bounds(small("passive", 2), kills=1),
    "passive, one killed, its node comes back": Bounds(small("passive", 1), spares=1, kills=1),
    "passive, one killed, the gateway crashes": Bounds(small("passive", 1), kills=1, crashes=1),
    "passive, a connection breaks": Bounds(small("passive", 2), severs=1),
    "passive, two backups, two killed": Bounds(small("passive", 1, 3), kills=2),
    "passive, saved, both killed": Bounds(saved("passive", 1), spares=2, kills=2, saves=1),
    "quartet, one killed": Bounds(quartet(1), kills=1),
    "quartet, one killed, a standby catches up": Bounds(quartet(1), spares=1, kills=1),
    "saved, killed, the gateway crashes": Bounds(saved("none", 2), spares=1, kills=1, crashes=1, saves=1),
    "saved pair, both killed": Bounds(saved("pair", 1), spares=2, kills=2, saves=1),
    "saved pair, a power failure": Bounds(saved("pair", 2), saves=2, powers=1),
    "saved chain, one killed": Bounds(saved("flux", 2, 1), spares=1, kills=1, saves=2),
    "saved chain, both killed": Bounds(saved("flux", 3, 1), spares=2, kills=2, saves=4),
    "saved chain, a power failure": Bounds(saved("flux", 2, 1), saves=3, powers=1),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("seed", [1, 2])
def test_no_violation_within_the_first_states_of_a_larger_space(name: str, seed: int) -> None:
    explored = explore(LARGE[name], states_max=4_000, seed=seed)
    print(explored)
    assert explored.states >= 4_000


def test_quiet_steps_commute_with_every_other_step() -> None:
    bounds = Bounds(replicas(2, 1), spares=1, kills=1, reduced=False, prove_quiet=True)
    explored = explore(bounds, states_max=2_500, seed=1)
    print(explored)
    assert explored.commuted > 1_000


def test_a_violation_tells_the_path_that_leads_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    edges.drop_when_sent(monkeypatch)
    with pytest.raises(Violation, match="the path") as caught:
        explore(Bounds(replicas(2, 2)))
    assert "feed source" in caught.value.what


@pytest.mark.parametrize(
    ("mutation", "bounds", "invariants"),
    [
        (edges.ack_on_receipt, Bounds(replicas(2, 2)), {"state-exact"}),
        (edges.drop_on_first_ack, Bounds(replicas(2, 2)), {"kept"}),
        (edges.reserve_nothing, Bounds(replicas(2, 1), spares=1, kills=1), {"kept"}),
        (edges.keep_the_lost_sender, Bounds(replicas(2, 1), kills=1), {"converged"}),
        (hosts.do_not_try_again, Bounds(replicas(2, 1), crashes=1), {"converged"}),
        (edges.drop_when_sent, Bounds(quartet(2)), {"kept"}),
        (backups.do_not_count_backups, Bounds(small("passive", 2)), {"kept", "sound"}),
        (backups.never_promote, Bounds(small("passive", 1), kills=1), {"converged"}),
    ],
)
def test_exploration_finds_a_known_mistake(
    mutation: Callable[[pytest.MonkeyPatch], None],
    bounds: Bounds,
    invariants: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutation(monkeypatch)
    with pytest.raises(Violation, match="the path") as caught:
        for seed in range(8):
            explore(bounds, states_max=5_000, seed=seed)
    assert caught.value.invariant in invariants


def test_a_fork_that_loses_its_power_leaves_the_world_that_it_was_forked_from_as_it_was() -> None:
    space = Space(Bounds(saved("none", 2), saves=1, powers=1))
    world = space.first()
    for _ in range(60):
        mark, vault, disk = world.mark(), dict(world.vault), freeze(world.disk)
        for move in space.moves(world):
            fork = space.after(world, move, [])
            if move == ("power",):
                while further := [each for each in space.moves(fork) if each[0] != "timer"]:
                    fork = space.after(fork, further[0], [])
            assert (world.mark(), dict(world.vault), freeze(world.disk)) == (mark, vault, disk)
        steps = [each for each in space.moves(world) if each != ("power",)]
        if not steps:
            break
        world = space.after(world, steps[-1], [])
    assert world.vault, "a state was saved on the way"


class Unknown:
    """A helper that no list names."""


def test_an_unknown_class_is_neither_shared_nor_left_out() -> None:
    for walk in (clone, freeze):
        with pytest.raises(TypeError, match="Unknown is neither immutable nor known"):
            walk([Unknown()])
