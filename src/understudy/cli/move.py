"""`understudy move`: one copy of a partition to another node, while the flow runs."""

from __future__ import annotations

from argparse import Namespace

from understudy.cli.wishing import DECLINED, DONE, Look, answered, connected, follow
from understudy.core.flux_view import FluxView
from understudy.core.partition import Copy
from understudy.core.view import Status
from understudy.runtime.coordination.reports import MoveWish
from understudy.runtime.coordination.wishes import fresh_id


def execute(arguments: Namespace) -> int:
    partition, slot = arguments.partition
    with connected(arguments) as coordination:
        answer = answered(coordination, MoveWish(partition, slot, arguments.node, fresh_id()))
        if answer is None:
            return DECLINED
        copy, node = Copy.of(answer["copy"]), str(answer["node"])
        chosen = "" if slot else "; of the two copies it sits on the fuller node"
        print(f"{copy} is to move to {node}{chosen}")
        if arguments.no_wait:
            return DONE
        return follow(coordination, int(answer["epoch"]), lambda view: look(view, copy, node))


def look(view: FluxView, copy: Copy, node: str) -> Look:
    """How far the move of a copy to a node has come."""
    seat = view.seat(copy)
    if view.lost is not None:
        return Look(f"The flow is lost: {view.lost}", False)
    if (seat.node, seat.status) == (node, Status.ACTIVE):
        return Look(f"{copy} is active on {node}", True)
    if copy not in view.wanted:
        return Look(f"{copy} cannot move to {node} any more: {_why_not(view, copy, node)}", False)
    if seat.status is Status.STDBY:
        return Look(f"{copy} is catching up on {seat.node}")
    if seat.status is Status.DEAD:
        return Look(f"{copy} has left {seat.node} and waits for a place on {node}")
    return Look(f"{copy} still sits on {seat.node}; other copies are catching up first")


def _why_not(view: FluxView, copy: Copy, node: str) -> str:
    other = view.seat(copy.other)
    if node in view.drained:
        return f"{node} is being drained"
    if other.alive and other.node == node:
        return f"{node} has got {copy.other}"
    return "the node left, its state could not be brought there, or another move was asked for"
