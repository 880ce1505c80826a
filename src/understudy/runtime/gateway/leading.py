"""The gateway's part in the coordination of one version of its flow: it is a member whose address every node
must know, and the first candidate to lead, since it notices a dead replica first.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from understudy.core.host.places import GATEWAY
from understudy.core.shape.topology import Topology
from understudy.core.view.events import Report
from understudy.core.view.view import View
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.leader import Leadership
from understudy.runtime.coordination.members import Member, Membership
from understudy.runtime.coordination.reports import written
from understudy.runtime.durable import leave_mark
from understudy.runtime.partitioning import controller_for, require_view
from understudy.runtime.pauses import CarefulReports
from understudy.runtime.process import seated_file
from understudy.runtime.settings import RunSettings

#: The name under which nodes find the gateway's address.
FACT = GATEWAY


class Leading:
    """`begin` and the constructor wait for ZooKeeper; the rest does not."""

    def __init__(self, settings: RunSettings, topology: Topology) -> None:
        self._settings = settings
        self._coordination = Coordination(settings.zookeeper, settings.coordinates)
        self._reports = CarefulReports(self._coordination.report, settings.silence_s)
        controller = controller_for(topology, settings)
        self._leadership = Leadership(self._coordination, GATEWAY, controller, seat_kind="node", priority=0)
        self._membership: Membership | None = None
        self._members: list[str] = []

    def begin(self, address: str) -> None:
        """Be a member that nodes can call, and stand for election."""
        facts = {"flight": address, "pid": os.getpid()}
        self._coordination.put_fact(FACT, facts)
        self._leadership.start()
        self._membership = self._coordination.join("gateway", f"{GATEWAY}.{os.getpid()}", facts)

    def follow(self, on_view: Callable[[View], None]) -> None:
        """Hear of every view from here on, beginning with the newest."""
        mark = seated_file(self._settings.version_path)

        def seen(view: View) -> None:
            if not mark.exists():
                with suppress(EnvironmentFailed):  # A full disk is said where rows are written.
                    leave_mark(mark)
            on_view(view)

        self._coordination.watch_members(self._on_members)
        # What is decided from here on waits for this gateway; what was decided before, it must know.
        self._coordination.await_newest()
        stored = self._coordination.view()
        require_view(None if stored is None else stored.view, self._settings)
        self._coordination.watch_view(seen)

    def tick(self) -> None:
        self._reports.tick()

    def report(self, report: Report) -> bool:
        """Tell the controller; False if this process cannot be sure of what it reports."""
        return self._reports.send(*written(report))

    @property
    def members(self) -> list[str]:
        return self._members

    @property
    def failure(self) -> str | None:
        """Why this candidate last gave up leading, until it has led again."""
        return None if self._leadership.failure is None else str(self._leadership.failure)

    def end(self) -> None:
        if self._membership is not None:
            self._membership.leave()
        self._leadership.stop()
        self._coordination.close()

    def _on_members(self, members: list[Member]) -> None:
        self._members = [member.name for member in members if member.kind == "node"]
