"""An operator's wish, from the sending to the answer.

    operator   report "move" or "drain" with a fresh id, then waits for the fact answer-<id>
    leader     finds out which node and copy are meant, asks the controller, publishes, answers, drops it

An answer says {"ok": true, "epoch": n, "copy": ..., "node": ...} or {"ok": false, "why": ...}. It is about
whether the wish was taken up; the views tell how it goes on. A wish that has an answer is not acted on again:
the leader may have died between answering and dropping the report. Ids rise with time, and the answers to
older wishes are forgotten one by one.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from understudy.core.shape.partition import Copy
from understudy.core.view.controller import Controller
from understudy.core.view.events import Declined, Drain, MoveCopy, Undrain
from understudy.core.view.view import View
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.reports import DrainWish, MoveWish, Wish, written
from understudy.runtime.status import started_as

#: The answers that are kept; a command that waits for an older one has long timed out.
ANSWERS_MAX = 50
_PREFIX = "answer-"
_POLL_S = 0.05


def fresh_id() -> str:
    return f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"


def asked(coordination: Coordination, wish: Wish, timeout_s: float) -> dict[str, Any] | None:
    """Send a wish and wait for the answer; None if there was none in time. The wish then still waits."""
    coordination.report(*written(wish))
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        # Asking while ZooKeeper is away would wait for it, however long that takes.
        answer = answer_to(coordination, wish.id) if coordination.session.connected else None
        if answer is not None:
            return answer
        time.sleep(_POLL_S)
    return None


def answer_to(coordination: Coordination, wish_id: str) -> dict[str, Any] | None:
    answer = coordination.get_fact(f"{_PREFIX}{wish_id}")
    return None if answer is None else dict(answer)


def put_answer(coordination: Coordination, wish_id: str, answer: dict[str, Any]) -> None:
    """Answer a wish, and forget the oldest answers beyond `ANSWERS_MAX`."""
    coordination.put_fact(f"{_PREFIX}{wish_id}", answer)
    answers = [name for name in coordination.fact_names() if name.startswith(_PREFIX)]
    for name in answers[:-ANSWERS_MAX]:
        coordination.drop_fact(name)


def meant(wish: Wish, controller: Controller) -> MoveCopy | Drain | Undrain | Declined:
    """The event that a wish leads to, given the members and their seats."""
    view = controller.view
    if view is None:
        return Declined("the flow has not begun yet")
    node = _member(wish.node, controller, view)
    match wish:
        case MoveWish(partition, replica, _, _):
            if partition not in view.partitions:
                there = ", ".join(map(str, view.partitions))
                return Declined(f"there is no partition {partition}; there are {there}")
            copy = view.copy_on_fuller_node(partition) if replica is None else Copy(partition, replica)
            return MoveCopy(copy, node)
        case DrainWish(_, _, undo):
            return Undrain(node) if undo else Drain(node)


def _member(name: str, controller: Controller, view: View) -> str:
    """The member that an operator means: its newest incarnation, unless a certain one is named."""
    known = [*sorted(view.drained), *controller.members_in_order]
    if name in known:
        return name
    # A name that no member has is left to the controller, which declines and lists the members.
    return next((each for each in reversed(known) if started_as(each) == name), name)
