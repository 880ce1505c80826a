"""What a gateway's status says of a candidate: how far it has come, and why it is not fit to take over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from understudy.core.bucket import NOTHING, BucketId

#: How far the new version's output may be behind when the sinks turn to it, and when its trial ends.
BEHIND_S_MAX = 1.0
#: How much later than the old one's it may come once they have.
LATER_S_MAX = 10.0

Status = Mapping[str, Any]


class Lag:
    """How much later than the old version's output the new one's comes, in time that has passed.

    Bucket numbers do not tell: they are the time of the rows, which jumps when a silent source goes on, or
    ends. So a number that the old version has reached is noted with its moment, until the new one has it.
    """

    def __init__(self) -> None:
        #: By sink, a number that the new version has not reached yet, and when it was noted.
        self._awaited: dict[str, tuple[BucketId, float]] = {}

    def seconds(self, seen: CandidateStatus, now_s: float) -> float:
        """For how long at least the output that comes next has been there from the old version.

        None of a version that is not open: a gateway that has begun again does not have its output yet, and
        begins with what was delivered.
        """
        if not seen.is_open:
            self._awaited.clear()
            return 0.0
        for sink, beside in seen.facts["arrived_beside"].items():
            arrived = seen.facts["arrived"].get(sink, NOTHING)
            if sink in self._awaited and arrived >= self._awaited[sink][0]:
                del self._awaited[sink]
            if sink not in self._awaited and arrived < beside:
                self._awaited[sink] = beside, now_s
        return max((now_s - since_s for _, since_s in self._awaited.values()), default=0.0)


@dataclass(frozen=True)
class CandidateStatus:
    """`facts` are the gateway's; a bucket of the flow takes `bucket_us`."""

    facts: Status
    bucket_us: int

    @classmethod
    def of(cls, status: Status | None, version: int, bucket_us: int) -> CandidateStatus | None:
        """None if the gateway does not answer, or has no candidate of this version yet, or any more."""
        facts: Status | None = None if status is None else status["candidate"]
        return None if facts is None or facts["version"] != version else cls(facts, bucket_us)

    @property
    def is_open(self) -> bool:
        """Whether the gateway has its ends. How far it has come is said only then."""
        return bool(self.facts["open"])

    @property
    def is_live(self) -> bool:
        """Whether all sinks take its output."""
        return bool(self.facts["live"])

    @property
    def is_near(self) -> bool:
        """Whether every copy of it works, and next to no output is missing that was delivered already."""
        ready = self.is_open and self.facts["whole"]
        return bool(ready) and self._seconds(self.facts["behind"]) <= BEHIND_S_MAX

    @property
    def is_crowded(self) -> bool:
        """Whether a source has no room in it."""
        return bool(self.facts["crowded"])

    @property
    def trouble(self) -> str:
        """Why it cannot begin yet; nothing if it can."""
        return str(self.facts["trouble"])

    def shortcoming(self, lag_s: float | None) -> str | None:
        """Why it is not fit to take over; `lag_s` is its lag if the sinks were told to take its output."""
        if self.facts["failure"]:
            return str(self.facts["failure"])
        if not self.is_open:
            return None
        if self.facts["crowded"] and not self.facts["takes"]:
            return f"it does not keep pace with {', '.join(self.facts['crowded'])}"
        if lag_s is None:
            return None
        if self.facts["down"]:
            return f"no copy of {', '.join(self.facts['down'])} is left"
        return f"its output is {lag_s:.0f} s behind the old one's" if lag_s > LATER_S_MAX else None

    def _seconds(self, buckets: Mapping[str, int]) -> float:
        return max(buckets.values(), default=0) * self.bucket_us / 1e6
