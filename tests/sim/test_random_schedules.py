"""Seeded fault schedules hold every invariant; a seed replays."""

from __future__ import annotations

from understudy.core.buffer import Acks

from understudy.sim.random_schedules import Summary, run_seed, simulate

SEEDS = 500


def test_pairs_survive_random_faults_under_both_ways_of_acknowledging() -> None:
    summary = simulate("pair", SEEDS)
    assert [str(violation) for _, violation in summary.violations] == []
    assert {"kill", "stall", "break", "crash", "suspect", "controller"} <= summary.faults.keys()
    assert summary.caught_up > SEEDS


def test_an_unprotected_flow_survives_faults_of_its_edges() -> None:
    summary = simulate("none", 200, acks=(Acks.CUMULATIVE,))
    assert [str(violation) for _, violation in summary.violations] == []


def test_a_seed_makes_the_same_run_again() -> None:
    first, second = run_seed("pair", 7), run_seed("pair", 7)
    assert (first.steps, first.now_us, first.faults) == (second.steps, second.now_us, second.faults)


def test_progress_is_told_after_every_seed() -> None:
    told: list[int] = []

    def progress(summary: Summary) -> None:
        told.append(summary.seeds)

    simulate("pair", 3, start_seed=5, progress=progress)
    assert told == [1, 2, 3]
