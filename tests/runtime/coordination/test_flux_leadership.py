"""The leader of a partitioned flow: seats in many partitions, and what operators wish."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import chain_of
from understudy.core.view.controller import Controller
from understudy.core.view.events import CopyCaughtUp, CopySuspected
from understudy.core.view.view import Status, View
from understudy.runtime.coordination import wishes
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.leader import Leadership
from understudy.runtime.coordination.reports import DrainWish, MoveWish, Wish, written
from understudy.runtime.coordination.wishes import answer_to, asked, fresh_id, put_answer

pytestmark = pytest.mark.zookeeper

SHAPE = chain_of(sessions=2, stats=1)
NODES = ("node-1.1", "node-2.1", "node-3.1")
MOVED = Copy(Partition("sessions", 0), 0)


class Watched:
    """A connection to a partitioned run, what it has heard, and the nodes that it keeps there."""

    def __init__(self, cluster: Any, heard: Any) -> None:
        self.cluster = cluster
        self.connection: Coordination = cluster.connect()
        self.views = heard()
        self.connection.watch_view(self.views)
        self.nodes = {name: self.connection.join("node", name, {}) for name in NODES}

    def lead(self, name: str = "gateway", **options: Any) -> Leadership:
        controller = partial(Controller, SHAPE, 2, 2)
        leadership = Leadership(self.connection, name, controller, **options).start()
        self.cluster.undo(leadership.stop)
        assert leadership.await_leading(10.0)
        return leadership

    def until(self, wanted: Callable[[View], bool]) -> View:
        view: View = self.views.until(wanted)
        return view

    def begun(self) -> View:
        return self.until(lambda view: True)

    def ask(self, wish: Wish) -> dict[str, Any]:
        answer = asked(self.connection, wish, 10.0)
        assert answer is not None
        return answer

    def catch_up_until(self, wanted: Callable[[View], bool]) -> View:
        """Every standby catches up at once."""

        def helped(view: View) -> bool:
            for copy, seat in view.seats.items():
                if seat.status is Status.STDBY:
                    self.connection.report(*written(CopyCaughtUp(copy, seat.epoch)))
            return wanted(view)

        return self.until(helped)


@pytest.fixture
def run(cluster: Any, heard: Any) -> Watched:
    return Watched(cluster, heard)


def all_active(view: View) -> bool:
    return all(seat.status is Status.ACTIVE for seat in view.seats.values())


def test_a_lost_node_is_replaced_partition_by_partition(run: Watched, eventually: Any) -> None:
    run.lead()
    assert tuple(sorted(run.begun().load)) == NODES[:2]
    run.nodes["node-2.1"].leave()
    last = run.catch_up_until(lambda view: all_active(view) and "node-2.1" not in tuple(sorted(view.load)))
    assert tuple(sorted(last.load)) == ("node-1.1", "node-3.1")
    eventually(lambda: run.connection.reports() == [])


def test_a_suspected_node_loses_all_its_seats_and_the_lowest_level_is_filled_first(run: Watched) -> None:
    run.lead()
    first = run.begun()
    suspect = first.seat(MOVED).node
    run.connection.report(*written(CopySuspected(MOVED, 1, "gateway")))
    view = run.until(lambda view: view.seat(MOVED).status is Status.STDBY)
    assert view.seat(MOVED).node == "node-3.1"
    waiting = [copy for copy, seat in view.seats.items() if seat.status is Status.DEAD]
    assert {copy.partition.name for copy in waiting} == {"stats"}
    assert suspect not in view.load


def test_a_node_whose_session_was_lost_is_seated_again_under_its_name(
    cluster: Any, heard: Any, expire: Callable[[Coordination], None]
) -> None:
    run = Watched(cluster, heard)
    run.lead()
    run.begun()
    other = cluster.connect()
    late = other.join("node", "node-4.1", {})
    for name in ("node-2.1", "node-3.1"):
        run.nodes[name].leave()
    run.catch_up_until(lambda view: all_active(view) and tuple(sorted(view.load)) == ("node-1.1", "node-4.1"))
    expire(other)
    run.until(lambda view: "node-4.1" not in tuple(sorted(view.load)))
    again = run.catch_up_until(lambda view: all_active(view) and "node-4.1" in tuple(sorted(view.load)))
    assert late.kept
    assert again.lost is None


def test_an_operator_names_a_node_as_it_was_started_and_hears_what_was_chosen(run: Watched) -> None:
    run.lead()
    run.begun()
    answer = run.ask(MoveWish(MOVED.partition, 0, "node-3", fresh_id()))
    assert answer["ok"]
    assert (answer["copy"], answer["node"]) == (str(MOVED), "node-3.1")
    moved = run.catch_up_until(lambda view: all_active(view) and view.seat(MOVED).node == "node-3.1")
    assert moved.wanted == {}
    # Now node-2 holds three copies, node-3 one.
    chosen = run.ask(MoveWish(MOVED.partition, None, "node-1", fresh_id()))
    assert chosen["copy"] == str(Copy(MOVED.partition, 1))


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        (
            MoveWish(Partition("sessions", 9), None, "node-3", "1"),
            "no partition sessions/9; there are sessions/0",
        ),
        (MoveWish(MOVED.partition, 0, "node-9", "1"), "node-9 is not a member; members are node-1.1"),
        (MoveWish(MOVED.partition, 0, "node-2", "1"), "node-2.1 holds another copy"),
        (DrainWish("node-9", "1"), "node-9 is not a member"),
        (DrainWish("node-3", "1", undo=True), "node-3.1 is not being drained"),
    ],
)
def test_what_cannot_be_done_is_declined_in_words(run: Watched, wish: Wish, why: str) -> None:
    run.lead()
    first = run.begun()
    answer = run.ask(wish)
    assert not answer["ok"]
    assert why in answer["why"]
    assert run.connection.view().view == first


def test_before_the_flow_begins_there_is_nothing_to_move(cluster: Any) -> None:
    connection = cluster.connect()
    leadership = Leadership(connection, "gateway", partial(Controller, SHAPE, 2, 2)).start()
    cluster.undo(leadership.stop)
    answer = asked(connection, DrainWish("node-1", "1"), 10.0)
    assert answer == {"ok": False, "why": "the flow has not begun yet"}


def test_a_new_leader_goes_on_draining(run: Watched) -> None:
    first = run.lead("first")
    run.begun()
    assert run.ask(DrainWish("node-1", fresh_id()))["ok"]
    first.stop()
    run.lead("second")
    last = run.catch_up_until(lambda view: all_active(view) and view.copies_on("node-1.1") == [])
    assert last.drained == {"node-1.1"}
    assert tuple(sorted(last.load)) == NODES[1:]
    assert run.ask(DrainWish("node-1", fresh_id(), undo=True))["ok"]
    run.until(lambda view: view.drained == set())


def test_a_drained_node_that_left_while_no_process_led_is_forgotten(run: Watched) -> None:
    first = run.lead("first")
    run.begun()
    assert run.ask(DrainWish("node-3", fresh_id()))["ok"]
    run.until(lambda view: view.drained == {"node-3.1"})
    first.stop()
    run.nodes["node-3.1"].leave()
    run.lead("second")
    assert all_active(run.until(lambda view: view.drained == set()))


def test_a_wish_that_was_answered_is_not_acted_on_again(run: Watched, eventually: Any) -> None:
    run.lead()
    first = run.begun()
    put_answer(run.connection, "7", {"ok": True, "epoch": 1})
    run.connection.report(*written(DrainWish("node-1", "7")))
    run.connection.report("gossip", {})
    eventually(lambda: run.connection.reports() == [])
    # Answered after the one above was read.
    run.ask(DrainWish("node-9", "8"))
    assert run.connection.view().view == first


def test_old_answers_do_not_pile_up(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wishes, "ANSWERS_MAX", 3)
    connection = cluster.connect()
    connection.put_fact("gateway", {})
    ids = [fresh_id() for _ in range(6)]
    for number, wish_id in enumerate(ids):
        put_answer(connection, wish_id, {"ok": True, "epoch": number})
    assert [answer_to(connection, wish_id) is not None for wish_id in ids] == [False] * 3 + [True] * 3
    assert "gateway" in connection.fact_names()


def test_without_a_leader_the_question_ends_in_time(cluster: Any) -> None:
    assert asked(cluster.connect(), DrainWish("node-1", "1"), 0.2) is None
