"""What a gateway's status says of a candidate: how far it has come, and why it is not fit to take over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: How far the new version's output may be behind when the sinks turn to it, and how far behind the old one's
#: once they have.
BEHIND_S_MAX = 1.0
SLOWER_S_MAX = 10.0

Status = Mapping[str, Any]


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
    def is_live(self) -> bool:
        """Whether all sinks take its output."""
        return bool(self.facts["live"])

    @property
    def is_near(self) -> bool:
        """Whether every copy of it works, and next to no output is missing that was delivered already."""
        ready = self.facts["open"] and self.facts["whole"]
        return bool(ready) and self._seconds(self.facts["behind"]) <= BEHIND_S_MAX

    @property
    def trouble(self) -> str:
        """Why it cannot begin yet; nothing if it can."""
        return str(self.facts["trouble"])

    def shortcoming(self, *, delivered: bool) -> str | None:
        """Why it is not fit to take over; `delivered` says that the sinks were told to take its output."""
        if not self.facts["open"]:
            return None
        if self.facts["crowded"] and not self.facts["takes"]:
            return f"it does not keep pace with {', '.join(self.facts['crowded'])}"
        if not delivered:
            return None
        if self.facts["down"]:
            return f"no copy of {', '.join(self.facts['down'])} is left"
        slower_s = self._seconds(self.facts["slower"])
        return f"its output is {slower_s:.0f} s behind the old one's" if slower_s > SLOWER_S_MAX else None

    def _seconds(self, buckets: Mapping[str, int]) -> float:
        return max(buckets.values(), default=0) * self.bucket_us / 1e6
