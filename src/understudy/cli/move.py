"""`understudy move`: one copy of a partition to another node, while the flow runs."""

from __future__ import annotations

from argparse import Namespace

from understudy.cli.wishing import DECLINED, DONE, WishProgress, answered, connected, follow
from understudy.core.shape.partition import Copy
from understudy.core.view.view import Status, View
from understudy.runtime.coordination.reports import MoveWish
from understudy.runtime.coordination.wishes import fresh_id
from understudy.runtime.seating import in_one_piece


def execute(arguments: Namespace) -> int:
    partition, replica = arguments.partition
    with connected(arguments) as (settings, coordination):
        before = coordination.view()
        answer = answered(coordination, MoveWish(partition, replica, arguments.node, fresh_id()))
        if answer is None:
            return DECLINED
        copy, node = Copy.of(answer["copy"]), str(answer["node"])
        whole = before is not None and in_one_piece(before.view.seats)
        moving = f"{copy}, a copy of the whole flow," if whole else str(copy)
        chosen = "; of its copies it sits on the fuller node" if replica is None else ""
        print(f"{moving} is to move to {node}{chosen}")
        if arguments.no_wait:
            return DONE
        return follow(settings, coordination, int(answer["epoch"]), lambda view: look(view, copy, node))


def look(view: View, copy: Copy, node: str) -> WishProgress:
    """How far the move of a copy to a node has come."""
    seat = view.seat(copy)
    if view.lost is not None:
        return WishProgress(f"The flow is lost: {view.lost}", False)
    if (seat.node, seat.status) == (node, Status.ACTIVE):
        return WishProgress(f"{copy} is active on {node}", True)
    if copy not in view.wanted:
        return WishProgress(f"{copy} cannot move to {node} any more: {_why_not(view, copy, node)}", False)
    if seat.status is Status.STDBY:
        return WishProgress(f"{copy} is catching up on {seat.node}")
    if seat.status is Status.DEAD:
        return WishProgress(f"{copy} has left {seat.node} and waits for a place on {node}")
    return WishProgress(f"{copy} still sits on {seat.node}; other copies are catching up first")


def _why_not(view: View, copy: Copy, node: str) -> str:
    if node in view.drained:
        return f"{node} is being drained"
    for replica, seat in enumerate(view.partitions[copy.partition].seats):
        if replica != copy.replica and seat.alive and seat.node == node:
            return f"{node} has got {Copy(copy.partition, replica)}"
    return "the node left, its state could not be brought there, or another move was asked for"
