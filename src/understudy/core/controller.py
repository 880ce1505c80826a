"""The controller: who sits where (Flux 2.2 and 3.2.1). It decides; `View` says what was decided.

    first view       every slot can be filled: all ACTIVE, with nothing to catch up
    ACTIVE -> DEAD   its member left, or was suspected while another seat is ACTIVE
    DEAD   -> STDBY  the other slot is ACTIVE and a member is free: it takes the seat under a new seat epoch
    STDBY  -> ACTIVE both ends have folded it in
    STDBY  -> DEAD   as above, or its state could not be moved; then the next free member is tried
    all DEAD         lost, for good: nobody holds the state any more

Who tells: membership (MemberJoined, MemberLeft), anyone who sees a broken connection or silence (Suspected),
and the gateway, which knows when catch-up is complete on both ends (FoldedIn) or has failed (MoveFailed). The
last three name the seat by its epoch, so that word about a former occupant never hits its successor.

A suspicion is enough to bury a replica that another one can stand in for. It is not enough to bury the one
that may hold the only state: a broken connection is mended, a declared death is not. That one is dead only
when membership says so.

When the last ACTIVE dies while the other slot is STDBY, the standby stays: it may already have all that it
needs. FoldedIn then makes it ACTIVE; MoveFailed or its own death means lost.

Every decision is one view with an epoch one higher, and one Publish. An event may lead to two decisions (a
failure, then the seating of a standby). What the machine does next depends only on the stored view and on who
is there, so a new leader starts from the last published view, is told the members, and goes on. An event that
does not fit the current view is old news and changes nothing. A member that is declared dead is never seated
again under its name, even if its process lives on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from understudy.core.errors import require
from understudy.core.view import BURIED_MAX, Seat, Slot, Status, View


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """A node is there and can take a seat. `order` rises with the time of joining."""

    node: str
    order: int


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """Membership lost this node: it ended, or was silent for longer than its session."""

    node: str


@dataclass(frozen=True, slots=True)
class Suspected:
    """`by` found the node in the seat of this epoch broken or silent."""

    node: str
    epoch: int
    by: str


@dataclass(frozen=True, slots=True)
class FoldedIn:
    """The standby in the seat of this epoch has caught up, on the ingress and on the egress side."""

    slot: Slot
    epoch: int


@dataclass(frozen=True, slots=True)
class MoveFailed:
    """The standby in the seat of this epoch will not get the state it needs."""

    slot: Slot
    epoch: int


Event = MemberJoined | MemberLeft | Suspected | FoldedIn | MoveFailed


@dataclass(frozen=True, slots=True)
class Publish:
    view: View


class Controller:
    """`handle(event)` returns the views to publish, in order. `view` is the newest of them."""

    def __init__(self, slots: Sequence[Slot] = (Slot.PRIM, Slot.SEC), view: View | None = None) -> None:
        require(len(set(slots)) == len(slots) and Slot.PRIM in slots, f"slots are {slots}")
        require(view is None or set(view.seats) == set(slots), "the stored view has other slots")
        self._slots = tuple(slot for slot in Slot if slot in slots)
        self._view = view
        self._members: dict[str, int] = {}

    @property
    def view(self) -> View | None:
        return self._view

    @property
    def members(self) -> tuple[str, ...]:
        """Who is there, in joining order."""
        return tuple(sorted(self._members, key=lambda node: (self._members[node], node)))

    def handle(self, event: Event) -> list[Publish]:
        published = [self._publish(view) for view in self._decide(event)]
        standby = self._with_standby()
        return published if standby is None else [*published, self._publish(standby)]

    def _publish(self, view: View) -> Publish:
        expected = self._view.epoch + 1 if self._view else 1
        require(view.epoch == expected, f"view {view.epoch} follows view {expected - 1}")
        self._view = view
        return Publish(view)

    def _decide(self, event: Event) -> list[View]:
        """What the event itself leads to: one view or none."""
        view = self._view
        match event:
            case MemberJoined(node, order):
                # A session that was lost and made anew is no reason to queue up again.
                self._members.setdefault(node, order)
                return self._first_view()
            case MemberLeft(node):
                self._members.pop(node, None)
                slot = view.slot_of(node) if view else None
                return [_dead(view, slot, "left the cluster")] if view and slot else []
            case Suspected(node, epoch, by):
                slot = view.slot_of(node) if view else None
                if view is None or slot is None or not view.holds(slot, node, epoch):
                    return []
                if not _another_active(view, slot):
                    return []
                return [_dead(view, slot, f"was suspected by {by}")]
            case FoldedIn(slot, epoch):
                return [_active(view, slot)] if view and _standby_at(view, slot, epoch) else []
            case MoveFailed(slot, epoch):
                waits = view is not None and _standby_at(view, slot, epoch)
                return [_dead(view, slot, "could not catch up")] if view and waits else []

    def _free(self) -> list[str]:
        """Who could take a seat, in joining order."""
        view = self._view
        if view is None:
            return list(self.members)
        return [n for n in self.members if view.slot_of(n) is None and not view.declared_dead(n)]

    def _first_view(self) -> list[View]:
        free = self._free()
        if self._view is not None or len(free) < len(self._slots):
            return []
        taken = zip(self._slots, free, strict=False)
        return [View(1, {slot: Seat(node, 1, Status.ACTIVE) for slot, node in taken})]

    def _with_standby(self) -> View | None:
        """The next view if a slot is DEAD, the other ACTIVE and a member free."""
        view = self._view
        free = self._free()
        if view is None or not free:
            return None
        for slot, seat in view.seats.items():
            other = view.seats.get(slot.other)
            if seat.status is Status.DEAD and other is not None and other.status is Status.ACTIVE:
                epoch = view.epoch + 1
                buried = (*view.buried, seat.node)[-BURIED_MAX:]
                return View(epoch, {**view.seats, slot: Seat(free[0], epoch, Status.STDBY)}, None, buried)
        return None


def _another_active(view: View, slot: Slot) -> bool:
    return any(seat.status is Status.ACTIVE for each, seat in view.seats.items() if each is not slot)


def _standby_at(view: View, slot: Slot, epoch: int) -> bool:
    seat = view.seats.get(slot)
    return seat is not None and seat.epoch == epoch and seat.status is Status.STDBY


def _active(view: View, slot: Slot) -> View:
    seats = {**view.seats, slot: replace(view.seats[slot], status=Status.ACTIVE)}
    return View(view.epoch + 1, seats, None, view.buried)


def _dead(view: View, slot: Slot, why: str) -> View:
    seats = {**view.seats, slot: replace(view.seats[slot], status=Status.DEAD)}
    lost = None
    if not any(seat.alive for seat in seats.values()):
        before = [f", {s.value} on {seat.node} was dead before" for s, seat in seats.items() if s is not slot]
        lost = (
            f"No replica holds the state any more: {slot.value} on {seats[slot].node} {why}{''.join(before)}."
        )
    return View(view.epoch + 1, seats, lost, view.buried)
