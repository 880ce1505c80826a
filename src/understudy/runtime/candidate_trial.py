"""The trial of a new version: the sinks take its output, and the old version can still take over again.

It begins when the sinks are told to turn. From one status after the other it finds out why the new version is
to be taken back, or that it has stood its trial. What cannot be seen is no trial: it begins anew then.

A gateway that was killed does not say over what, and one death may have any reason. A second one during the
same trial is taken for the new version's: its output may be more than the gateway has memory for.
"""

from __future__ import annotations

from collections.abc import Callable

from understudy.runtime.candidate_status import BEHIND_S_MAX, CandidateStatus, Lag, Status
from understudy.runtime.upgrade_files import Request

#: For how long it may not be seen that the sinks take its output, once they were told to.
UNSEEN_S_MAX = 60.0
#: An old version that holds the sources up for so long while on trial could not take over any more.
HELD_UP_S_MAX = 3.0
#: How many gateways may be seen, one after the other: the one that began, and its successor.
GATEWAYS_MAX = 2


class CandidateTrial:
    """Of the version that was asked for. Begins when it is made; belongs to one thread."""

    def __init__(self, wanted: Request, clock: Callable[[], float]) -> None:
        self._wanted = wanted
        self._clock = clock
        #: When it was last seen that the sinks take the new version's output, and since when the trial runs.
        self._seen_at = clock()
        self._since: float | None = None
        #: Since when the old version holds the sources up.
        self._held_up_since: float | None = None
        self._lag = Lag()
        #: The gateways that were seen since, by their process.
        self._gateways: set[int] = set()

    def shortcoming(self, status: Status | None) -> str | None:
        """Why the new version is to be taken back."""
        if self._clock() - self._seen_at > UNSEEN_S_MAX and self.seen_live(status) is None:
            return f"for {UNSEEN_S_MAX:g} s it was not seen that its output is delivered"
        if status is not None:
            self._gateways.add(status["gateway"]["pid"])
        if len(self._gateways) > GATEWAYS_MAX:
            return f"the gateway was killed {len(self._gateways) - 1} times while its output was delivered"
        seen = self._seen(status)
        return None if seen is None else seen.shortcoming(self._lag_s(seen))

    def seen_live(self, status: Status | None) -> CandidateStatus | None:
        """What the gateway says of the new version if the sinks take its output; None if they do not."""
        seen = self._seen(status)
        if seen is None or not seen.is_live:
            return None
        self._seen_at = self._clock()
        return seen

    def end(self, status: Status | None) -> str | None:
        """Why the trial ends before its time, and nothing if that is over; None while it goes on."""
        seen = self.seen_live(status)
        if status is None or seen is None:
            self._since = self._held_up_since = None
            self._lag = Lag()
            return None
        now = self._clock()
        if self._since is None:
            self._since = now
        if not status["waiting_for_room"]:
            self._held_up_since = None
        elif self._held_up_since is None:
            self._held_up_since = now
        if self._lag_s(seen) > BEHIND_S_MAX:
            # What is awaited now comes, or the new version falls short: either is soon known.
            return None
        if now - self._since >= self._wanted.trial_s:
            return ""
        held_up = self._held_up_since is not None and now - self._held_up_since >= HELD_UP_S_MAX
        if held_up and not seen.is_crowded:
            # The sources do not wait for it now, so what it lacks grows.
            waiting = ", ".join(status["waiting_for_room"])
            return f"the old version does not keep pace with {waiting}, so the trial ends early"
        return None

    def _seen(self, status: Status | None) -> CandidateStatus | None:
        return CandidateStatus.of(status, self._wanted.version, self._wanted.bucket_us)

    def _lag_s(self, seen: CandidateStatus) -> float:
        """How much later than the old version's its output comes."""
        return self._lag.seconds(seen, self._clock())
