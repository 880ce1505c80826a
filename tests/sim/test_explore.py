"""Every interleaving of small worlds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from test_mutations import drop_on_one_ack, never_switch, reserve_nothing, start_on_the_standbys_word
from understudy.core.buffer import Acks
from understudy.core.ingress import Ingress
from understudy.core.instructions import Instruction
from understudy.core.messages import Attached

from understudy.sim.checkers import Violation
from understudy.sim.explore import Bounds, explore


@pytest.mark.parametrize("acks", list(Acks))
def test_every_order_without_faults_ends_in_the_same_place(acks: Acks) -> None:
    explored = explore(Bounds(buckets=3, spares=0, kills=0, acks=acks))
    print(explored)
    assert explored.whole
    assert explored.ends == 1


@pytest.mark.parametrize(("acks", "buckets"), [(Acks.CUMULATIVE, 2), (Acks.EACH, 1)])
def test_a_kill_at_every_point_is_survived_and_so_is_the_catch_up_after_it(acks: Acks, buckets: int) -> None:
    explored = explore(Bounds(buckets=buckets, kills=1, acks=acks))
    print(explored)
    assert explored.whole


def test_a_standby_that_dies_at_any_point_of_its_catch_up_leaves_the_survivor_unharmed() -> None:
    explored = explore(Bounds(buckets=1, spares=1, kills=1, begin_with_a_death=True))
    print(explored)
    assert explored.whole


def test_a_gateway_crash_at_every_point_is_survived() -> None:
    explored = explore(Bounds(buckets=2, spares=0, kills=0, gateway_crashes=1))
    print(explored)
    assert explored.whole


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(buckets=1, kills=1),
        Bounds(buckets=1, kills=1, acks=Acks.EACH),
        Bounds(buckets=1, spares=0, kills=0, gateway_crashes=1),
    ],
)
def test_quiet_steps_commute_with_every_other_step_in_every_state(bounds: Bounds) -> None:
    whole = explore(replace(bounds, reduced=False, prove_quiet=True))
    print(whole)
    assert whole.whole
    assert whole.commuted > 10_000
    reduced = explore(bounds)
    assert reduced.ends == whole.ends
    assert reduced.states < whole.states


def test_no_violation_within_the_first_states_of_a_larger_world() -> None:
    explored = explore(Bounds(buckets=3, spares=2, kills=2, states_max=15_000))
    assert explored.states >= 15_000


def test_exploration_finds_an_ingress_that_does_not_send_again(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Ingress._handle

    def forgetful(ingress: Ingress, event: object) -> list[Instruction]:
        done = handle(ingress, event)
        return [] if isinstance(event, Attached) else done

    monkeypatch.setattr(Ingress, "_handle", forgetful)
    with pytest.raises(Violation, match="the path") as caught:
        explore(Bounds(buckets=2, spares=0, kills=0, gateway_crashes=1, states_max=20_000))
    assert caught.value.invariant in {"converged", "input-loss-free"}


@pytest.mark.parametrize(
    "mutate", [drop_on_one_ack, start_on_the_standbys_word, reserve_nothing, never_switch]
)
def test_exploration_finds_a_known_mistake(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises(Violation, match="the path"):
        explore(Bounds(buckets=2))
