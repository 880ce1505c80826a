"""Random fault schedules for every policy, with all faults on: no invariant breaks, and all converge."""

from __future__ import annotations

import pytest

from understudy.sim.seeds import Summary, simulate

#: Policy, replicas, seeds. More on demand: `understudy simulate`.
WORLDS = [
    ("none", None, 150),
    ("pair", None, 250),
    ("pair", 3, 150),
    ("flux", None, 60),
    ("cluster", None, 80),
    ("passive", None, 80),
    ("passive", 3, 40),
]


def schedules(policy: str, replicas: int | None, seeds: int) -> Summary:
    summary = simulate(policy, seeds, replicas=replicas)
    assert summary.violations == [], f"seed {summary.violations[0][0]} of {policy}"
    return summary


@pytest.mark.parametrize(("policy", "replicas", "seeds"), WORLDS)
def test_no_schedule_breaks_an_invariant(policy: str, replicas: int | None, seeds: int) -> None:
    summary = schedules(policy, replicas, seeds)
    assert summary.seeds == seeds
    assert summary.buckets > 0
    # A world in which nothing fails proves nothing.
    for fault in ("kill", "sever", "crash", "stall", "expire", "suspect", "leaderless", "lead", "refuse"):
        assert summary.faults[fault] > 0, f"{fault} never happened"


@pytest.mark.parametrize(
    ("policy", "replicas", "seeds"),
    [("pair", None, 150), ("pair", 3, 80), ("flux", None, 40), ("passive", None, 60)],
)
def test_schedules_harm_the_movement_of_a_state(policy: str, replicas: int | None, seeds: int) -> None:
    summary = schedules(policy, replicas, seeds)
    assert summary.caught_up > 0
    moving = ("kill lender", "kill standby", "bad fetch", "bad snapshot", "bad install", "hung fetch", "move")
    assert sum(summary.faults[fault] > 0 for fault in moving) >= 4


def test_schedules_lose_all_copies_of_a_partition_and_harm_saved_states() -> None:
    summary = schedules("flux", None, 60)
    for what in ("saves", "restores", "older states", "rereads", "gaps"):
        assert summary.happened[what] > 0, f"{what} never happened"
    for fault in ("kill all", "power", "bad save", "old state"):
        assert summary.faults[fault] > 0, f"{fault} never happened"


def test_one_seed_makes_one_schedule() -> None:
    first, again = (simulate("pair", 3, 77) for _ in range(2))
    assert (first.steps, first.faults, first.buckets) == (again.steps, again.faults, again.buckets)
