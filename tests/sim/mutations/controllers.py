"""Breaks of the controller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from understudy.core.shape.partition import Copy
from understudy.core.view.controller import Controller
from understudy.core.view.seating import Seating
from understudy.core.view.view import Status

Patch = pytest.MonkeyPatch


def bury_the_last_on_suspicion(patch: Patch) -> None:
    decide = Controller._decide

    def grave(controller: Controller, event: Any) -> list[Any]:
        if type(event).__name__ != "CopySuspected":
            return decide(controller, event)
        seat = controller._seat_of(event.copy, event.epoch)
        return [] if seat is None else controller._bury([event.copy], "was suspected")

    patch.setattr(Controller, "_decide", grave)


def bury_the_last_at_once(patch: Patch) -> None:
    """The last holder is given no time to come back."""
    left = Controller._left

    def hasty(controller: Controller, nodes: Sequence[str]) -> list[Any]:
        done = left(controller, nodes)
        return [*done, *(each for node in nodes for each in controller._given_up(node))]

    patch.setattr(Controller, "_left", hasty)


def believe_the_dead(patch: Patch) -> None:
    """A copy that is called active counts as one, though its node has not been seen."""
    patch.setattr(Seating, "is_safe", lambda seating, copy: seating.view.seat(copy).status is Status.ACTIVE)


def any_epoch_in_reports(patch: Patch) -> None:
    """What is said of a former occupant of a seat counts for its successor."""

    def seat_of(controller: Controller, copy: Copy, epoch: int) -> Any:
        seat = controller.view.seat(copy) if controller.view is not None else None
        return seat if seat is not None and seat.alive else None

    patch.setattr(Controller, "_seat_of", seat_of)


def all_levels_at_once(patch: Patch) -> None:
    """Standbys of several levels are seated side by side."""

    def standbys(controller: Controller) -> Any:
        view = controller.view
        if view is None or not controller.members.keys() | controller._missed >= view.nodes_named:
            return None
        return controller._seating.fill(controller.topology.partitions) or None

    patch.setattr(Controller, "_standbys", standbys)


def never_seat(patch: Patch) -> None:
    patch.setattr(Controller, "_standbys", lambda _: None)


def bury_a_copy_of_a_cluster_alone(patch: Patch) -> None:
    """With isolated replicas, a dead copy leaves the rest of its replica in place."""
    bury = Controller._bury

    def alone(controller: Controller, *args: Any) -> list[Any]:
        isolated, controller.isolated = controller.isolated, False
        try:
            return bury(controller, *args)
        finally:
            controller.isolated = isolated

    patch.setattr(Controller, "_bury", alone)
