"""The view: who sits where, as the controller last decided it, and what a change means to a participant.

A flow has one or two **slots**, PRIM and SEC (the policy `none` has only PRIM). A node that runs the flow
sits in one of them. The controller alone changes the seating. Each decision makes a new view whose
epoch is one higher; views are totally ordered, and everybody sees them in that order, though not everybody
sees every one of them.

A seat carries the epoch at which its node took it. Node, slot and that epoch together are the **fencing
token**: every message names it, and `View.holds` tells whether its sender may still speak. A node failure is
permanent (Flux 3.2.1): a name once declared dead holds no seat again. A process that only slept finds itself
fenced and comes back under a new name, with nothing, as a standby.

The paper's controller sends fail() and avail(). `changes` derives them from two views, so a participant that
slept through ten views handles the same messages as one that saw them all, only fewer. Their order matters:
ingress drops what no live replica needs, so the failure of one replica must not be handled before the arrival
of the other that the controller had waited for. Two facts fix the order. A standby is seated only while the
other slot is ACTIVE, hence a seat taken later is handled later. And a seat that has died since, without a
successor, died after all those seatings, hence plain failures come last.

PAUSE is a mode of an operator while its state moves (Flux figure 5). It is local, so no view contains it.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from understudy.core.errors import PeerError, require

#: A name that was declared dead is remembered through this many later deaths. A process that sleeps through
#: more still finds that its seat is no longer its own.
BURIED_MAX = 1_000


class Slot(enum.Enum):
    PRIM = "PRIM"
    SEC = "SEC"

    @property
    def other(self) -> Slot:
        return Slot.SEC if self is Slot.PRIM else Slot.PRIM


class Status(enum.Enum):
    ACTIVE = "ACTIVE"
    DEAD = "DEAD"
    STDBY = "STDBY"
    PAUSE = "PAUSE"


@dataclass(frozen=True, slots=True)
class Seat:
    """A node in a slot. `epoch` is the view's epoch at which it took the seat."""

    node: str
    epoch: int
    status: Status

    def __post_init__(self) -> None:
        require(bool(self.node), "a seat names its node")
        require(self.epoch >= 1, f"seat epochs begin at 1, not {self.epoch}")

    @property
    def alive(self) -> bool:
        return self.status is not Status.DEAD


