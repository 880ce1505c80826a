"""One leads, the view follows the members, and nothing that was reported is forgotten."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import chain_of
from understudy.core.view.controller import Controller
from understudy.core.view.events import CopyCaughtUp, CopyMoveFailed, CopySuspected
from understudy.core.view.view import Seat, Seats, Status, View
from understudy.runtime.coordination.client import Coordination, Report
from understudy.runtime.coordination.leader import Leadership
from understudy.runtime.coordination.reports import DrainWish, MoveWish, event_of, written

pytestmark = pytest.mark.zookeeper

ACTIVE, DEAD, STDBY = Status.ACTIVE, Status.DEAD, Status.STDBY
FLOW = Partition("flow")
FIRST, SECOND = Copy(FLOW, 0), Copy(FLOW, 1)

#: Two replicas of a flow in one partition.
pair = partial(Controller, chain_of(flow=1), 2, 2)


def view_of(epoch: int, *seats: Seat) -> View:
    lost = None if any(seat.alive for seat in seats) else "gone"
    return View(epoch, {FLOW: Seats(epoch, seats, lost)})


def candidate(cluster: Any, connection: Coordination, name: str, **options: Any) -> Leadership:
    options = {"controller": pair, **options}
    leadership = Leadership(connection, name, **options).start()
    cluster.undo(leadership.stop)
    return leadership


def leader(cluster: Any, connection: Coordination, name: str = "gateway") -> Leadership:
    leadership = candidate(cluster, connection, name)
    assert leadership.await_leading(10.0)
    return leadership


def seats(view: View) -> list[tuple[str, Status]]:
    return [(seat.node, seat.status) for seat in view.seats.values()]


def statuses(*wanted: tuple[str, Status]) -> Callable[[View], bool]:
    return lambda view: seats(view) == list(wanted)


def waiting_behind(active: str) -> Callable[[View], bool]:
    """The second seat was given anew: to another member, or to the suspect if no other was known yet."""
    return lambda view: seats(view)[0] == (active, ACTIVE) and seats(view)[1][1] is STDBY


COPY = Copy(Partition("sessions", 3), 1)


@pytest.mark.parametrize(
    "event",
    [
        CopyCaughtUp(COPY, 6),
        CopyMoveFailed(COPY, 7, "the disk is full"),
        CopyMoveFailed(COPY, 7, "it is slow", holds_state=True),
        CopySuspected(COPY, 8, "gateway"),
        MoveWish(COPY.partition, 1, "node-3", "7"),
        MoveWish(COPY.partition, None, "node-3", "7"),
        DrainWish("node-3", "8"),
        DrainWish("node-3", "9", undo=True),
    ],
    ids=repr,
)
def test_a_report_arrives_as_it_was_written(event: Any) -> None:
    kind, facts = written(event)
    assert event_of(Report("r-1", kind, facts)) == event


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        ("gossip", {}),
        ("suspected", {"copy": "a/0:0"}),
        ("caught_up", {"copy": "a/0", "epoch": 1}),
        ("caught_up", {"copy": 3, "epoch": 1}),
        ("move_failed", {"copy": "a/0:0", "epoch": 1}),
        ("suspected", {"copy": "/0:1", "epoch": 1, "by": "x"}),
        ("move", {"partition": "f/0", "node": "a"}),
        ("move", {"partition": "f", "node": "a", "id": "1"}),
        ("drain", {"node": "a", "id": "../view"}),
    ],
)
def test_a_report_that_makes_no_sense_is_refused(kind: str, facts: dict[str, Any]) -> None:
    with pytest.raises(PeerError, match="r-1"):
        event_of(Report("r-1", kind, facts))


def test_the_life_of_a_run(cluster: Any, heard: Any, eventually: Any) -> None:
    connection, views = cluster.connect(), heard()
    connection.watch_view(views)
    leader(cluster, connection)
    connection.join("gateway", "gateway", {})
    connection.join("node", "a", {})
    connection.join("node", "b", {})
    views.until(statuses(("a", ACTIVE), ("b", ACTIVE)))
    connection.join("node", "c", {})
    connection.report(*written(CopySuspected(SECOND, 1, "gateway")))
    standby = views.until(waiting_behind("a"))
    connection.report(*written(CopyCaughtUp(SECOND, standby.seat(SECOND).epoch)))
    last = views.until(lambda view: view.epoch == 4)
    assert last == view_of(4, Seat("a", 1, ACTIVE), Seat(standby.seat(SECOND).node, 3, ACTIVE))
    eventually(lambda: connection.reports() == [])


def test_a_report_that_makes_no_sense_does_not_stop_the_leader(
    cluster: Any, heard: Any, eventually: Any
) -> None:
    connection, views = cluster.connect(), heard()
    connection.watch_view(views)
    connection.report("gossip", {})
    leader(cluster, connection)
    connection.join("node", "a", {})
    connection.join("node", "b", {})
    views.until(statuses(("a", ACTIVE), ("b", ACTIVE)))
    eventually(lambda: connection.reports() == [])


def test_a_report_waits_for_a_leader_and_may_arrive_twice(cluster: Any, heard: Any, eventually: Any) -> None:
    connection, views = cluster.connect(), heard()
    connection.publish(view_of(1, Seat("a", 1, ACTIVE), Seat("b", 1, ACTIVE)), None)
    connection.join("node", "a", {})
    connection.join("node", "b", {})
    connection.join("node", "c", {})
    for copies in (1, 2):
        connection.report(*written(CopySuspected(FIRST, 1, "gateway")))
        eventually(lambda copies=copies: len(connection.reports()) == copies)
    connection.watch_view(views)
    leader(cluster, connection)
    views.until(statuses(("c", STDBY), ("b", ACTIVE)))
    eventually(lambda: connection.reports() == [])
    assert connection.view().view.epoch == 3


@pytest.mark.parametrize("moment", ["die-before-view-2", "die-after-view-2"])
def test_a_report_outlives_a_leader_that_dies_while_acting_on_it(
    cluster: Any, heard: Any, eventually: Any, moment: str
) -> None:
    connection, views = cluster.connect(), heard()
    connection.watch_view(views)
    for name in ("a", "b"):
        connection.join("node", name, {})
    first = cluster.process("c", "lead", moment)
    views.until(statuses(("a", ACTIVE), ("b", ACTIVE)))
    candidate(cluster, connection, "gateway")
    connection.report(*written(CopySuspected(SECOND, 1, "gateway")))
    assert first.wait(10.0) == 9
    views.until(lambda view: seats(view)[0] == ("a", ACTIVE) and view.seat(SECOND).epoch > 1)
    eventually(lambda: connection.reports() == [])


def test_when_the_leading_process_is_killed_another_leads_and_sees_the_death(
    cluster: Any, heard: Any
) -> None:
    first = cluster.process("a", "lead")
    connection, views = cluster.connect(), heard()
    connection.watch_view(views)
    connection.join("node", "b", {})
    views.until(statuses(("a", ACTIVE), ("b", ACTIVE)))
    successor = candidate(cluster, connection, "b")
    first.kill()
    views.until(statuses(("a", DEAD), ("b", ACTIVE)))
    assert successor.leading


def test_a_stopped_process_is_fenced_comes_back_as_a_standby_and_does_not_lead_on(
    cluster: Any, heard: Any
) -> None:
    first = cluster.process("a", "lead")
    connection, views = cluster.connect(), heard()
    connection.watch_view(views)
    connection.join("node", "b", {})
    views.until(statuses(("a", ACTIVE), ("b", ACTIVE)))
    successor = candidate(cluster, connection, "b")
    first.send_signal(signal.SIGSTOP)
    dead = views.until(statuses(("a", DEAD), ("b", ACTIVE)))
    first.send_signal(signal.SIGCONT)
    views.until(statuses(("a", STDBY), ("b", ACTIVE)))
    assert not dead.holds(FIRST, "a", 1)
    assert successor.leading


def test_a_leader_that_steps_down_is_followed_at_once(cluster: Any) -> None:
    one, two = cluster.connect(), cluster.connect()
    first = leader(cluster, one, "first")
    second = candidate(cluster, two, "second")
    first.stop()
    assert second.await_leading(5.0)
    assert not first.leading


def test_a_leader_whose_session_expired_leads_no_more(
    cluster: Any, expire: Callable[[Coordination], None], eventually: Any
) -> None:
    one, two = cluster.connect(), cluster.connect()
    first = leader(cluster, one, "first")
    second = candidate(cluster, two, "second")
    expire(one)
    assert second.await_leading(10.0)
    eventually(lambda: not first.leading)
    second.stop()
    assert first.await_leading(10.0), "it stands for election again"


def test_a_leader_that_was_overtaken_goes_on_from_what_is_stored(cluster: Any, heard: Any) -> None:
    connection, views = cluster.connect(), heard()
    connection.watch_view(views)
    leader(cluster, connection)
    for name in ("a", "b", "c"):
        connection.join("node", name, {})
    views.until(statuses(("a", ACTIVE), ("b", ACTIVE)))
    stored = connection.view()
    other_leaders = view_of(2, Seat("a", 1, DEAD), Seat("b", 1, ACTIVE))
    connection.publish(other_leaders, stored.version)
    connection.report(*written(CopySuspected(SECOND, 1, "a process that saw the first view")))
    views.until(statuses(("c", STDBY), ("b", ACTIVE)))
    assert [view.epoch for view in views.all] == sorted({view.epoch for view in views.all})


def test_the_gateway_leads_although_a_node_stood_first(cluster: Any) -> None:
    one, two = cluster.connect(), cluster.connect()
    node = candidate(cluster, one, "node", priority=1)
    leader(cluster, two, "gateway")
    assert not node.await_leading(1.5)


def test_no_member_dies_because_zookeeper_was_away(own_cluster: Any, heard: Any) -> None:
    connection, views = own_cluster.connect(), heard()
    connection.watch_view(views)
    leader(own_cluster, connection)
    members = [own_cluster.connect().join("node", name, {}) for name in ("a", "b")]
    views.until(statuses(("a", ACTIVE), ("b", ACTIVE)))
    own_cluster.server.kill()
    own_cluster.server.start()
    connection.join("node", "c", {})
    connection.report(*written(CopySuspected(SECOND, 1, "gateway")))
    views.until(waiting_behind("a"))
    assert [view.epoch for view in views.all if seats(view)[0] != ("a", ACTIVE)] == []
    assert all(member.kept for member in members)


def test_seated_members_survive_the_loss_of_every_session(
    cluster: Any, heard: Any, eventually: Any, expire: Callable[[Coordination], None]
) -> None:
    connections, views = [cluster.connect() for _ in range(3)], heard()
    gateway, *nodes = connections
    gateway.watch_view(views)
    leader(cluster, gateway).stop()
    for connection, name in zip(nodes, ("a", "b"), strict=True):
        connection.join("node", name, {})
    gateway.publish(view_of(1, Seat("a", 1, ACTIVE), Seat("b", 1, ACTIVE)), None)
    for connection in connections:
        expire(connection)
    leader(cluster, gateway)
    gateway.join("node", "c", {})
    # Until then it cannot know whether the other copy lives.
    eventually(lambda: {"a", "b"} <= {member.name for member in gateway.read_members()})
    gateway.report(*written(CopySuspected(SECOND, 1, "gateway")))
    last = views.until(waiting_behind("a"))
    assert last.epoch == 3, "only the suspicion and the standby were decisions"


def test_a_seated_member_that_never_appears_is_dead_after_the_leaders_patience(
    cluster: Any, heard: Any
) -> None:
    connection, views = cluster.connect(), heard()
    connection.watch_view(views)
    connection.join("node", "a", {})
    connection.publish(view_of(1, Seat("a", 1, ACTIVE), Seat("gone", 1, ACTIVE)), None)
    leader(cluster, connection)
    views.until(statuses(("a", ACTIVE), ("gone", DEAD)))


def test_a_candidate_that_fails_lets_another_lead_and_stands_again(cluster: Any, eventually: Any) -> None:
    one, two = cluster.connect(), cluster.connect()
    sound = threading.Event()

    def controller(view: View | None) -> Controller:
        if not sound.is_set():
            raise BrokenInvariant("the stored view is of another flow")
        return pair(view)

    failing = candidate(cluster, one, "gateway", controller=controller)
    eventually(lambda: failing.failure is not None)
    second = candidate(cluster, two, "node")
    assert second.await_leading(10.0)
    assert not failing.leading
    sound.set()
    second.stop()
    assert failing.await_leading(10.0)
    eventually(lambda: failing.failure is None)


def test_the_last_holder_of_the_state_keeps_its_seat_while_its_session_is_made_anew(
    cluster: Any, heard: Any, expire: Callable[[Coordination], None], eventually: Any
) -> None:
    connection, node, views = cluster.connect(), cluster.connect(), heard()
    connection.watch_view(views)
    connection.publish(view_of(1, Seat("a", 1, ACTIVE), Seat("b", 1, DEAD)), None)
    node.join("node", "a", {})
    candidate(cluster, connection, "gateway", controller=partial(pair, grace_ms=30_000))
    before = {member.name: member.order for member in connection.members()}
    expire(node)
    eventually(lambda: any(m.name == "a" and m.order > before.get("a", -1) for m in connection.members()))
    connection.join("node", "c", {})
    views.until(statuses(("a", ACTIVE), ("c", STDBY)))
    assert not any(view.lost for view in views.all)


def test_the_last_holder_of_the_state_is_given_up_when_it_does_not_come_back(
    cluster: Any, heard: Any
) -> None:
    connection, views = cluster.connect(), heard()
    connection.watch_view(views)
    connection.publish(view_of(1, Seat("a", 1, ACTIVE), Seat("b", 1, DEAD)), None)
    candidate(cluster, connection, "gateway", controller=partial(pair, grace_ms=500))
    lost = views.until(lambda view: view.lost is not None)
    assert "a left the cluster and did not come back" in str(lost.lost)


def test_a_report_about_a_later_view_than_the_leader_knows_makes_it_read_again(
    cluster: Any, heard: Any, eventually: Any
) -> None:
    connection, views = cluster.connect(), heard()
    connection.watch_view(views)
    leader(cluster, connection)
    for name in ("a", "b", "c"):
        connection.join("node", name, {})
    views.until(statuses(("a", ACTIVE), ("b", ACTIVE)))
    # A former leader's last view, stored behind this one's back.
    standby = view_of(2, Seat("a", 1, ACTIVE), Seat("c", 2, STDBY))
    connection.publish(standby, connection.view().version)
    connection.report(*written(CopyCaughtUp(SECOND, 2)))
    views.until(statuses(("a", ACTIVE), ("c", ACTIVE)))
    eventually(lambda: connection.reports() == [])


class Racing(Coordination):
    """Just before the leader reads the reports, a member joins and then a report comes."""

    meanwhile: Callable[[], None] | None = None

    def reports(self, watch: Any = None) -> list[Report]:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return super().reports(watch)


def test_who_was_there_when_a_report_was_written_is_known_when_it_is_acted_on(
    cluster: Any, heard: Any, eventually: Any
) -> None:
    connection, views = cluster.connect(), heard()
    leading = cluster.connect(Racing)
    connection.watch_view(views)
    leader(cluster, leading)
    for name in ("a", "b"):
        connection.join("node", name, {})
    views.until(statuses(("a", ACTIVE), ("b", ACTIVE)))

    def join_and_suspect() -> None:
        connection.join("node", "c", {})
        connection.report(*written(CopySuspected(SECOND, 1, "gateway")))
        eventually(lambda: len(connection.reports()) == 2)

    leading.meanwhile = join_and_suspect
    connection.report("gossip", {})
    views.until(statuses(("a", ACTIVE), ("c", STDBY)))
    assert not any(("b", STDBY) in seats(view) for view in views.all)
