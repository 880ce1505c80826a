"""What operators ask of the controller: moves and drains."""

from __future__ import annotations

import pytest
from controller_kit import (
    all_catch_up,
    catch_up,
    controller,
    high,
    low,
    now,
    seat_of,
    single,
    successor,
    views,
    with_status,
)
from core_kit import ACTIVE, DEAD, STDBY

from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import chain_of
from understudy.core.timers import TimerFired
from understudy.core.view.controller import Controller
from understudy.core.view.events import (
    CopyMoveFailed,
    CopySuspected,
    Declined,
    Drain,
    MemberJoined,
    MembersLeft,
    MoveCopy,
    Publish,
    Undrain,
)

MOVED = low(1, 1)


def test_a_move_is_wished_then_takes_the_seat_then_seats_a_standby_and_is_forgotten_at_last() -> None:
    made = controller("e")
    wished, dead, seated = views(made.handle(MoveCopy(MOVED, "e")))
    assert wished.wanted == dead.wanted == seated.wanted == {MOVED: "e"}
    assert [each.seat(MOVED).status for each in (wished, dead, seated)] == [ACTIVE, DEAD, STDBY]
    catch_up(made)
    assert now(made).wanted == {}
    assert seat_of(made, MOVED) == ("e", ACTIVE)


def test_a_move_goes_where_it_was_wished_although_another_node_is_empty() -> None:
    made = controller("e")
    made.handle(MoveCopy(MOVED, "d"))
    assert seat_of(made, MOVED) == ("d", STDBY)


def test_a_move_that_is_said_twice_is_one_move() -> None:
    made = controller("e")
    made.handle(MoveCopy(MOVED, "e"))
    assert made.handle(MoveCopy(MOVED, "e")) == []


@pytest.mark.parametrize(
    ("copy", "node", "why"),
    [
        (MOVED, "z", "z is not a member; members are a, b, c, d, e"),
        (MOVED, "b", "b holds another copy of low/1; losing it would lose them both"),
        (MOVED, "c", "low/1:1 sits on c already"),
        (Copy(Partition("nothing"), 1), "a", "there is no partition nothing/0"),
        (low(1, 2), "a", "low/1 has 2 replicas, counted from 0"),
    ],
)
def test_a_move_that_makes_no_sense_is_declined(copy: Copy, node: str, why: str) -> None:
    assert controller("e").handle(MoveCopy(copy, node)) == [Declined(why)]


def test_a_move_before_the_first_view_is_declined() -> None:
    made = Controller(chain_of(low=1), 2, 2)
    assert made.handle(MoveCopy(low(0, 0), "a")) == [Declined("there is no partition low/0")]


def test_a_move_of_the_only_active_copy_is_declined() -> None:
    made = controller("e")
    made.handle(MembersLeft(("b",)))
    (declined,) = made.handle(MoveCopy(high(1, 1), "e"))
    assert isinstance(declined, Declined)
    assert "no other copy of high/1 is active" in declined.why


def test_a_move_to_where_another_copy_is_wished_is_declined() -> None:
    made = controller("e", "f")
    made.handle(MembersLeft(("d",)))
    made.handle(MoveCopy(high(1, 1), "f"))
    assert made.handle(MoveCopy(high(1, 0), "f")) == [Declined("f is to get another copy of high/1")]


def test_a_copy_keeps_its_seat_until_its_move_has_its_turn() -> None:
    made = controller("e", "f")
    made.handle(MembersLeft(("d",)))
    (wished,) = made.handle(MoveCopy(high(1, 1), "f"))
    assert isinstance(wished, Publish)
    assert seat_of(made, high(1, 1)) == ("c", ACTIVE)
    all_catch_up(made)
    assert seat_of(made, high(1, 1)) == ("f", ACTIVE)


def test_a_new_leader_goes_on_with_what_an_operator_wished() -> None:
    made = controller("e", "f")
    made.handle(MembersLeft(("d",)))
    made.handle(MoveCopy(high(1, 1), "f"))
    made.handle(Drain("a"))
    made = successor(made)
    assert (now(made).wanted, now(made).drained) == ({high(1, 1): "f"}, {"a"})
    all_catch_up(made)
    assert seat_of(made, high(1, 1)) == ("f", ACTIVE)
    assert now(made).copies_on("a") == []


@pytest.mark.parametrize("event", [MembersLeft(("e",)), Drain("e")], ids=["left", "drained"])
def test_a_wish_ends_when_its_node_cannot_have_the_copy_any_more(event: MembersLeft | Drain) -> None:
    made = controller("e")
    made.handle(MoveCopy(MOVED, "e"))
    made.handle(event)
    assert now(made).wanted == {}
    all_catch_up(made)
    assert seat_of(made, MOVED)[0] != "e"


def test_a_wish_that_waits_for_its_turn_ends_with_its_node_and_holds_up_no_standby() -> None:
    made = controller("e", "f")
    made.handle(MembersLeft(("d",)))
    made.handle(MoveCopy(high(1, 1), "f"))
    made.handle(MembersLeft(("f",)))
    assert now(made).wanted == {}
    all_catch_up(made)
    assert with_status(made, DEAD) == []