@dataclass(frozen=True)
class View:
    """One decision of the controller. `lost` says in a sentence why the flow's state is gone, if it is.

    `buried` holds names that were declared dead and that no seat shows any more, oldest first.
    """

    epoch: int
    seats: Mapping[Slot, Seat]
    lost: str | None = None
    buried: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ordered = {slot: self.seats[slot] for slot in Slot if slot in self.seats}
        object.__setattr__(self, "seats", MappingProxyType(ordered))
        seats = ordered.values()
        nodes = [seat.node for seat in seats]
        require(self.epoch >= 1, f"epochs begin at 1, not {self.epoch}")
        require(Slot.PRIM in ordered, "every view has the slot PRIM")
        require(all(seat.epoch <= self.epoch for seat in seats), f"a seat is newer than its view: {self!r}")
        require(len(set(nodes)) == len(nodes), f"one node sits in two slots: {nodes}")
        require(all(seat.status is not Status.PAUSE for seat in seats), "PAUSE is never published")
        require(sum(seat.status is Status.STDBY for seat in seats) <= 1, "two slots wait for each other")
        dead = not any(seat.alive for seat in seats)
        require(dead == bool(self.lost), f"a view is lost exactly when every seat is dead: {self!r}")
        require(not set(nodes) & set(self.buried), f"a buried name has a seat: {nodes}")
        require(len(self.buried) <= BURIED_MAX, f"more than {BURIED_MAX} buried names")

    def __hash__(self) -> int:
        return hash((self.epoch, tuple(self.seats.items()), self.lost, self.buried))

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only mapping can be neither copied nor pickled by itself.
        return View, (self.epoch, dict(self.seats), self.lost, self.buried)

    def holds(self, slot: Slot, node: str, epoch: int) -> bool:
        """Whether `node` sits, alive, in `slot` since `epoch`: the fencing check for every message."""
        seat = self.seats.get(slot)
        return seat is not None and seat.alive and (seat.node, seat.epoch) == (node, epoch)

    def slot_of(self, node: str) -> Slot | None:
        """The slot in which `node` sits alive."""
        return next((slot for slot, seat in self.seats.items() if seat.alive and seat.node == node), None)

    def declared_dead(self, node: str) -> bool:
        """Whether this name may never take a seat again."""
        return node in self.buried or any(s.node == node and not s.alive for s in self.seats.values())

    def to_json(self) -> str:
        seats = {
            slot.value: {"node": seat.node, "epoch": seat.epoch, "status": seat.status.value}
            for slot, seat in self.seats.items()
        }
        whole = {"epoch": self.epoch, "seats": seats, "lost": self.lost, "buried": list(self.buried)}
        return json.dumps(whole, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> View:
        """The view that `to_json` wrote. Anything else raises `PeerError`."""
        try:
            return _parsed(json.loads(text))
        except Exception as error:
            raise PeerError(f"this is not a view: {text[:200]!r} ({error})") from error


def _parsed(whole: Any) -> View:
    def typed(value: Any, kind: type, what: str) -> Any:
        if type(value) is not kind:
            raise TypeError(f"{what} is {value!r}, not {kind.__name__}")
        return value

    if set(typed(whole, dict, "view")) != {"epoch", "seats", "lost", "buried"}:
        raise ValueError(f"fields are {sorted(whole)}")
    seats: dict[Slot, Seat] = {}
    for name, seat in typed(whole["seats"], dict, "seats").items():
        if set(typed(seat, dict, "seat")) != {"node", "epoch", "status"}:
            raise ValueError(f"a seat's fields are {sorted(seat)}")
        node, epoch = typed(seat["node"], str, "node"), typed(seat["epoch"], int, "seat epoch")
        seats[Slot(name)] = Seat(node, epoch, Status(seat["status"]))
    lost = None if whole["lost"] is None else typed(whole["lost"], str, "lost")
    buried = tuple(typed(name, str, "a buried name") for name in typed(whole["buried"], list, "buried"))
    return View(typed(whole["epoch"], int, "epoch"), seats, lost, buried)


@dataclass(frozen=True, slots=True)
class Seated:
    """The slot is ACTIVE in the first view that a participant sees. There is nothing to take over."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class Fail:
    """fail(slot): the node that sat there is gone for good."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class Avail:
    """avail(slot): a standby sits there and waits for the state."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class Activated:
    """The standby in this slot has caught up on both ends."""

    slot: Slot


Change = Fail | Avail | Activated | Seated


def changes(old: View | None, new: View) -> list[Change]:
    """The controller messages that lead from `old` to `new`, in the order in which to handle them."""
    if old is None:
        return _introduction(new)
    require(new.epoch >= old.epoch, f"a view never goes back: {old.epoch} to {new.epoch}")
    require(old.seats.keys() == new.seats.keys(), "the slots of a flow never change")
    if new.epoch == old.epoch:
        require(new == old, f"two views with epoch {new.epoch}")
        return []
    chunks = {slot: _slot_changes(slot, old.seats[slot], new.seats[slot]) for slot in new.seats}

    def when(slot: Slot) -> tuple[bool, int]:
        seat = new.seats[slot]
        died_last = not seat.alive and old.seats[slot].epoch == seat.epoch
        return died_last, seat.epoch

    return [change for slot in sorted(chunks, key=when) for change in chunks[slot]]


def _introduction(view: View) -> list[Change]:
    """What a participant without any history must handle: it starts out as if every slot were ACTIVE."""
    first: dict[Status, list[type[Change]]] = {
        Status.ACTIVE: [Seated],
        Status.DEAD: [Fail],
        Status.STDBY: [Fail, Avail],
    }
    # A standby was seated while the other slot was ACTIVE, so a dead one died after that: it comes last.
    rank = [Status.ACTIVE, Status.STDBY, Status.DEAD]
    slots = sorted(view.seats, key=lambda slot: rank.index(view.seats[slot].status))
    return [kind(slot) for slot in slots for kind in first[view.seats[slot].status]]


def _slot_changes(slot: Slot, old: Seat, new: Seat) -> list[Change]:
    if new.epoch == old.epoch:
        require(new.node == old.node, f"{slot.value} changed from {old.node} to {new.node} within one seat")
        match (old.status, new.status):
            case (before, after) if before is after:
                return []
            case (_, Status.DEAD):
                return [Fail(slot)]
            case (Status.STDBY, Status.ACTIVE):
                return [Activated(slot)]
        require(False, f"{slot.value} on {new.node} went from {old.status.value} to {new.status.value}")
    require(new.epoch > old.epoch, f"{slot.value} went back from seat {old.epoch} to {new.epoch}")
    # A successor that came and died unseen leaves no message: this participant never dealt with it.
    left: list[Change] = [Fail(slot)] if old.alive else []
    if new.status is Status.DEAD:
        return left
    came: list[Change] = [Avail(slot)]
    return left + came + ([Activated(slot)] if new.status is Status.ACTIVE else [])
