"""What the controller of a partitioned flow is told, and what it answers.

Members come and go as for a pair. Reports name the seat by its epoch, so that word about a former occupant
never hits its successor. Operators move copies and drain nodes; they may be declined.
"""

from __future__ import annotations

from dataclasses import dataclass

from understudy.core.controller import MemberJoined, MemberLeft
from understudy.core.flux_view import FluxView
from understudy.core.partition import Copy


@dataclass(frozen=True, slots=True)
class CopyCaughtUp:
    """The standby in this seat, of this epoch, was folded in by all its neighbours."""

    copy: Copy
    epoch: int


@dataclass(frozen=True, slots=True)
class CopyMoveFailed:
    """The standby in this seat, of this epoch, will not get the state it needs."""

    copy: Copy
    epoch: int


@dataclass(frozen=True, slots=True)
class CopySuspected:
    """`by` found the node in this seat, of this epoch, broken or silent."""

    copy: Copy
    epoch: int
    by: str


@dataclass(frozen=True, slots=True)
class MoveCopy:
    """An operator wants this copy to sit on that node."""

    copy: Copy
    node: str


@dataclass(frozen=True, slots=True)
class Drain:
    """An operator wants nothing to sit on this node any more."""

    node: str


@dataclass(frozen=True, slots=True)
class Undrain:
    """An operator has nothing against this node any more."""

    node: str


FluxEvent = (
    MemberJoined | MemberLeft | CopyCaughtUp | CopyMoveFailed | CopySuspected | MoveCopy | Drain | Undrain
)


@dataclass(frozen=True, slots=True)
class PublishFlux:
    view: FluxView


@dataclass(frozen=True, slots=True)
class Declined:
    """What an operator asked for cannot be done, and why."""

    why: str


Done = PublishFlux | Declined
