"""Many seeds, one after the other: what they came to, and the first that fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from understudy.sim.checkers import Violation
from understudy.sim.schedules import run_seed
from understudy.sim.upgrade_schedules import run_upgrade_seed


@dataclass(slots=True)
class Summary:
    """What some seeds came to."""

    policy: str
    replicas: int | None = None
    #: Whether they were schedules of a run that is upgraded.
    upgrades: bool = False
    seeds: int = 0
    steps: int = 0
    buckets: int = 0
    caught_up: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    #: What saved states and upgrades led to.
    happened: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, Violation]] = field(default_factory=list)

    def add(self, other: Summary) -> None:
        """Count what further seeds came to."""
        self.seeds += other.seeds
        self.steps += other.steps
        self.buckets += other.buckets
        self.caught_up += other.caught_up
        self.faults.update(other.faults)
        self.happened.update(other.happened)
        self.violations += other.violations


def simulate(
    policy: str,
    seeds: int,
    start_seed: int = 0,
    *,
    replicas: int | None = None,
    upgrades: bool = False,
    progress: Callable[[Summary], None] | None = None,
) -> Summary:
    """Run this many seeds; stop at the first that fails."""
    summary = Summary(policy, replicas, upgrades)
    run = run_upgrade_seed if upgrades else run_seed
    began = perf_counter()
    for seed in range(start_seed, start_seed + seeds):
        try:
            done = run(policy, seed, replicas=replicas)
        except Violation as violation:
            summary.violations.append((seed, violation))
            break
        finally:
            summary.seconds = perf_counter() - began
        summary.seeds += 1
        summary.steps += done.steps
        summary.buckets += sum(done.disk.sealed.values())
        summary.caught_up += done.caught_up
        summary.faults.update(done.faults)
        summary.happened.update(done.happened)
        if progress is not None:
            progress(summary)
    return summary
