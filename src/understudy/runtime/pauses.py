"""Pauses of this process itself: it was stopped, or got no processor time.

A process that was paused finds every other process silent, and its connections closed by processes that found
*it* silent. Neither says anything about the others. So a process looks at its own clock before it judges
silence: a tick that comes late by more than the limit was a pause, and after a pause every peer gets a fresh
period.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

Clock = Callable[[], float]
#: Reports that call another process dead.
SUSPICIONS = ("suspected",)


class OwnPauses:
    """Call `tick` much more often than every `limit_s`."""

    def __init__(self, limit_s: float, clock: Clock = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._ticked_at = clock()
        self._ended_at: float | None = None

    def tick(self) -> bool:
        """Whether this process was paused since the last tick."""
        paused = self._overdue()
        self._ticked_at = self._clock()
        if paused:
            self._ended_at = self._ticked_at
        return paused

    def lately(self, within_s: float) -> bool:
        """Whether a pause ended that recently, or just now: the thread that ticks may not have woken yet."""
        recent = self._ended_at is not None and self._clock() - self._ended_at <= within_s
        return recent or self._overdue()

    def _overdue(self) -> bool:
        return self._clock() - self._ticked_at > self._limit_s


class CarefulReports:
    """Passes reports on, but no suspicion within `silence_s` of this process's own pause.

    What is held back is not sent later: suspicions about those that stay away are repeated anyway.
    """

    def __init__(
        self, report: Callable[[str, dict[str, Any]], None], silence_s: float, clock: Clock = time.monotonic
    ) -> None:
        self._report = report
        self._silence_s = silence_s
        self._pauses = OwnPauses(silence_s / 2, clock)

    def tick(self) -> None:
        """Call it several times a second."""
        self._pauses.tick()

    def send(self, kind: str, facts: dict[str, Any]) -> bool:
        """Whether the report was passed on."""
        if kind in SUSPICIONS and self._pauses.lately(self._silence_s):
            log.warning("this process was paused itself, so it does not report yet: %s %s", kind, facts)
            return False
        self._report(kind, facts)
        return True
