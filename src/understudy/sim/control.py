"""The controller as a process: the real machine, behind a service that never loses what it has decided.

Reports reach it in the order in which each reporter made them. The views it publishes reach every process in
order, each process in its own time. It can be away for a while; then reports wait and no view appears.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.core.controller import Controller, FoldedIn, MemberJoined
from understudy.core.view import View
from understudy.sim.checkers import Violation
from understudy.sim.items import CONTROLLER, GATEWAY, Item, Report, Setup

if TYPE_CHECKING:
    from understudy.sim.world import World


class ControllerProcess:
    """Takes reports, publishes views."""

    def __init__(self, setup: Setup) -> None:
        self.name = CONTROLLER
        self.machine = Controller(setup.slots)
        self.caught_up = 0

    @property
    def view(self) -> View | None:
        return self.machine.view

    def accepts(self, item: Item, world: World) -> bool:
        return True

    def take(self, item: Item, world: World) -> None:
        if not isinstance(item, Report):
            raise TypeError(f"the controller does not take {item}")
        published = [each.view for each in self.machine.handle(item.event)]
        self.caught_up += bool(published) and isinstance(item.event, FoldedIn)
        for view in published:
            world.observe(CONTROLLER, "view", view=view)
            if view.lost is not None:
                raise Violation(
                    "survivable", f"the state is lost, though a complete replica lived: {view.lost}"
                )
            readers = list(world.nodes) + ([GATEWAY] if world.gateway.up else [])
            world.publish(view, readers)
        if isinstance(item.event, MemberJoined) and not published and self.view is not None:
            world.publish(self.view, [item.event.node] if item.event.node in world.nodes else [])

    def check(self) -> None:
        """The machine checks each view as it makes it."""
