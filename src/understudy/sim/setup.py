"""The fixed facts of a simulated world, and the parts of `core` that are made by them."""

from __future__ import annotations

from dataclasses import dataclass, field

from understudy.core.host.host import Host
from understudy.core.host.limits import Limits, Timing
from understudy.core.shape.partition import Copy
from understudy.core.view.controller import Controller
from understudy.core.view.view import View
from understudy.sim.flow import Flow


@dataclass(frozen=True)
class Setup:
    """The fixed facts of one world. Limits are small, so that they are met often."""

    flow: Flow
    replicas: int
    nodes: int
    isolated: bool = False
    layout: tuple[tuple[Copy, str], ...] = ()
    limits: Limits = field(default_factory=Limits)
    timing: Timing = field(default_factory=Timing)

    @property
    def saved(self) -> bool:
        """Whether states are saved, so that the loss of all copies of a partition is survived."""
        return self.timing.save_ms > 0

    def host(
        self,
        name: str,
        delivered: dict[str, int] | None = None,
        trimmed: dict[str, int] | None = None,
        forgotten: dict[str, int] | None = None,
        *,
        rests: bool = False,
    ) -> Host:
        return Host(
            name,
            self.flow.topology,
            self.limits,
            timing=self.timing,
            delivered=delivered,
            trimmed=trimmed,
            forgotten=forgotten,
            isolated=self.isolated,
            rests=rests,
        )

    def controller_that_goes_on(self, view: View | None) -> Controller:
        """After a loss of power."""
        return self.controller(view, early=self.saved)

    def controller(self, view: View | None, *, early: bool = False) -> Controller:
        return Controller(
            self.flow.topology,
            self.replicas,
            self.nodes,
            view,
            layout=dict(self.layout) or None,
            isolated=self.isolated,
            saved=self.saved,
            passive=self.timing.ship_ms > 0,
            early=early,
        )
