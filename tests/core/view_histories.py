"""Random sequences of views, as a controller publishes them when nodes come, go, fail and recover."""

from __future__ import annotations

from hypothesis import strategies as st

from understudy.core.shape.topology import Topology, chain_of
from understudy.core.timers import TimerFired
from understudy.core.view.controller import Controller
from understudy.core.view.events import (
    ControllerEvent,
    CopyCaughtUp,
    CopyMoveFailed,
    CopySuspected,
    Drain,
    MemberJoined,
    MembersLeft,
    MoveCopy,
    Publish,
    Undrain,
)
from understudy.core.view.view import Status, View

NAMES = tuple("abcdefg")


def any_event(draw: st.DrawFn, controller: Controller, order: int) -> ControllerEvent:
    """An event that often, but not always, speaks of the current seats and members."""
    node = draw(st.sampled_from((*NAMES, "gone")))
    joined = MemberJoined(node, order)
    if controller.view is None:
        return draw(st.sampled_from([joined, joined, MembersLeft((node,))]))
    copy = draw(st.sampled_from(controller.topology.copies(controller.replicas)))
    waiting = [c for c, seat in controller.view.seats.items() if seat.status is Status.STDBY]
    standby = draw(st.sampled_from(waiting or [copy]))
    epoch = controller.view.seat(copy).epoch + draw(st.sampled_from((0, 0, 0, -1, 1)))
    since = controller.view.seat(standby).epoch
    return draw(
        st.sampled_from(
            [
                joined,
                joined,
                MembersLeft((node,)),
                TimerFired(("missed", node)),
                CopySuspected(copy, epoch, "gateway"),
                CopyCaughtUp(standby, since),
                CopyCaughtUp(standby, since),
                CopyMoveFailed(standby, since),
                MoveCopy(copy, node),
                Drain(node),
                Undrain(node),
            ]
        )
    )


@st.composite
def view_histories(draw: st.DrawFn, shape: Topology | None = None) -> list[View]:
    """The views that one controller published, with 1, 2 or 3 replicas. There is at least one."""
    replicas = draw(st.sampled_from([1, 2, 3]))
    controller = Controller(shape or chain_of(f=1), replicas, nodes_wanted=replicas + 1)
    published: list[View] = []
    for order, node in enumerate(NAMES[: replicas + 2]):
        done = controller.handle(MemberJoined(node, order))
        published += [each.view for each in done if isinstance(each, Publish)]
    for order in range(10, draw(st.integers(10, 40))):
        done = controller.handle(any_event(draw, controller, order))
        published += [each.view for each in done if isinstance(each, Publish)]
    return published
