"""One leads, the view follows the members, and nothing that was reported is forgotten."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from understudy.core.controller import Controller, FoldedIn, MoveFailed, Suspected
from understudy.core.flux_events import CopyCaughtUp, CopyMoveFailed, CopySuspected
from understudy.runtime.coordination.controllers import pair_controller

from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view import Seat, Slot, Status, View
from understudy.runtime.coordination.client import Coordination, Report
from understudy.runtime.coordination.leader import Leadership
from understudy.runtime.coordination.reports import DrainWish, MoveWish, event_of, written

pytestmark = pytest.mark.cluster

PRIM, SEC = Slot.PRIM, Slot.SEC
ACTIVE, DEAD, STDBY = Status.ACTIVE, Status.DEAD, Status.STDBY


def candidate(cluster: Any, connection: Coordination, name: str, **options: Any) -> Leadership:
    options = {"controller": pair_controller("pair"), **options}
    leadership = Leadership(connection, name, **options).start()
    cluster.undo(leadership.stop)
    return leadership


def leader(cluster: Any, connection: Coordination, name: str = "gateway") -> Leadership:
    leadership = candidate(cluster, connection, name)
    assert leadership.await_leading(10.0)
    return leadership


def seats(view: View) -> dict[str, tuple[str, Status]]:
    return {slot.value: (seat.node, seat.status) for slot, seat in view.seats.items()}


def statuses(prim: tuple[str, Status], sec: tuple[str, Status]) -> Callable[[View], bool]:
    return lambda view: seats(view) == {"PRIM": prim, "SEC": sec}


COPY = Copy(Partition("sessions", 3), SEC)


@pytest.mark.parametrize(
    "event",
    [
        Suspected("a", 3, "gateway"),
        FoldedIn(SEC, 4),
        MoveFailed(PRIM, 5),
        CopyCaughtUp(COPY, 6),
        CopyMoveFailed(COPY, 7),
        CopySuspected(COPY, 8, "gateway"),
        MoveWish(COPY.partition, SEC, "node-3", "7"),
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
        ("suspected", {"node": "a"}),
        ("folded_in", {"slot": "THIRD", "epoch": 1}),
        ("copy_caught_up", {"fragment": "", "index": 0, "slot": "SEC", "epoch": 1}),
        ("copy_suspected", {"fragment": "f", "index": -1, "slot": "SEC", "epoch": 1, "by": "x"}),
        ("move", {"fragment": "f", "index": 0, "node": "a"}),
        ("drain", {"node": "a", "id": "../view"}),
    ],
)
def test_a_report_that_makes_no_sense_is_refused(kind: str, facts: dict[str, Any]) -> None:
    with pytest.raises(PeerError, match="r-1"):
        event_of(Report("r-1", kind, facts))


def test_a_whole_life_of_a_run(cluster: Any, heard: Any, eventually: Any) -> None:
    connection, views = cluster.connect(), heard()
    connection.watch_view(views)
    leader(cluster, connection)
    connection.join("gateway", "gateway", {})
    connection.join("node", "a", {})
    connection.join("node", "b", {})
    views.until(statuses(("a", ACTIVE), ("b", ACTIVE)))
    connection.report(*written(Suspected("b", 1, "gateway")))
    views.until(statuses(("a", ACTIVE), ("b", DEAD)))
    connection.join("node", "c", {})
    standby = views.until(statuses(("a", ACTIVE), ("c", STDBY)))
    connection.report(*written(FoldedIn(SEC, standby.seats[SEC].epoch)))
    last = views.until(statuses(("a", ACTIVE), ("c", ACTIVE)))
    assert last == View(4, {PRIM: Seat("a", 1, ACTIVE), SEC: Seat("c", 3, ACTIVE)}, None, ("b",))
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
    connection.publish(View(1, {PRIM: Seat("a", 1, ACTIVE), SEC: Seat("b", 1, ACTIVE)}), None)
    connection.join("node", "a", {})
    connection.join("node", "b", {})
    for copies in (1, 2):
        connection.report(*written(Suspected("a", 1, "gateway")))
        eventually(lambda copies=copies: len(connection.reports()) == copies)
    connection.watch_view(views)
    leader(cluster, connection)
    views.until(statuses(("a", DEAD), ("b", ACTIVE)))
    eventually(lambda: connection.reports() == [])
    assert connection.view().view.epoch == 2


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
    connection.report(*written(Suspected("b", 1, "gateway")))
    assert first.wait(10.0) == 9
    views.until(lambda view: seats(view)["PRIM"] == ("a", ACTIVE) and view.declared_dead("b"))
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


def test_a_stopped_process_is_fenced_and_does_not_lead_on(cluster: Any, heard: Any) -> None:
    first = cluster.process("a", "lead")
    connection, views = cluster.connect(), heard()
    connection.watch_view(views)
    connection.join("node", "b", {})
    views.until(statuses(("a", ACTIVE), ("b", ACTIVE)))
    successor = candidate(cluster, connection, "b")
    first.send_signal(signal.SIGSTOP)
    dead = views.until(statuses(("a", DEAD), ("b", ACTIVE)))
    first.send_signal(signal.SIGCONT)
    connection.join("node", "c", {})
    views.until(statuses(("c", STDBY), ("b", ACTIVE)))
    assert not dead.holds(PRIM, "a", 1)
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
    other_leaders = View(2, {PRIM: Seat("a", 1, DEAD), SEC: Seat("b", 1, ACTIVE)})
    connection.publish(other_leaders, stored.version)
    connection.report(*written(Suspected("b", 1, "somebody who saw the first view")))
    views.until(statuses(("c", STDBY), ("b", ACTIVE)))
    assert [view.epoch for view in views.all] == sorted({view.epoch for view in views.all})


def test_the_gateway_leads_although_a_node_stood_first(cluster: Any) -> None:
    one, two = cluster.connect(), cluster.connect()
    node = candidate(cluster, one, "node", priority=1)
    leader(cluster, two, "gateway")
    assert not node.await_leading(1.5)


def test_nobody_dies_because_zookeeper_was_away(own_cluster: Any, heard: Any) -> None:
    connection, views = own_cluster.connect(), heard()
    connection.watch_view(views)
    leader(own_cluster, connection)
    members = [own_cluster.connect().join("node", name, {}) for name in ("a", "b")]
    views.until(statuses(("a", ACTIVE), ("b", ACTIVE)))
    own_cluster.server.kill()
    own_cluster.server.start()
    connection.join("node", "c", {})
    connection.report(*written(Suspected("b", 1, "gateway")))
    views.until(statuses(("a", ACTIVE), ("c", STDBY)))
    assert [view.epoch for view in views.all if seats(view)["PRIM"] != ("a", ACTIVE)] == []
    assert members[1].dead.wait(10.0)


def test_seated_members_survive_the_loss_of_every_session(
    cluster: Any, heard: Any, expire: Callable[[Coordination], None]
) -> None:
    connections, views = [cluster.connect() for _ in range(3)], heard()
    gateway, *nodes = connections
    gateway.watch_view(views)
    leader(cluster, gateway).stop()
    for connection, name in zip(nodes, ("a", "b"), strict=True):
        connection.join("node", name, {})
    gateway.publish(View(1, {PRIM: Seat("a", 1, ACTIVE), SEC: Seat("b", 1, ACTIVE)}), None)
    for connection in connections:
        expire(connection)
    leader(cluster, gateway)
    gateway.join("node", "c", {})
    gateway.report(*written(Suspected("b", 1, "gateway")))
    last = views.until(statuses(("a", ACTIVE), ("c", STDBY)))
    assert last.epoch == 3, "only the suspicion and the standby were decisions"


def test_a_seated_member_that_never_appears_is_dead_after_the_leaders_patience(
    cluster: Any, heard: Any
) -> None:
    connection, views = cluster.connect(), heard()
    connection.watch_view(views)
    connection.join("node", "a", {})
    connection.publish(View(1, {PRIM: Seat("a", 1, ACTIVE), SEC: Seat("gone", 1, ACTIVE)}), None)
    leader(cluster, connection)
    views.until(statuses(("a", ACTIVE), ("gone", DEAD)))


def test_a_candidate_that_fails_lets_another_lead_and_stands_again(cluster: Any, eventually: Any) -> None:
    one, two = cluster.connect(), cluster.connect()
    sound = threading.Event()

    def controller(view: View | None) -> Controller:
        if not sound.is_set():
            raise BrokenInvariant("the stored view is of another flow")
        return pair_controller("pair")(view)

    failing = candidate(cluster, one, "gateway", controller=controller)
    eventually(lambda: failing.failure is not None)
    second = candidate(cluster, two, "node")
    assert second.await_leading(10.0)
    assert not failing.leading
    sound.set()
    second.stop()
    assert failing.await_leading(10.0)
    eventually(lambda: failing.failure is None)
