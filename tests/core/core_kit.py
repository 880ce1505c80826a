"""What the tests of `core/` share: short forms of buckets, seats and views, and all of a machine's state."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Any

import pytest

from understudy.core.bucket import Bucket
from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.machine import Machine
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import Topology
from understudy.core.view.view import Seat, Seats, Status, View

ACTIVE, DEAD, STDBY, BACKUP = Status.ACTIVE, Status.DEAD, Status.STDBY, Status.BACKUP


def rows(number: int) -> Bucket:
    return Bucket(number, f"rows of {number}", 1)


def run(*numbers: int) -> tuple[Bucket, ...]:
    return tuple(rows(number) for number in numbers)


def numbers(buckets: Any) -> list[int]:
    return [bucket.number for bucket in buckets]


def all_active(replicas: int) -> dict[int, Status]:
    return dict.fromkeys(range(replicas), ACTIVE)


def seat(text: str) -> Seat:
    """A seat as text: "a" is active since epoch 1, "b@3" since 3, "c@3 STDBY" is a standby."""
    place, _, status = text.partition(" ")
    node, _, epoch = place.partition("@")
    return Seat(node, int(epoch or 1), Status(status or "ACTIVE"))


def seats(epoch: int, *each: str, lost: str | None = None) -> Seats:
    return Seats(epoch, tuple(seat(text) for text in each), lost)


def copies(name: str, replicas: int, index: int = 0) -> list[Copy]:
    return [Copy(Partition(name, index), replica) for replica in range(replicas)]


def view(epoch: int, **by_name: Seats) -> View:
    """A view of a flow whose segments have one partition each."""
    return View(epoch, {Partition(name): each for name, each in by_name.items()})


# --- all of a machine's state ----------------------------------------------------------------------------

#: `_out` is where a host writes down its instructions: it is begun anew with every event.
SCRATCH = frozenset({"_out"})
#: A host that cuts a peer off has handled the event, and counts how often.
COUNTED = frozenset({"_cuts", "events_handled", "_story"})


def state_of(value: Any, leave_out: frozenset[str] = SCRATCH) -> Any:
    """Everything a machine consists of, as values that can be compared. An unknown kind of part raises."""
    match value:
        case None | bool() | int() | str() | float() | Enum() | Topology() | View():
            return value
        case Mapping():
            return [(state_of(k, leave_out), state_of(v, leave_out)) for k, v in value.items()]
        case set() | frozenset():
            return sorted((state_of(each, leave_out) for each in value), key=repr)
        case list() | tuple() | deque():
            return [state_of(each, leave_out) for each in value]
    kind = type(value)
    if not kind.__module__.startswith("understudy.core"):
        raise TypeError(f"{kind} is not known to be part of a machine")
    if dataclasses.is_dataclass(value):
        parts = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    else:
        parts = dict(vars(value))
    return kind.__name__, {k: state_of(v, leave_out) for k, v in parts.items() if k not in leave_out}


def assert_rejected(machine: Any, event: object, match: str) -> None:
    """The event raises, says why, and leaves no trace in the machine."""
    before = state_of(machine)
    with pytest.raises((PeerError, BrokenInvariant), match=match) as raised:
        machine.handle(event)
    assert state_of(machine) == before
    machine.check()
    if isinstance(machine, Machine):
        assert "-> rejected" in str(raised.value)


def ident(value: object) -> str:
    """A short name for a test's parameter."""
    return value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__)
