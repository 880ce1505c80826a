"""Breaks of replicas: of the states that move between them, and of catching up."""

from __future__ import annotations

from typing import Any

import pytest

from understudy.core.bucket import NOTHING
from understudy.core.replica.events import KeepSnapshot, TakeSnapshot
from understudy.core.replica.movement import Lending
from understudy.core.replica.replica import Replica

Patch = pytest.MonkeyPatch


def snapshot_while_busy(patch: Patch) -> None:
    def asked(lending: Lending, request: Any) -> list[Any]:
        if request == lending.lent:
            return [lending._offer(request)]
        if lending.taking is not None:
            return []
        lending.taking, lending.version, lending.unwanted = request, lending.version + 1, False
        return [TakeSnapshot(lending.version)]

    patch.setattr(Lending, "asked", asked)
    patch.setattr(Replica, "check", lambda _: None)


def lend_nothing(patch: Patch) -> None:
    """A snapshot is offered and not kept."""
    taken = Lending.taken
    patch.setattr(
        Lending,
        "taken",
        lambda lending, *rest: [x for x in taken(lending, *rest) if not isinstance(x, KeepSnapshot)],
    )


def keep_snapshots(patch: Patch) -> None:
    """A lender does not hear that its standby has caught up."""
    patch.setattr(Lending, "standby_gone", lambda _: [])


def goal_of_the_fastest(patch: Patch) -> None:
    """A newcomer waits for what the fastest of its producers had put out."""
    caught_up = Replica._caught_up

    def late(replica: Replica) -> list[Any]:
        goal = max(replica._goals.values(), default=NOTHING)
        return caught_up(replica) if not replica.catching_up or replica._below.processed >= goal else []

    patch.setattr(Replica, "_caught_up", late)
