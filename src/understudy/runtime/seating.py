"""Which node plays which role in a run, read from the seats of its copies and from which copies send.

    primary, secondary   the nodes of replicas 0 and 1
    sender               whose output reaches the sinks
    holder               a node beside the sender that has the state too, at work or as a backup; of the
                         lowest replica
    standby              a node that is catching up, or else one without a seat

In a flow of one partition each role is one node's. In a flow of many, a node has a role for each of its
partitions, and a role that several nodes play names none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.view import Seat, Status

PRIMARY, SECONDARY, SENDER, HOLDER, STANDBY = "primary", "secondary", "sender", "holder", "standby"
ROLES = (PRIMARY, SECONDARY, SENDER, HOLDER, STANDBY)
#: What people call a replica of a flow that runs in one piece.
_PLACES = (PRIMARY, SECONDARY)

Seating = Mapping[Copy, Seat]
Senders = Mapping[Partition, int | None]


def seats_in(status: Mapping[str, Any]) -> dict[Copy, Seat]:
    """The seats in a gateway's status."""
    return {
        Copy.of(copy): Seat(seat["node"], seat["epoch"], Status(seat["status"]))
        for copy, seat in status.get("seats", {}).items()
    }


def senders_in(status: Mapping[str, Any]) -> dict[Partition, int | None]:
    """Which replica sends, for every partition that feeds a sink."""
    return {Partition.of(name): replica for name, replica in status.get("senders", {}).items()}


def in_one_piece(seats: Iterable[Copy]) -> bool:
    """Whether these are the copies of a single partition: every copy runs the whole flow."""
    return len({copy.partition for copy in seats}) == 1


def place_of(replica: int) -> str:
    """What a replica of a flow in one piece is called."""
    return _PLACES[replica] if replica < len(_PLACES) else f"replica {replica}"


def players(role: str, seats: Seating, senders: Senders, members: Iterable[str] = ()) -> list[str]:
    """The nodes that play a role, without those declared dead. `members` are asked for standbys only."""
    match role:
        case "primary" | "secondary":
            found = [
                seat.node
                for copy, seat in seats.items()
                if copy.replica == _PLACES.index(role) and seat.alive
            ]
        case "sender":
            found = [
                seats[Copy(partition, replica)].node
                for partition, replica in senders.items()
                if replica is not None and Copy(partition, replica) in seats
            ]
        case "holder":
            found = [
                node
                for partition, replica in senders.items()
                if replica is not None and (node := _holder(partition, replica, seats)) is not None
            ]
        case "standby":
            found = _standbys(seats, members)
        case _:
            raise ValueError(f"there is no role {role!r}; there are {', '.join(ROLES)}")
    return list(dict.fromkeys(found))


def _holder(partition: Partition, sender: int, seats: Seating) -> str | None:
    beside = (
        seat.node
        for copy, seat in sorted(seats.items())
        if copy.partition == partition and copy.replica != sender and seat.status.has_state
    )
    return next(beside, None)


def _standbys(seats: Seating, members: Iterable[str]) -> list[str]:
    catching_up = [seat.node for seat in seats.values() if seat.status is Status.STDBY]
    seated = {seat.node for seat in seats.values() if seat.alive}
    return (catching_up or sorted(node for node in members if node not in seated))[:1]
