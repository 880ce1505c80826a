"""A run as seen from outside, kept fresh by a thread of its own.

Asking may take seconds while the gateway or ZooKeeper is away, and whoever shows a run or looks after its
processes cannot wait for that. So a thread asks, and `latest` is what it last heard.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.members import Member
from understudy.runtime.gateway.process import FACT
from understudy.runtime.settings import RunSettings
from understudy.runtime.status import status_at

ANSWER_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Seen:
    """What was heard: the gateway's status (empty if it did not answer) and who is a member."""

    at_s: float = 0.0
    status: dict[str, Any] = field(default_factory=dict)
    members: tuple[Member, ...] = ()

    @property
    def ready_nodes(self) -> set[str]:
        """The nodes that have joined, by the names they were started under."""
        return {str(m.facts.get("node", m.name)) for m in self.members if m.kind == "node"}

    @property
    def all_active(self) -> bool:
        seats = self.status.get("seats", {})
        return bool(seats) and all(seat["status"] == "ACTIVE" for seat in seats.values())


class Watch:
    """Asks about a run every `period_s` until `close`."""

    def __init__(self, settings: RunSettings, period_s: float = 0.5) -> None:
        self._settings = settings
        self._period_s = period_s
        self._end = threading.Event()
        self._latest = Seen()
        self._coordination = Coordination(settings.zookeeper, settings.run)
        self._thread = threading.Thread(target=self._follow, name="status", daemon=True)
        self._thread.start()

    @property
    def latest(self) -> Seen:
        return self._latest

    def close(self) -> None:
        self._end.set()
        self._coordination.close()
        self._thread.join(ANSWER_TIMEOUT_S + 1.0)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _follow(self) -> None:
        while not self._end.is_set():
            try:
                members = tuple(self._coordination.members())
                facts = self._coordination.get_fact(FACT)
            except Exception:
                # Closed while it waited for ZooKeeper; there is nobody left to tell.
                if self._end.is_set():
                    return
                raise
            self._latest = Seen(time.monotonic(), self._asked(facts), members)
            self._end.wait(self._period_s)

    def _asked(self, facts: Any) -> dict[str, Any]:
        if not facts:
            return {}
        try:
            return status_at(str(facts["flight"]), ANSWER_TIMEOUT_S)
        except EnvironmentFailed:
            return {}
