"""What an operator asks for: which wishes can be granted, and which have come to their end.

An operator moves a copy to a node, drains a node of all its copies, and undrains it. Wishes are stored in the
view. They end when they are fulfilled, or when they have become impossible: the node left, is drained, holds
another copy, or could not catch up. The controller decides when a wish has its turn.

Members are given in joining order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.view import Seats, View


def why_not_move(
    view: View | None, members: Sequence[str], copy: Copy, node: str, *, isolated: bool
) -> str | None:
    """Why this copy cannot be wished onto that node; None if it can."""
    if view is None or copy.partition not in view.partitions:
        return f"there is no partition {copy.partition}"
    seats = view.partitions[copy.partition].seats
    if copy.replica >= len(seats):
        return f"{copy.partition} has {len(seats)} replicas, counted from 0"
    if (why := _no_changes(view, isolated)) is not None or (why := _no_member(members, node)) is not None:
        return why
    if node in view.drained:
        return f"{node} is being drained"
    if seats[copy.replica].alive and seats[copy.replica].node == node:
        return f"{copy} sits on {node} already"
    for replica, seat in enumerate(seats):
        if replica == copy.replica:
            continue
        if seat.alive and seat.node == node:
            return f"{node} holds another copy of {copy.partition}; losing it would lose them both"
        if view.wanted.get(Copy(copy.partition, replica)) == node:
            return f"{node} is to get another copy of {copy.partition}"
    return None


def why_not_drain(view: View | None, members: Sequence[str], node: str, *, isolated: bool) -> str | None:
    """Why this node cannot be drained; None if it can."""
    if view is None:
        return "the flow has not begun yet"
    if (why := _no_changes(view, isolated)) is not None or (why := _no_member(members, node)) is not None:
        return why
    for copy in view.copies_on(node):
        if not eligible(view, members, copy):
            return f"no other node can take {copy}; add one first"
    return None


def why_not_undrain(view: View | None, node: str) -> str | None:
    if view is None or node not in view.drained:
        return f"{node} is not being drained"
    return None


def possible(
    wanted: Mapping[Copy, str], partitions: Mapping[Partition, Seats], drained: frozenset[str]
) -> dict[Copy, str]:
    """Of the moves that are wanted, those that still make sense."""
    return {
        copy: node
        for copy, node in wanted.items()
        if node not in drained and _is_open(partitions[copy.partition], copy.replica, node)
    }


def eligible(view: View, members: Sequence[str], copy: Copy) -> list[str]:
    """The nodes that could take the seat from its holder, in joining order."""
    taken = {seat.node for seat in view.partitions[copy.partition].seats if seat.alive}
    return [node for node in members if node not in view.drained and node not in taken]


def _no_changes(view: View, isolated: bool) -> str | None:
    """Why nothing can be moved at all, if so."""
    if isolated:
        return "with isolated replicas no copy can be moved"
    return None if view.lost is None else f"the flow is lost: {view.lost}"


def _no_member(members: Sequence[str], node: str) -> str | None:
    if node in members:
        return None
    return f"{node} is not a member; members are {', '.join(sorted(members)) or 'none'}"


def _is_open(seats: Seats, replica: int, node: str) -> bool:
    """Whether a copy can still be wished onto that node: it has no state there, nor is another one."""
    seat = seats.seats[replica]
    there = seat.node == node and seat.status.has_state
    others = any(s.alive and s.node == node for r, s in enumerate(seats.seats) if r != replica)
    return seats.lost is None and not there and not others