def test_a_wish_ends_when_it_was_tried_and_failed() -> None:
    made = controller("e")
    made.handle(MoveCopy(MOVED, "e"))
    made.handle(CopyMoveFailed(MOVED, now(made).seat(MOVED).epoch))
    assert now(made).wanted == {}
    node, status = seat_of(made, MOVED)
    assert node not in ("b", "e")
    assert status is STDBY


def test_a_wish_ends_when_the_node_has_got_another_copy_of_the_partition() -> None:
    made = controller("e")
    made.handle(MembersLeft(("d",)))
    made.handle(MoveCopy(high(1, 0), "e"))
    assert now(made).wanted == {high(1, 0): "e"}
    made.handle(CopySuspected(high(1, 1), 1, "x"))
    all_catch_up(made)
    assert seat_of(made, high(1, 1)) == ("e", ACTIVE)
    assert now(made).wanted == {}
    assert seat_of(made, high(1, 0)) == ("b", ACTIVE)


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_drained_node_ends_up_empty_while_every_partition_keeps_an_active_copy(replicas: int) -> None:
    made = controller("e", replicas=replicas)
    made.handle(Drain("a"))
    all_catch_up(made)
    assert now(made).copies_on("a") == []
    assert len(with_status(made, ACTIVE)) == 8 * replicas


def test_a_drain_that_is_taken_back_or_whose_node_left_is_forgotten() -> None:
    made = controller("e", "f")
    (drained,) = views(made.handle(Drain("e")))
    assert drained.drained == {"e"}
    assert made.handle(Drain("e")) == []
    made.handle(Undrain("e"))
    made.handle(Drain("f"))
    made.handle(MembersLeft(("f",)))
    assert now(made).drained == set()
    assert made.handle(Undrain("e")) == [Declined("e is not being drained")]


def test_a_drained_node_is_given_no_copy_although_no_other_is_free_until_it_is_undrained() -> None:
    made = single(2, "c")
    made.handle(Drain("c"))
    made.handle(MembersLeft(("b",)))
    assert seat_of(made, Copy(Partition("f"), 1)) == ("b", DEAD)
    made.handle(Undrain("c"))
    assert seat_of(made, Copy(Partition("f"), 1)) == ("c", STDBY)


def test_a_drain_that_no_other_node_could_make_room_for_is_declined() -> None:
    made = Controller(chain_of(low=2), 2, 2)
    assert made.handle(Drain("a")) == [Declined("the flow has not begun yet")]
    made.handle(MemberJoined("a", 1))
    made.handle(MemberJoined("b", 2))
    assert made.handle(Drain("a")) == [Declined("no other node can take low/0:0; add one first")]
    assert made.handle(Drain("z")) == [Declined("z is not a member; members are a, b")]


def test_a_lost_flow_grants_no_wish() -> None:
    made = Controller(chain_of(low=1), 1, 1)
    made.handle(MemberJoined("a", 1))
    made.handle(MemberJoined("b", 2))
    made.handle(MembersLeft(("a",)))
    made.handle(TimerFired(("missed", "a")))
    for event in (Drain("b"), MoveCopy(low(0, 0), "b")):
        assert made.handle(event) == [Declined(f"the flow is lost: {now(made).lost}")]


# --- isolated replicas -----------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [MembersLeft(("b",)), CopySuspected(high(1, 0), 1, "x")])
def test_one_loss_costs_isolated_replicas_all_of_a_dataflow(event: MembersLeft | CopySuspected) -> None:
    made = controller("e", isolated=True)
    (published,) = views(made.handle(event))
    assert {copy.replica for copy in with_status(made, DEAD)} == {0}
    assert {copy.replica for copy in with_status(made, ACTIVE)} == {1}
    assert len(with_status(made, DEAD)) == 8
    assert set(published.load) == {"c", "d"}
    assert made.handle(MemberJoined("f", 9)) == [], "no standby is seated"


def test_isolated_replicas_are_lost_with_the_last_complete_one_and_only_then() -> None:
    made = controller("e", isolated=True, grace_ms=500)
    made.handle(MembersLeft(("b",)))
    made.handle(MembersLeft(("a",)))
    assert made.handle(CopySuspected(high(1, 1), 1, "x")) == []
    made.handle(MembersLeft(("d",)))
    assert now(made).lost is None, "it is given time to come back"
    made.handle(TimerFired(("missed", "d")))
    assert now(made).lost is not None
    assert with_status(made, ACTIVE) == []


@pytest.mark.parametrize("event", [MoveCopy(MOVED, "e"), Drain("a")])
def test_no_copy_of_isolated_replicas_can_be_moved(event: MoveCopy | Drain) -> None:
    made = controller("e", isolated=True)
    assert made.handle(event) == [Declined("with isolated replicas no copy can be moved")]
