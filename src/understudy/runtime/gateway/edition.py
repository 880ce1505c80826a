"""An edition: one version of the flow at its gateway, with its parts once they are there, and what is told of
it. `gateway.versions` has the whole.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.turning import Turning
from understudy.runtime.gateway.boundary import Boundary
from understudy.runtime.gateway.leading import Leading
from understudy.runtime.partitioning import Dataflow
from understudy.runtime.settings import RunSettings


@dataclass(eq=False)
class Edition:
    """One version at this gateway: how far it lets the log go, and its parts once they are there."""

    settings: RunSettings
    dataflow: Dataflow
    #: By source, through which number it lets memory and the log go.
    trimmed: dict[str, BucketId] = field(default_factory=dict)
    forgotten: dict[str, BucketId] = field(default_factory=dict)
    #: It may still be on its way into the coordination, or try in vain to get there.
    leading: Leading | None = None
    boundary: Boundary | None = None
    #: What its nodes have told last. Written by the actor.
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Set when it is not wanted any more.
    over: threading.Event = field(default_factory=threading.Event)
    #: Why it cannot begin yet; and why it cannot work any more.
    trouble: str = ""
    failure: str = ""

    @property
    def version(self) -> int:
        return self.settings.version

    @property
    def running(self) -> bool:
        """Whether every partition that feeds a sink sends its output."""
        return self.boundary is not None and self.boundary.running

    @property
    def crowded(self) -> list[str]:
        """The sources that have no room here."""
        return [] if self.boundary is None else self.boundary.crowded

    @property
    def overfull(self) -> list[str]:
        """The sources of which too much waits here for room."""
        return [] if self.boundary is None else self.boundary.overfull

    def reads(self, source: str) -> bool:
        return source in self.dataflow.topology.sources

    @property
    def _waits(self) -> str:
        """Why a copy of it does not have its saved state yet; nothing if none waits for it."""
        copies = [copy for facts in list(self.nodes.values()) for copy in facts.get("copies", {}).values()]
        # Of one that has begun, this would be why it was not saved.
        waiting = [copy.get("saving_trouble") for copy in copies if not copy.get("begun", True)]
        return min(filter(None, waiting), default="")

    def leave(self) -> None:
        """End its part in the coordination. Takes a few seconds if ZooKeeper is away."""
        leading = self.leading
        if leading is not None:
            leading.end()

    def status_beside(self, first: Edition, turning: Turning) -> dict[str, Any]:
        """What an operator wants to know of it, as plain data. The run goes on with `first`."""
        leading, boundary = self.leading, self.boundary
        view = None if boundary is None else boundary.host.view
        facts = {
            "version": self.version,
            "members": [] if leading is None else leading.members,
            "failure": self.failure,
            "trouble": self.trouble or ("" if leading is None else leading.failure or "") or self._waits,
            # Whether all sinks take its output, and whether any does.
            "live": turning.turned and turning.wanted == self.version,
            "takes": turning.takes(self.version),
        }
        if boundary is None or view is None:
            return {**facts, "open": False}
        return {
            **facts,
            "open": True,
            "seats": boundary.status()["seats"],
            "whole": not self.failure and all(seats.whole for seats in view.partitions.values()),
            "down": [str(partition) for partition, seats in view.partitions.items() if seats.lost],
            "crowded": boundary.crowded,
            # How many buckets of each sink were delivered and could not have come from this version yet.
            "behind": _short_of(turning.delivered, boundary.caught_up_through),
            # Through which number each sink's output has come from this version, and from the one that the
            # run goes on with.
            "arrived": boundary.arrived_through,
            "arrived_beside": {} if first.boundary is None else first.boundary.arrived_through,
        }


def _short_of(reached: Mapping[str, BucketId], by_this: Mapping[str, BucketId]) -> dict[str, int]:
    """By sink, how many buckets this version lacks of what another has reached."""
    return {sink: max(0, through - by_this.get(sink, NOTHING)) for sink, through in reached.items()}
