"""What a change of views means to a participant: the paper's fail() and avail() (Flux 3.2.1).

`changes` derives them from two views, so a participant that slept through ten views handles the same messages
as one that saw them all, only fewer. Their order matters: an outlet drops what no live copy needs, so the
failure of one copy must not be handled before the arrival of another that may have taken its state from it.
Two facts fix the order. A standby is seated only while some seat is ACTIVE, hence a seat taken later is
handled later. And a seat that has died since, without a successor, died after all those seatings, hence
plain failures come last.
"""

from __future__ import annotations

from dataclasses import dataclass

from understudy.core.errors import require
from understudy.core.view.view import Seat, Seats, Status


@dataclass(frozen=True, slots=True)
class Fail:
    """The node that sat in this replica's seat is gone for good."""

    replica: int


@dataclass(frozen=True, slots=True)
class Avail:
    """A standby sits there, and waits for the state. From now on every producer keeps what it may need."""

    replica: int


@dataclass(frozen=True, slots=True)
class Activated:
    """The standby in this replica's seat has caught up, or the backup there takes over."""

    replica: int


Change = Fail | Avail | Activated


def changes(old: Seats, new: Seats) -> list[Change]:
    """The controller's messages that lead from `old` to `new`, in the order in which to handle them."""
    require(new.epoch >= old.epoch, f"a view never goes back: {old.epoch} to {new.epoch}")
    require(len(old.seats) == len(new.seats), "the replicas of a flow never change")
    if new.epoch == old.epoch:
        require(new == old, f"two views with epoch {new.epoch}")
        return []
    pairs = list(zip(old.seats, new.seats, strict=True))
    found = {r: _seat_changes(r, before, after) for r, (before, after) in enumerate(pairs)}

    def when(replica: int) -> tuple[bool, int]:
        before, after = pairs[replica]
        died_last = not after.alive and before.epoch == after.epoch
        return died_last, after.epoch

    return [change for replica in sorted(found, key=when) for change in found[replica]]


def _seat_changes(replica: int, old: Seat, new: Seat) -> list[Change]:
    if new.epoch == old.epoch:
        require(new.node == old.node, f"replica {replica} changed from {old.node} to {new.node} in one seat")
        match (old.status, new.status):
            case (before, after) if before is after:
                return []
            case (_, Status.DEAD):
                return [Fail(replica)]
            case (Status.STDBY | Status.BACKUP, Status.ACTIVE):
                return [Activated(replica)]
            case (Status.STDBY, Status.BACKUP):
                # Nothing to its neighbours: it neither sends nor takes.
                return []
        require(False, f"replica {replica} on {new.node} went from {old.status.value} to {new.status.value}")
    require(new.epoch > old.epoch, f"replica {replica} went back from seat {old.epoch} to {new.epoch}")
    # A successor that came and died unseen leaves no message: this participant never dealt with it.
    left: list[Change] = [Fail(replica)] if old.alive else []
    if new.status is Status.DEAD:
        return left
    came: list[Change] = [Avail(replica)]
    return left + came + ([Activated(replica)] if new.status is Status.ACTIVE else [])
