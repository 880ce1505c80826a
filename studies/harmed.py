"""The traffic flow, harmed while rows flow: how it is run, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import check_history, compare_with_truth, deliveries, say, silence_around, traffic_run
from understudy.runtime.trial import Trial


@contextmanager
def traffic_trial(**settings: Any) -> Iterator[tuple[Trial, Path]]:
    """A run of the traffic flow that says what is done to it, and its folder. It is stopped at the end."""
    run, folder = traffic_run(**settings)
    try:
        yield Trial(run, tell=say), folder
    finally:
        run.stop()


@dataclass(frozen=True)
class Outcome:
    """What a run has delivered, compared with the truth; when results came, and when a process was harmed."""

    verdict: dict[str, int]
    times_us: list[int]
    harms_us: list[int]

    @property
    def silences_s(self) -> list[float]:
        """For each harm the gap between the last result before it and the first one after it."""
        return [silence_around(self.times_us, at) for at in self.harms_us]


def outcome_of(trial: Trial, folder: Path) -> Outcome:
    """Of a run that has ended. Raises if its history or its output is not what it must be."""
    check_history(folder)
    verdict = compare_with_truth(folder)
    harms = [harm.at_us for harm in trial.harms if harm.what in ("SIGKILL", "SIGSTOP")]
    return Outcome(verdict, [at for at, _, _ in deliveries(folder)], harms)
