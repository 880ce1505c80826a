"""The store and its leader: members, reports, the published view, and the controller that decides.

The leader reads levels, not edges: it compares the members with those that its controller has heard of. It
handles one event at a time, and the next only when all views that the last one led to are stored. A leader
that is replaced can store nothing more; the next one begins from the stored view. A report stays in the store
until the views that reflect it are stored, so the next leader reads it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.timers import SetTimer, TimerFired
from understudy.core.view.controller import Controller
from understudy.core.view.events import (
    ControllerEvent,
    Declined,
    MemberJoined,
    MembersLeft,
    Publish,
    Report,
)
from understudy.core.view.view import View
from understudy.sim.checkers import Violation

MakeController = Callable[[View | None], Controller]


@dataclass(eq=False, slots=True)
class Leader:
    """A controller in office, and which members it has heard of: whether each joined or left."""

    controller: Controller
    heard_of: dict[str, bool] = field(default_factory=dict)
    publishing: deque[View] = field(default_factory=deque)
    timers: dict[Hashable, int] = field(default_factory=dict)
    #: The process whose report is being acted on.
    acting_on: str | None = None


@dataclass(eq=False, slots=True)
class Store:
    """Everything that outlives its writers."""

    make_controller: MakeController
    leader: Leader
    views: list[View] = field(default_factory=list)
    members: dict[str, int] = field(default_factory=dict)
    joined: int = 0
    reports: dict[str, deque[Report]] = field(default_factory=dict)

    @classmethod
    def begin(cls, make_controller: MakeController) -> Store:
        return cls(make_controller, Leader(make_controller(None)))

    @property
    def view(self) -> View | None:
        return self.views[-1] if self.views else None

    # --- sessions and reports ----------------------------------------------------------------------------

    def join(self, node: str) -> None:
        self.joined += 1
        self.members[node] = self.joined

    def expire(self, node: str) -> None:
        del self.members[node]

    def put_report(self, by: str, report: Report) -> None:
        self.reports.setdefault(by, deque()).append(report)

    # --- what the leader can do next ---------------------------------------------------------------------

    def news(self) -> list[str]:
        """The nodes of which the leader has not yet heard that they joined or left."""
        leader = self.leader
        if leader.publishing:
            return []
        found = [node for node in self.members if not leader.heard_of.get(node)]
        found += [node for node, here in leader.heard_of.items() if here and node not in self.members]
        view = leader.controller.view
        if view is not None:
            named = sorted(view.nodes_named - self.members.keys())
            found += [node for node in named if node not in leader.heard_of]
        return found

    def waiting(self) -> list[str]:
        """The processes that have a report waiting."""
        return [] if self.leader.publishing else [by for by, queue in self.reports.items() if queue]

    # --- the leader's steps ------------------------------------------------------------------------------

    def tell_member(self, node: str) -> None:
        """One look of the leader: at a node that joined, or at all that are gone."""
        order = self.members.get(node)
        if order is not None:
            self.leader.heard_of[node] = True
            self.handle(MemberJoined(node, order))
            return
        gone = [each for each in self.news() if each not in self.members]
        self.leader.heard_of.update(dict.fromkeys(gone, False))
        self.handle(MembersLeft(tuple(gone)))

    def act_on(self, by: str) -> None:
        self.leader.acting_on = by
        self.handle(self.reports[by][0])
        self._done_with_report()

    def fire(self, key: Hashable) -> None:
        del self.leader.timers[key]
        self.handle(TimerFired(key))

    def handle(self, event: ControllerEvent) -> None:
        leader = self.leader
        try:
            decisions = leader.controller.handle(event)
            leader.controller.check()
        except (PeerError, BrokenInvariant) as error:
            raise Violation("sound", f"the controller on {event}: {error}") from error
        for decision in decisions:
            match decision:
                case Publish(view):
                    leader.publishing.append(view)
                case SetTimer(key, delay_ms):
                    leader.timers[key] = delay_ms
                case Declined():
                    pass  # Only an operator would want to know why.

    def publish(self) -> View:
        """The leader's next view is stored."""
        view = self.leader.publishing.popleft()
        self.views.append(view)
        self._done_with_report()
        return view

    def change_leader(self) -> None:
        """Another leader takes over from what is stored. What the former has not stored yet is refused."""
        self.leader = Leader(self.make_controller(self.view))

    def _done_with_report(self) -> None:
        leader = self.leader
        if leader.acting_on is not None and not leader.publishing:
            self.reports[leader.acting_on].popleft()
            leader.acting_on = None
