"""Scenarios: faults written inline in the input.

    [bucket(1), kill(PRIM), bucket(2), standby(), wait_caught_up(), kill(SEC), bucket(3)]

A scenario is a list of acts, carried out in order. It says nothing of how: the simulator carries it out in
virtual time, and a driver of real processes can carry out the same list. Every scenario ends with an unspoken
act: everything heals, and all that was sealed must be delivered, once and in order.
"""

from __future__ import annotations

from dataclasses import dataclass

from understudy.core.view import Slot


@dataclass(frozen=True, slots=True)
class FeedBucket:
    """The source has this many further buckets ready."""

    count: int


@dataclass(frozen=True, slots=True)
class KillSlot:
    """The process in the slot is killed: the active one, or a standby wherever its catch-up is."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class KillGateway:
    """The gateway is killed, and started again."""


@dataclass(frozen=True, slots=True)
class Standby:
    """A new process joins; it takes a free seat as a standby."""


@dataclass(frozen=True, slots=True)
class CutLinks:
    """Every connection between the gateway and this slot breaks; both ends live on."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class Wait:
    """Go on when this has happened: one of the names in `MOMENTS`."""

    moment: str

    def __post_init__(self) -> None:
        if self.moment not in MOMENTS:
            raise ValueError(f"there is no moment {self.moment!r}; known are {', '.join(MOMENTS)}")


#: What a scenario can wait for. Each is seen from outside: in a view, in a history, or at the sink.
MOMENTS = (
    "caught up",  # every slot is active
    "seated",  # a standby sits in a slot
    "snapshot",  # the active replica has taken a snapshot since the last wait
    "installed",  # a standby has installed its state since the last wait
    "attached",  # a replica has attached since the last wait
    "taken over",  # egress has turned to another sender since the last wait
    "delivered",  # all that was fed so far is delivered, as far as it is complete
)

Act = FeedBucket | KillSlot | KillGateway | Standby | CutLinks | Wait
Scenario = list[Act]

PRIM, SEC = Slot.PRIM, Slot.SEC


def bucket(count: int = 1) -> FeedBucket:
    return FeedBucket(count)


def kill(slot: Slot) -> KillSlot:
    return KillSlot(slot)


def kill_gateway() -> KillGateway:
    return KillGateway()


def standby() -> Standby:
    return Standby()


def cut(slot: Slot) -> CutLinks:
    return CutLinks(slot)


def wait(moment: str) -> Wait:
    return Wait(moment)


def wait_caught_up() -> Wait:
    return Wait("caught up")
