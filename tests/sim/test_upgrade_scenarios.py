"""Schedules written by hand of runs that are upgraded: what chance brings about too rarely."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mutations import upgrades
from saved_flows import FIRST, SECOND, UPPER, number, saved, saving_flow
from upgraded_flows import (
    BEGUN,
    DECIDED,
    IN_HAND,
    OPEN,
    SAVED,
    SEATED,
    TAKES,
    TOLD_TO_REST,
    TURNED,
    Acts,
    adopted,
    behind,
    unheard,
    untold,
)

from understudy.core.host.places import GATEWAY
from understudy.core.shape.partition import Copy, Partition
from understudy.sim.checkers import Violation
from understudy.sim.scenario import (
    Wait,
    expect,
    feed,
    hold,
    kill,
    kill_gateway,
    lead,
    lose_power,
    release,
    until,
    wait,
)
from understudy.sim.setup import Setup
from understudy.sim.upgrade_scenario import UpgradeScript, on, run_of, wish
from understudy.sim.upgrading import Upgrading
from understudy.sim.world import World

#: Each seed makes another order of what a scenario leaves open.
SEEDS = range(8)
OTHER_UPPER = Copy(Partition("g", 1))


def played(acts: Acts, setup: Setup | None = None) -> list[Upgrading]:
    """The same acts on a flow of one copy, or of this setup, in some orders."""
    return [UpgradeScript(setup or saving_flow(), seed).play(acts) for seed in SEEDS]


def lets_go(of: Copy, to: Copy, bucket: int) -> Wait:
    """Wait until the newest saved state of a copy has no more output for another one until this bucket."""

    def moment(world: World) -> bool:
        newest = run_of(world).base.vault[of.partition][-1].state
        return dict(newest.outlets)[to.partition].gone_through >= number(world, bucket)

    return until(f"a saved state of {of} lacks bucket {bucket} for {to}", moment)


def _forgotten(world: World) -> int:
    return world.disk.forgotten["source"]


KEEPS_THE_FIFTH = expect("the log keeps bucket 5", lambda world: _forgotten(world) < number(world, 5))
FORGETS_THE_FIFTH = until("the log forgets bucket 5", lambda world: _forgotten(world) >= number(world, 5))


# --- the gateway crashes ---------------------------------------------------------------------------------

#: A group of the base is in the hands of the sink's writer, and the sink was told to rest after it.
TOLD_WITH_A_GROUP_IN_HAND: Acts = [
    *(*BEGUN, on(1), hold("produce", GATEWAY, 1), feed(), IN_HAND, wish("turn"), TOLD_TO_REST),
]
#: Where the crash comes. Each of them ends with the candidate at work.
CRASHES: dict[str, Acts] = {
    "while states are adopted": [
        *(*SAVED, hold("adopt"), wish("begin"), kill_gateway(), release(), wish("turn")),
    ],
    "before the candidate has a view": [
        *(*SAVED, hold("publish", version=2), wish("begin"), adopted(1), on(2), DECIDED, kill_gateway()),
        *(release(), wish("turn")),
    ],
    "before it has seen the candidate's first view": [
        *(*SAVED, hold("view", GATEWAY, 2), wish("begin"), adopted(1), on(2), SEATED, kill_gateway()),
        *(release(), wish("turn")),
    ],
    "before it has heard that the candidate's ends are open": [
        *(*SAVED, hold("hear", "open"), wish("begin"), adopted(1), on(2), OPEN, kill_gateway(), release()),
        wish("turn"),
    ],
    "before it has heard of the turn": [
        *(*BEGUN, hold("hear", "turn"), wish("turn"), feed(2), kill_gateway(), release()),
    ],
    "when the base's sink was told to rest and has a group in hand": [
        *(*TOLD_WITH_A_GROUP_IN_HAND, kill_gateway(), release()),
    ],
    "when the base's sink rests and the gateway has not heard of it": [
        *(*BEGUN, hold("hear", "rest"), wish("turn"), unheard("rest"), feed(2), kill_gateway(), release()),
    ],
    "when the base's sink rests and the candidate's was not woken": [
        *(*BEGUN, hold("tell sink", version=2), wish("turn"), untold(2), feed(2), kill_gateway(), release()),
    ],
    "with a group of the candidate in hand": [
        *(*TURNED, hold("produce", GATEWAY, 2), feed(), IN_HAND, kill_gateway(), release()),
    ],
    "when a group is delivered and the gateway has not heard of it": [
        *(*TURNED, hold("hear", "deliver"), feed(), unheard("deliver"), kill_gateway(), release()),
    ],
}


@pytest.mark.parametrize("crash", CRASHES)
def test_a_gateway_that_begins_again_goes_on_with_the_upgrade(crash: str) -> None:
    for run in played([*CRASHES[crash], on(2), TAKES, feed(2)]):
        assert run.candidate is not None
        assert (run.wanted, run.live.number) == (2, 2)
        assert run.happened["deliveries of a candidate"] > 0


def test_an_upgrade_that_is_decided_while_the_gateway_is_gone_is_done_when_it_begins_again() -> None:
    acts: Acts = [*TURNED, hold("restart"), kill_gateway(), wish("commit"), release(), feed(2)]
    for run in played(acts):
        assert (run.base.number, run.candidate) == (2, None)


def test_a_candidate_that_is_taken_back_while_the_gateway_is_gone_delivers_nothing_more() -> None:
    acts: Acts = [*TURNED, hold("restart"), kill_gateway(), wish("discard"), on(1), release(), feed(2)]
    for run in played(acts):
        assert (run.wanted, run.base.number, run.candidate) == (1, 1, None)


# --- everything loses its power --------------------------------------------------------------------------

#: What the upgrade is at when it happens.
POWER_FAILURES: dict[str, Acts] = {
    "while states are adopted": [*SAVED, hold("adopt"), wish("begin")],
    "when the candidate works": [*BEGUN, feed(2)],
    "in the middle of a turn": [*TOLD_WITH_A_GROUP_IN_HAND],
    "on trial": [*TURNED],
    "on the way back": [*TURNED, hold("produce", GATEWAY, 2), feed(), IN_HAND, wish("back")],
}


@pytest.mark.parametrize("moment", POWER_FAILURES)
def test_a_power_failure_beside_a_candidate_leaves_the_base(moment: str) -> None:
    for run in played([*POWER_FAILURES[moment], on(1), lose_power(), release()]):
        assert (run.wanted, run.base.number, run.candidate) == (1, 1, None)
        assert run.happened["power failures beside a candidate"] == 1


def test_a_power_failure_after_an_upgrade_leaves_the_new_version() -> None:
    for run in played([*TURNED, wish("commit"), lose_power()]):
        assert (run.wanted, run.base.number, run.candidate) == (2, 2, None)


# --- turning ---------------------------------------------------------------------------------------------


def test_a_candidate_takes_over_and_the_base_goes() -> None:
    for run in played([*TURNED, wish("commit"), feed(2)]):
        assert (run.base.number, run.candidate) == (2, None)


def test_a_run_is_upgraded_twice() -> None:
    again: Acts = [wish("begin"), on(3), wait("active"), wish("turn"), TAKES, feed(2), wish("commit")]
    for run in played([*TURNED, wish("commit"), feed(2), wait("delivered"), saved(5), *again]):
        assert (run.base.number, run.candidate) == (3, None)


def test_a_candidate_is_taken_back_after_it_has_delivered() -> None:
    for run in played([*TURNED, wish("back"), on(1), TAKES, feed(3), wait("delivered"), wish("discard")]):
        assert (run.wanted, run.candidate) == (1, None)
        assert run.happened["deliveries of a candidate"] > 0


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_candidate_that_lost_all_its_copies_on_trial_is_taken_back(replicas: int) -> None:
    lost = [kill(copy) for copy in (FIRST, SECOND)[:replicas]]
    acts: Acts = [*TURNED, *lost, feed(3), wish("back"), on(1), TAKES, wait("delivered"), wish("discard")]
    for run in played(acts, saving_flow(replicas)):
        assert (run.wanted, run.candidate) == (1, None)


def test_a_sink_goes_on_where_it_is_when_a_candidate_far_behind_takes_over() -> None:
    acts: Acts = [
        *(*BEGUN, hold("deliver", GATEWAY, 2), on(1), feed(6), wait("delivered"), on(2), behind(4)),
        *(wish("turn"), TAKES, behind(4), release(), feed(2)),
    ]
    for run in played(acts):
        assert run.happened["deliveries of a candidate"] > 0


def test_an_operator_who_changes_his_mind_before_the_gateway_hears_gets_the_last_wish() -> None:
    wishes: Acts = [wish("turn"), wish("back"), wish("turn"), wish("back")]
    for run in played([*BEGUN, hold("hear", "turn"), feed(2), *wishes, release(), feed(2)]):
        assert (run.wanted, run.live.number) == (1, 1)


def test_a_sink_that_was_told_to_rest_is_woken_again_if_the_turn_is_taken_back() -> None:
    for run in played([*TOLD_WITH_A_GROUP_IN_HAND, wish("back"), release(), on(1), TAKES, feed(2)]):
        assert run.happened["deliveries of a candidate"] == 0


@pytest.mark.parametrize("version", [1, 2])
def test_leaders_change_while_a_sink_turns(version: int) -> None:
    acts: Acts = [
        *(*TOLD_WITH_A_GROUP_IN_HAND, on(version), lead(), release("produce", GATEWAY, 1), on(2), TAKES),
        *(on(version), lead(), feed(2)),
    ]
    for run in played(acts):
        assert run.happened["deliveries of a candidate"] > 0


# --- what a candidate begins with ------------------------------------------------------------------------

#: A producer and its two consumers, all of them saved; then they go on, until what the producer saves lacks
#: what the saved states of its consumers needed before.
FORK = saving_flow(f=1, g=2)
ALL = (FIRST, UPPER, OTHER_UPPER)
ALL_SAVED: Acts = [wait("active"), feed(4), wait("delivered"), *(saved(4, copy) for copy in ALL)]
LATER: Acts = [
    *(feed(4), wait("delivered"), *(saved(7, copy) for copy in ALL)),
    *(feed(4), wait("delivered"), lets_go(FIRST, UPPER, 6)),
]
WORKS: Acts = [release(), on(2), wait("active"), wish("turn"), TAKES, feed(2)]
ONE_BY_ONE: Acts = [*ALL_SAVED, wish("begin"), adopted(1), hold("adopt"), *LATER, *WORKS]
ANEW: Acts = [*ALL_SAVED, wish("begin"), adopted(2), hold("adopt"), *LATER, kill_gateway(), *WORKS]


def test_a_consumer_whose_state_is_adopted_long_after_its_producers_lacks_nothing() -> None:
    for run in played(ONE_BY_ONE, FORK):
        assert run.happened["adopted"] == 3
        assert run.happened["deliveries of a candidate"] > 0


def test_an_adoption_that_begins_anew_keeps_nothing_of_the_one_before() -> None:
    for run in played(ANEW, FORK):
        assert run.happened["adoptions begun anew"] == 1
        assert run.happened["adopted"] == 2 + 3


#: The candidate has adopted what holds bucket 4, and waits for seats while the base goes on saving.
PINNED: Acts = [
    *(*SAVED, KEEPS_THE_FIFTH, hold("publish", version=2), wish("begin"), adopted(1)),
    *(feed(6), wait("delivered"), saved(10)),
]
PINNED_BESIDE_A_CRASH: Acts = [*PINNED, kill_gateway(), feed(2), wait("delivered"), saved(12)]


@pytest.mark.parametrize(
    "acts", [PINNED, PINNED_BESIDE_A_CRASH], ids=["all goes well", "the gateway crashes"]
)
def test_the_log_forgets_nothing_while_a_candidate_is_prepared(acts: Acts) -> None:
    for run in played([*acts, KEEPS_THE_FIFTH, *WORKS]):
        assert run.happened["deliveries of a candidate"] > 0


def test_the_log_forgets_what_no_version_needs_when_a_candidate_is_taken_back() -> None:
    played([*PINNED, KEEPS_THE_FIFTH, wish("discard"), FORGETS_THE_FIFTH])


# --- breaks ----------------------------------------------------------------------------------------------

#: The candidate is woken before it has heard what the base delivered last.
WOKEN_UNHEARD: Acts = [
    *(*BEGUN, hold("tell sink", version=2), feed(2), wait("delivered"), hold("hear", "deliver")),
    *(wish("turn"), unheard("deliver"), release("tell sink", version=2), feed(2), TAKES),
]
BREAKS: list[tuple[Callable[[pytest.MonkeyPatch], None], Setup, Acts, set[str]]] = [
    (upgrades.rest_with_a_group_in_hand, saving_flow(), TOLD_WITH_A_GROUP_IN_HAND, {"one-awake"}),
    (upgrades.wake_one_too_low, saving_flow(), WOKEN_UNHEARD, {"dup-free"}),
    (upgrades.wake_without_a_number, saving_flow(), WOKEN_UNHEARD, {"dup-free"}),
    (upgrades.begin_again_awake, saving_flow(), [*TURNED, kill_gateway(), feed(2)], {"one-awake"}),
    (upgrades.begin_again_with_the_base, saving_flow(), [*TURNED, kill_gateway()], {"converged"}),
    (upgrades.do_not_pin, saving_flow(), PINNED, {"saved-fit"}),
    (upgrades.pin_until_the_gateway_is_gone, saving_flow(), PINNED_BESIDE_A_CRASH, {"saved-fit"}),
    (upgrades.adopt_consumers_first, FORK, ONE_BY_ONE, {"saved-fit"}),
    (upgrades.adopt_beside_the_first_attempt, FORK, ANEW, {"saved-fit"}),
]


@pytest.mark.parametrize(("mutation", "setup", "acts", "by"), BREAKS, ids=[m.__name__ for m, *_ in BREAKS])
def test_a_break_of_the_rule_shows_in_its_scenario(
    mutation: Callable[[pytest.MonkeyPatch], None],
    setup: Setup,
    acts: Acts,
    by: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutation(monkeypatch)
    with pytest.raises(Violation) as caught:
        played(acts, setup)
    assert caught.value.invariant in by
