"""The events that the controller takes, and the decisions that it answers with.

Members come and go. Reports name the seat by its epoch, so that a report about a former occupant never hits
its successor. Operators move copies and drain nodes; the controller may decline.
"""

from __future__ import annotations

from dataclasses import dataclass

from understudy.core.shape.partition import Copy, Partition
from understudy.core.timers import SetTimer, TimerFired
from understudy.core.view.view import View


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """A node is a member and can take seats. `order` rises with the time of joining."""

    node: str
    order: int


@dataclass(frozen=True, slots=True)
class MembersLeft:
    """One look at the membership misses these nodes: each ended, or was silent for longer than its session.

    Nodes that are missed together come in one event, so that no seat is given up for the sake of another that
    is missed as well.
    """

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CopyCaughtUp:
    """The standby in this seat, of this epoch, has caught up."""

    copy: Copy
    epoch: int


@dataclass(frozen=True, slots=True)
class CopyMoveFailed:
    """The standby in this seat, of this epoch, will not get the state it needs, or holds it and does not get
    on with it.
    """

    copy: Copy
    epoch: int
    why: str = "could not catch up"
    holds_state: bool = False


@dataclass(frozen=True, slots=True)
class CopySuspected:
    """`by` found the node in this seat, of this epoch, broken or silent."""

    copy: Copy
    epoch: int
    by: str


@dataclass(frozen=True, slots=True)
class CopyLacks:
    """The copy in this seat, of this epoch, began again from a saved snapshot, and needs output of that
    partition which no copy of it keeps any more.
    """

    copy: Copy
    epoch: int
    producer: Partition


Report = CopyCaughtUp | CopyMoveFailed | CopySuspected | CopyLacks


@dataclass(frozen=True, slots=True)
class MoveCopy:
    """An operator wants this copy to sit on that node."""

    copy: Copy
    node: str


@dataclass(frozen=True, slots=True)
class Drain:
    """An operator wants this node to be empty."""

    node: str


@dataclass(frozen=True, slots=True)
class Undrain:
    """An operator lets this node hold copies again."""

    node: str


ControllerEvent = MemberJoined | MembersLeft | Report | MoveCopy | Drain | Undrain | TimerFired


@dataclass(frozen=True, slots=True)
class Publish:
    """This is the view from now on."""

    view: View


@dataclass(frozen=True, slots=True)
class Declined:
    """The operator's wish cannot be granted, and why."""

    why: str


Decision = Publish | Declined | SetTimer
