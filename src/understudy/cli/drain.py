"""`understudy drain`: everything away from a node, so that it can be stopped without loss."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from understudy.cli.picture import plural
from understudy.cli.wishing import DECLINED, DONE, WishProgress, answered, connected, follow
from understudy.core.shape.partition import Copy
from understudy.core.view.view import Status, View
from understudy.runtime.coordination.reports import DrainWish
from understudy.runtime.coordination.wishes import fresh_id


def execute(arguments: Namespace) -> int:
    with connected(arguments) as (settings, coordination):
        before = coordination.view()
        answer = answered(coordination, DrainWish(arguments.node, fresh_id(), arguments.undo))
        if answer is None:
            return DECLINED
        node = str(answer["node"])
        if arguments.undo:
            print(f"{node} may be given copies again; what has moved stays where it is")
            return DONE
        copies = before.view.copies_on(node) if before is not None else []
        print(f"{node} is to be empty; it holds {plural(len(copies), 'copy', 'copies')}")
        if arguments.no_wait:
            return DONE
        return follow(settings, coordination, int(answer["epoch"]), lambda view: look(view, copies, node))


def look(view: View, copies: Sequence[Copy], node: str) -> WishProgress:
    """How far a node is that held these copies when it was to be emptied."""
    left = view.copies_on(node)
    if view.lost is not None:
        return WishProgress(f"The flow is lost: {view.lost}", False)
    if node not in view.drained:
        return WishProgress(f"{node} is not being drained any more: it left, or that was taken back", False)
    moving = [copy for copy in copies if copy not in left and view.seat(copy).status is not Status.ACTIVE]
    if not left and not moving:
        return WishProgress(f"{node} is empty, and every copy that it held is active elsewhere", True)
    where = [f"{copy} on {view.seat(copy).node}" for copy in moving if view.seat(copy).alive]
    catching_up = f"; catching up: {', '.join(where)}" if where else ""
    return WishProgress(f"{node} holds {plural(len(left), 'copy', 'copies')}{catching_up}")
