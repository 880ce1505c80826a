"""Peers whose messages could not be read: how long each is kept out.

A peer that is cut off because its message is not of this protocol may have had an accident, and a new
connection puts that right. Or it sends the same again over every connection. So each further breach doubles
the time for which the peer is kept out, up to a bound. After a few that is longer than a host waits for a
broken connection to stand again, and the host suspects the peer as one that cannot be reached.
"""

from __future__ import annotations

from dataclasses import dataclass

#: All times are in silence limits.
KEPT_OUT_FIRST = 1 / 16
KEPT_OUT_MAX = 4.0
#: A breach this long ago does not count any more.
PARDONED = 32


@dataclass(frozen=True, slots=True)
class _Breach:
    count: int
    at_s: float
    kept_out_until_s: float


class Breaches:
    """The breaches of each peer. The clock is the caller's; any thread may ask."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._last: dict[str, _Breach] = {}

    def note(self, peer: str, now_s: float) -> None:
        """The peer broke the protocol and was cut off."""
        self._last = {name: breach for name, breach in self._last.items() if self._counts(breach, now_s)}
        before = self._last.get(peer)
        count = 1 if before is None else before.count + 1
        kept_out_s = self._silence_s * min(KEPT_OUT_FIRST * 2 ** min(count - 1, 16), KEPT_OUT_MAX)
        self._last[peer] = _Breach(count, now_s, now_s + kept_out_s)

    def keep_out(self, peer: str, now_s: float) -> bool:
        """Whether no connection with the peer is to be made yet."""
        breach = self._last.get(peer)
        return breach is not None and now_s < breach.kept_out_until_s

    def _counts(self, breach: _Breach, now_s: float) -> bool:
        return now_s - breach.at_s <= PARDONED * self._silence_s
