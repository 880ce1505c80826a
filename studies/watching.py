"""Watching a run from outside: what its gateway says, several times a second, and what follows from that.

Nothing here needs a history, so it also works where histories would cost what is to be measured. Rows count
as *done* when everything is delivered that could be said after them; how far that is follows from the number
of the bucket through which output is delivered: to every sink, of what every source has sealed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from understudy.core.bucket import NOTHING
from understudy.runtime.local import LocalRun
from understudy.runtime.trial import Trial, warm

#: The firewall flow has put out so many rows when it has processed 300,000: one and a half cycles.
FULL_ROWS_OUT = 30_000


@dataclass(frozen=True)
class Sample:
    """One look at the gateway's status."""

    at_us: int
    rows_in: int
    rows_out: int
    sealed_through: int
    delivered_through: int
    latency_ms: float
    buffered_bytes: int


class Watch:
    """A trial whose every look is kept."""

    def __init__(self, run: LocalRun, tell: Any) -> None:
        self.samples: list[Sample] = []
        self.trial = Trial(run, tell=tell, pause=self._pause)

    def _pause(self, seconds: float) -> None:
        status = self.trial.latest
        if status is not None:
            self.samples.append(_sample(status))
        time.sleep(seconds)

    def look_for(self, seconds: float, steps_min: int = 0) -> list[Sample]:
        """The samples of so long a time from now on; of longer, until output has moved on so often."""
        began_us = time.time_ns() // 1_000
        until_us = began_us + int(seconds * 1e6)

        def seen() -> list[Sample]:
            return [sample for sample in self.samples if sample.at_us >= began_us]

        self.trial.wait(
            f"{seconds:g} s to pass with {steps_min} outputs",
            lambda s: s["at_us"] >= until_us and len(steps(seen())) >= steps_min,
            timeout_s=5 * seconds + 60,
        )
        return seen()


def full(status: dict[str, Any]) -> bool:
    """Whether every replica of the firewall flow is warm and holds as much state as it ever will."""
    return warm(status) and int(status["rows_out"]) >= FULL_ROWS_OUT


def _sample(status: dict[str, Any]) -> Sample:
    sealed, delivered = status["sealed_through"], status["delivered_through"] or {}
    return Sample(
        status["at_us"],
        status["rows_in"],
        status["rows_out"],
        min(sealed.values(), default=NOTHING),
        min(delivered.values(), default=NOTHING),
        status["latency_ms"] or 0.0,
        status["buffered_bytes"],
    )


def rows_in_per_s(samples: Sequence[Sample]) -> float:
    return (samples[-1].rows_in - samples[0].rows_in) / ((samples[-1].at_us - samples[0].at_us) / 1e6)


def steps(samples: Sequence[Sample]) -> list[Sample]:
    """The looks that saw output move on."""
    return [
        after for before, after in pairwise(samples) if after.delivered_through > before.delivered_through
    ]


def buckets_done_per_s(samples: Sequence[Sample]) -> float:
    """How fast output moves on: in uneven steps, so by the line that fits best, not by its ends."""
    at_s = np.array([(sample.at_us - samples[0].at_us) / 1e6 for sample in samples])
    through = np.array([sample.delivered_through - samples[0].delivered_through for sample in samples])
    return float(np.polyfit(at_s, through, 1)[0])


def waits_ms(samples: Sequence[Sample], all_samples: Sequence[Sample]) -> list[float]:
    """For each step of the output, how long ago its last input bucket was sealed; to a look's precision."""
    waits, at = [], 0
    for step in steps(samples):
        while at < len(all_samples) - 1 and all_samples[at].sealed_through < step.delivered_through:
            at += 1
        waits.append((step.at_us - all_samples[at].at_us) / 1e3)
    return waits


def input_rates(samples: Sequence[Sample], span_s: float = 1.0) -> list[tuple[int, float]]:
    """Rows a second taken in, over spans of about so long, each at its end."""
    out: list[tuple[int, float]] = []
    since = samples[0] if samples else None
    for sample in samples:
        assert since is not None
        if sample.at_us - since.at_us >= span_s * 1e6:
            out.append((sample.at_us, rows_in_per_s([since, sample])))
            since = sample
    return out
