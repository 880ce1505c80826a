"""A process that lost its session and lives comes back under its name, and the leader hears of it."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from understudy.core.shape.partition import Partition
from understudy.core.shape.topology import chain_of
from understudy.core.view.controller import Controller
from understudy.core.view.events import ControllerEvent, Decision, MemberJoined, MembersLeft
from understudy.core.view.view import Seat, Seats, Status, View
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.leader import Leadership

pytestmark = pytest.mark.zookeeper

SEATED = View(1, {Partition("flow"): Seats(1, (Seat("a", 1, Status.ACTIVE), Seat("b", 1, Status.DEAD)))})


class Sparing(Controller):
    """Shows the events that it handles, and changes no seat. `hold` makes it slow."""

    def __init__(
        self, view: View | None, handled: queue.Queue[ControllerEvent], hold: threading.Event
    ) -> None:
        super().__init__(chain_of(flow=1), 2, 2, view)
        self._handled = handled
        self._hold = hold

    def handle(self, event: ControllerEvent) -> list[Decision]:
        self._handled.put(event)
        assert self._hold.wait(20)
        return []


class Leader:
    def __init__(self, cluster: Any) -> None:
        self.handled: queue.Queue[ControllerEvent] = queue.Queue()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.connection = cluster.connect()
        self.leadership = Leadership(
            self.connection, "gateway", lambda view: Sparing(view, self.handled, self.may_go_on)
        )
        cluster.undo(self.leadership.stop)

    def start(self) -> Leader:
        assert self.leadership.start().await_leading(10.0)
        return self

    def hears(self) -> ControllerEvent:
        return self.handled.get(timeout=15)


def test_a_member_that_slept_through_its_session_leaves_and_joins_again(cluster: Any) -> None:
    leader = Leader(cluster).start()
    process = cluster.process("a")
    joined = leader.hears()
    assert isinstance(joined, MemberJoined)
    process.send_signal(signal.SIGSTOP)
    assert leader.hears() == MembersLeft(("a",))
    process.send_signal(signal.SIGCONT)
    again = leader.hears()
    assert isinstance(again, MemberJoined)
    assert again.node == "a"
    assert again.order > joined.order


def test_a_member_whose_absence_was_not_seen_joins_again_all_the_same(
    cluster: Any, expire: Callable[[Coordination], None], eventually: Any
) -> None:
    leader, node = Leader(cluster).start(), cluster.connect()
    node.join("node", "a", {})
    joined = leader.hears()
    leader.may_go_on.clear()
    node.join("node", "b", {})
    assert isinstance(leader.hears(), MemberJoined)
    orders = {member.name: member.order for member in leader.connection.members()}
    expire(node)
    eventually(
        lambda: sorted(m.name for m in leader.connection.members() if m.order > orders[m.name]) == ["a", "b"]
    )
    leader.may_go_on.set()
    again = [leader.hears(), leader.hears()]
    assert [type(event) for event in again] == [MemberJoined, MemberJoined]
    assert {event.node for event in again if isinstance(event, MemberJoined)} == {"a", "b"}
    assert all(event.order > orders[event.node] for event in again if isinstance(event, MemberJoined))
    assert isinstance(joined, MemberJoined)
    assert leader.handled.empty()


def test_the_absence_of_a_seated_member_is_reported_once_and_so_is_its_return(cluster: Any) -> None:
    leader = Leader(cluster)
    leader.connection.publish(SEATED, None)
    leader.start()
    # It never appeared, so the new leader has waited for it.
    assert leader.hears() == MembersLeft(("a",))
    for name in ("c", "d"):
        leader.connection.join("node", name, {})
        joined = leader.hears()
        assert isinstance(joined, MemberJoined)
        assert joined.node == name
    leader.connection.join("node", "a", {})
    again = leader.hears()
    assert isinstance(again, MemberJoined)
    assert again.node == "a"
    assert leader.handled.empty()
