"""Breaks of replicas: of the states that move between them, and of catching up."""

from __future__ import annotations

from typing import Any

import pytest

from understudy.core.bucket import NOTHING
from understudy.core.replica.events import KeepSnapshot, SaveSnapshot
from understudy.core.replica.movement import Lending
from understudy.core.replica.replica import Replica

Patch = pytest.MonkeyPatch


def snapshot_while_busy(patch: Patch) -> None:
    asked = Lending.asked

    def at_once(lending: Lending, request: Any) -> list[Any]:
        done = asked(lending, request)
        if lending.paused or not lending.wanted:
            return done
        return [*done, *lending.stands_still()]

    patch.setattr(Lending, "asked", at_once)
    patch.setattr(Replica, "check", lambda _: None)


def lend_nothing(patch: Patch) -> None:
    """A snapshot is offered and not kept."""
    taken = Lending.taken

    def unkept(lending: Lending, *args: Any, **rest: Any) -> list[Any]:
        done = taken(lending, *args, **rest)
        saved = any(isinstance(each, SaveSnapshot) for each in done)
        return [each for each in done if saved or not isinstance(each, KeepSnapshot)]

    patch.setattr(Lending, "taken", unkept)


def keep_snapshots(patch: Patch) -> None:
    """A lender does not hear that its standby has caught up."""
    patch.setattr(Lending, "standby_gone", lambda *_: [])


def goal_of_the_fastest(patch: Patch) -> None:
    """A newcomer waits for what the fastest of its producers had put out."""
    caught_up = Replica._caught_up

    def late(replica: Replica) -> list[Any]:
        goal = max(replica._goals.values(), default=NOTHING)
        return caught_up(replica) if not replica.catching_up or replica._below.processed >= goal else []

    patch.setattr(Replica, "_caught_up", late)
