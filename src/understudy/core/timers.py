"""Timers: how a machine without a clock waits.

A machine asks for `SetTimer(key, delay_ms)` and gets `TimerFired(key)` when that time has passed.
Setting a timer under a key that is set already replaces it. A machine that no longer cares lets the timer
fire and looks at its own state: nothing is ever cancelled, so nothing can be cancelled too late.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from understudy.core.errors import require


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Say `TimerFired(key)` after this delay; forget an earlier timer of that key."""

    key: Hashable
    delay_ms: int

    def __post_init__(self) -> None:
        require(self.delay_ms >= 0, f"a timer cannot fire {-self.delay_ms} ms ago")


@dataclass(frozen=True, slots=True)
class TimerFired:
    key: Hashable
