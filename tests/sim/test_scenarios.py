"""The cases of the Flux paper's section 3, and those that go beyond it, as scenarios."""

from __future__ import annotations

import pytest
from understudy.core.buffer import Acks

from understudy.sim.scenario import (
    PRIM,
    SEC,
    Scenario,
    bucket,
    cut,
    kill,
    kill_gateway,
    standby,
    wait,
    wait_caught_up,
)
from understudy.sim.scenario_run import run_scenario

#: Seed 0 has even delays; the others draw them over three orders of magnitude.
SEEDS = range(25)
START: Scenario = [wait("attached"), wait("attached"), bucket(4)]

PAPER: dict[str, Scenario] = {
    "nothing fails": [*START, bucket(4)],
    "the primary is taken over": [*START, kill(PRIM), bucket(4)],
    "the secondary is taken over": [*START, kill(SEC), bucket(4)],
    "take-over before any input": [wait("attached"), kill(PRIM), bucket(4)],
    "take-over with everything delivered": [*START, wait("delivered"), kill(PRIM), bucket(4)],
    "catch-up": [*START, kill(PRIM), standby(), wait_caught_up(), bucket(4)],
    "catch-up without input": [wait("attached"), kill(SEC), standby(), wait_caught_up(), bucket(1)],
    "catch-up under input": [*START, kill(SEC), standby(), bucket(9), wait_caught_up(), bucket(2)],
    "one after the other": [
        *START,
        *(kill(PRIM), standby(), bucket(3), wait("installed"), wait_caught_up()),
        *(kill(SEC), standby(), bucket(3), wait("installed"), wait_caught_up(), bucket(2)),
    ],
    "the standby dies before its state moves": [
        *START,
        *(kill(SEC), standby(), wait("seated"), kill(SEC)),
        *(standby(), bucket(3), wait("installed"), wait_caught_up()),
    ],
    "the standby dies while its state moves, again and again": [
        *START,
        kill(PRIM),
        *(standby(), wait("seated"), wait("snapshot"), bucket(1), kill(PRIM)) * 3,
        *(standby(), bucket(3), wait("installed"), wait_caught_up(), kill(SEC), bucket(2)),
    ],
    "the standby dies with its state installed": [
        *START,
        *(kill(SEC), standby(), wait("installed"), kill(SEC)),
        *(standby(), bucket(3), wait("installed"), wait_caught_up(), kill(PRIM), bucket(3)),
    ],
}

BEYOND: dict[str, Scenario] = {
    "the active one dies right after movement": [
        *START,
        *(kill(SEC), standby(), bucket(6), wait("installed"), kill(PRIM), bucket(6)),
    ],
    "both connections of the sender break": [*START, cut(PRIM), bucket(4), cut(PRIM), bucket(2)],
    "every connection breaks": [*START, cut(PRIM), cut(SEC), bucket(4)],
    "the gateway crashes in normal running": [*START, kill_gateway(), bucket(4)],
    "the gateway crashes twice": [*START, kill_gateway(), bucket(2), wait("attached"), kill_gateway()],
    "the gateway crashes during take-over": [*START, kill(PRIM), kill_gateway(), bucket(4)],
    "the gateway crashes right after take-over": [
        *(*START, kill(PRIM), bucket(2), wait("delivered"), kill_gateway(), bucket(4))
    ],
    "the gateway crashes while a standby waits": [
        *(*START, kill(SEC), standby(), wait("seated"), kill_gateway(), bucket(4))
    ],
    "the gateway crashes while state moves": [
        *(*START, kill(SEC), standby(), wait("snapshot"), kill_gateway(), bucket(4))
    ],
    "the gateway crashes when state is installed": [
        *(*START, kill(SEC), standby(), wait("installed"), kill_gateway(), bucket(4))
    ],
    "the gateway crashes after one end has folded in": [
        *(*START, kill(SEC), standby(), wait("installed"), wait("attached"), kill_gateway(), bucket(4))
    ],
    "the gateway and then the active one die after movement": [
        *(*START, kill(SEC), standby(), bucket(4), wait("installed"), kill_gateway()),
        *(wait("attached"), kill(PRIM), bucket(4)),
    ],
    "the active one's connections break while state moves": [
        *(*START, kill(SEC), standby(), wait("snapshot"), cut(PRIM), bucket(6), wait_caught_up()),
        *(kill(PRIM), bucket(2)),
    ],
}


@pytest.mark.parametrize("acks", list(Acks))
@pytest.mark.parametrize("name", PAPER)
def test_a_case_of_the_paper_loses_and_repeats_nothing(name: str, acks: Acks) -> None:
    for seed in SEEDS:
        run_scenario(PAPER[name], seed, acks=acks)


@pytest.mark.parametrize("name", BEYOND)
def test_a_case_beyond_the_paper_loses_and_repeats_nothing(name: str) -> None:
    for seed in SEEDS:
        run_scenario(BEYOND[name], seed)


def test_a_scenario_that_waits_for_an_unknown_moment_is_refused() -> None:
    with pytest.raises(ValueError, match="no moment 'tomorrow'"):
        wait("tomorrow")


def test_after_a_catch_up_both_slots_are_active_again() -> None:
    world = run_scenario(PAPER["catch-up"])
    assert world.controller.caught_up == 1
