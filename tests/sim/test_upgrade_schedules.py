"""Random schedules of runs that are upgraded: no invariant breaks, whichever version delivers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mutations import upgrades

from understudy.core.bucket import NOTHING, BucketId
from understudy.sim.checkers import Violation
from understudy.sim.seeds import simulate
from understudy.sim.upgrade_schedules import run_upgrade_seed
from understudy.sim.versions import SharedDisk

#: Policy, replicas, seeds. More on demand: `understudy simulate --upgrades`.
WORLDS = [("none", None, 80), ("pair", None, 50), ("pair", 3, 30), ("flux", None, 12), ("passive", None, 14)]
#: Schedules in which one of these never happens prove nothing.
HAPPENS = (
    *("adopted", "older states adopted", "adoptions begun anew", "opens", "turns", "turns back"),
    *("deliveries of the base", "deliveries of a candidate", "commits", "discards"),
    *("power failures beside a candidate", "restores", "older states", "rereads"),
)


@pytest.mark.parametrize(("policy", "replicas", "seeds"), WORLDS)
def test_no_schedule_of_an_upgrade_breaks_an_invariant(policy: str, replicas: int | None, seeds: int) -> None:
    summary = simulate(policy, seeds, replicas=replicas, upgrades=True)
    assert summary.violations == [], f"seed {summary.violations[0][0]} of {policy}"
    assert summary.seeds == seeds
    assert [what for what in HAPPENS if not summary.happened[what]] == [], "these never happened"


def test_one_seed_makes_one_schedule_of_an_upgrade() -> None:
    first, again = (run_upgrade_seed("pair", 7) for _ in range(2))
    assert (first.steps, first.faults, first.happened) == (again.steps, again.faults, again.happened)


def test_a_gateways_memory_may_begin_anywhere_for_the_log_has_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How far versions have let memory go says how much is read again, and nothing else hangs on it."""

    def after_all_that_is_sealed(disk: SharedDisk, source: str) -> BucketId:
        sealed = disk.sealed[source]
        return disk._run.setup.flow.inputs[source][sealed - 1].number if sealed else NOTHING

    usual = simulate("none", 30, upgrades=True)
    monkeypatch.setattr(SharedDisk, "begins_after", after_all_that_is_sealed)
    without_memory = simulate("none", 30, upgrades=True)
    assert without_memory.violations == []
    assert without_memory.happened["rereads"] > usual.happened["rereads"]


#: Breaks that chance shows soon, and by what. The others are in `test_upgrade_scenarios`.
BREAKS: dict[Callable[[pytest.MonkeyPatch], None], set[str]] = {
    upgrades.wake_without_waiting: {"sound", "one-awake"},
    upgrades.wake_one_too_high: {"state-exact"},
    upgrades.acknowledge_at_rest: {"state-exact"},
    upgrades.do_not_tell_what_is_delivered: {"converged"},
    upgrades.commit_while_awake: {"sound"},
    upgrades.commit_while_awake_unseen: {"converged"},
    upgrades.keep_for_the_live_version: {"saved-fit", "kept"},
}
SEEDS = 60


@pytest.mark.parametrize("mutation", BREAKS, ids=[mutation.__name__ for mutation in BREAKS])
def test_a_break_is_caught_by_the_invariant_named_for_it(
    monkeypatch: pytest.MonkeyPatch, mutation: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mutation(monkeypatch)
    with pytest.raises(Violation) as caught:
        for seed in range(SEEDS):
            run_upgrade_seed("none", seed)
    assert caught.value.invariant in BREAKS[mutation]
