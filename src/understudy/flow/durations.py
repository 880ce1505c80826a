"""Durations as users write them: a number and a unit, such as "100 ms", "1.5 s" or "10 minutes"."""

from __future__ import annotations

import re
from fractions import Fraction

from understudy.flow.errors import FlowError

_UNITS_US = {
    "us": 1,
    "microsecond": 1,
    "ms": 1_000,
    "millisecond": 1_000,
    "s": 1_000_000,
    "sec": 1_000_000,
    "second": 1_000_000,
    "min": 60_000_000,
    "minute": 60_000_000,
    "h": 3_600_000_000,
    "hour": 3_600_000_000,
    "d": 86_400_000_000,
    "day": 86_400_000_000,
}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")
# Beyond this, sums of times and durations could leave 64 bits.
_LONGEST_US = 366 * _UNITS_US["day"]


def duration_us(text: str, where: str) -> int:
    """The microseconds that `text` means. `where` opens the message if it means none."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    unit = match and (_UNITS_US.get(match[2].lower()) or _UNITS_US.get(match[2].lower().removesuffix("s")))
    if not match or not unit:
        raise FlowError(
            f"{where}: {text!r} is not a duration. Write a number and a unit (us, ms, s, min, h, d), "
            'such as "100 ms".'
        )
    exact = Fraction(match[1]) * unit
    if exact.denominator != 1:
        raise FlowError(f"{where}: {text!r} is not a whole number of microseconds.")
    if exact > _LONGEST_US:
        raise FlowError(f"{where}: {text!r} is longer than 366 days.")
    return int(exact)


def duration_text(time_us: int) -> str:
    """The shortest way to write a duration, in the largest unit that divides it."""
    for unit in ("d", "h", "min", "s", "ms"):
        if time_us and time_us % _UNITS_US[unit] == 0:
            return f"{time_us // _UNITS_US[unit]} {unit}"
    return f"{time_us} us" if time_us else "0 ms"
