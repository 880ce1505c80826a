"""The controller: which node it seats, buries and chooses next."""

from __future__ import annotations

import pytest
from controller_kit import (
    SHAPE,
    F,
    all_catch_up,
    catch_up,
    controller,
    high,
    join,
    low,
    now,
    other_active,
    seat_of,
    single,
    successor,
    views,
    with_status,
)
from core_kit import ACTIVE, DEAD, STDBY, copies, seats, view
from hypothesis import given, settings
from hypothesis import strategies as st
from view_histories import any_event

from understudy.core.errors import BrokenInvariant
from understudy.core.shape.layout import LayoutError, chained
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import chain_of
from understudy.core.view.controller import Controller
from understudy.core.view.events import (
    CopyCaughtUp,
    CopyMoveFailed,
    CopySuspected,
    MemberJoined,
    MembersLeft,
    MoveCopy,
    Publish,
)

# --- the first view --------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_the_first_view_waits_for_the_nodes_that_are_wanted_and_seats_everything(replicas: int) -> None:
    made = Controller(chain_of(f=1), replicas, nodes_wanted=replicas)
    for order, node in enumerate("abc"[: replicas - 1]):
        assert made.handle(MemberJoined(node, order)) == []
    done = made.handle(MemberJoined("abc"[replicas - 1], 9))
    assert done == [Publish(view(1, f=seats(1, *"abc"[:replicas])))]


def test_seats_are_given_in_joining_order_and_later_nodes_wait() -> None:
    made = Controller(chain_of(f=1), 2, nodes_wanted=2)
    made.handle(MemberJoined("late", 7))
    (first,) = made.handle(MemberJoined("early", 3))
    assert first == Publish(view(1, f=seats(1, "early", "late")))
    assert made.handle(MemberJoined("later", 8)) == []


def test_a_node_that_left_before_the_first_view_gets_no_seat() -> None:
    made = Controller(chain_of(f=1), 2, nodes_wanted=2)
    join(made, "a")
    assert made.handle(MembersLeft(("a",))) == []
    assert made.handle(MemberJoined("b", 2)) == []


def test_a_layout_of_ones_own_is_followed() -> None:
    layout = chained(SHAPE, ["d", "c", "b", "a"], 2)
    made = Controller(SHAPE, 2, 4, layout=layout)
    join(made, *"abcd")
    assert {copy: seat.node for copy, seat in now(made).seats.items()} == layout


def test_a_layout_that_does_not_fit_is_named_and_the_member_is_not_counted() -> None:
    made = Controller(chain_of(f=1), 2, 2, layout={Copy(F, 0): "a", Copy(F, 1): "x"})
    join(made, "a")
    for _ in range(2):
        with pytest.raises(LayoutError, match="f/0:1 is assigned to 'x', which is not a member"):
            made.handle(MemberJoined("b", 2))
        assert made.members == {"a": 0}
        assert made.view is None


# --- deaths ----------------------------------------------------------------------------------------------


def test_a_lost_node_costs_its_seats_in_one_view_and_the_lowest_level_recovers_first() -> None:
    made = controller("e")
    dead, standbys = views(made.handle(MembersLeft(("b",))))
    assert [c for c, s in dead.seats.items() if s.status is DEAD] == [
        high(0, 1),
        high(1, 0),
        low(0, 1),
        low(1, 0),
    ]
    assert [c for c, s in standbys.seats.items() if s.status is STDBY] == [low(0, 1), low(1, 0)]
    assert {standbys.seat(copy).node for copy in with_status(made, STDBY)} == {"e"}
    catch_up(made)
    assert with_status(made, STDBY) == [high(0, 1), high(1, 0)]
    catch_up(made)
    assert len(with_status(made, ACTIVE)) == 16


@pytest.mark.parametrize("replicas", [2, 3])
def test_without_a_free_node_the_others_take_the_seats_but_never_two_copies(replicas: int) -> None:
    made = controller(replicas=replicas)
    made.handle(MembersLeft(("b",)))
    all_catch_up(made)
    for each in now(made).partitions.values():
        nodes = [seat.node for seat in each.seats if seat.alive]
        assert len(nodes) == len(set(nodes)) == replicas


def test_of_three_replicas_two_may_die_and_their_seats_are_filled_one_after_the_other() -> None:
    made = single(3, "d", "e")
    made.handle(MembersLeft(("a",)))
    made.handle(MembersLeft(("b",)))
    assert [seat_of(made, copy) for copy in copies("f", 3)] == [("d", STDBY), ("b", DEAD), ("c", ACTIVE)]
    catch_up(made)
    assert [seat_of(made, copy) for copy in copies("f", 3)] == [("d", ACTIVE), ("e", STDBY), ("c", ACTIVE)]


def test_a_suspected_node_loses_in_one_view_all_seats_that_others_can_make_good() -> None:
    made = controller("e")
    dead, standbys = views(made.handle(CopySuspected(high(1, 0), 1, "a")))
    assert dead.copies_on("b") == []
    assert {copy.partition.name for copy in with_status(made, STDBY)} == {"low"}
    assert standbys.epoch == dead.epoch + 1


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_the_last_holder_of_the_state_is_not_buried_on_suspicion(replicas: int) -> None:
    made = single(replicas)
    for replica in range(1, replicas):
        made.handle(MembersLeft(("abc"[replica],)))
    before = now(made)
    assert made.handle(CopySuspected(Copy(F, 0), 1, "gateway")) == []
    assert now(made) == before
    assert seat_of(made, Copy(F, 0)) == ("a", ACTIVE)


def test_a_standby_does_not_make_the_last_holder_replaceable() -> None:
    made = single(2, "c")
    made.handle(CopySuspected(Copy(F, 1), 1, "gateway"))
    assert seat_of(made, Copy(F, 1)) == ("c", STDBY)
    assert made.handle(CopySuspected(Copy(F, 0), 1, "gateway")) == []


@pytest.mark.parametrize("off", [-1, 1])
def test_a_suspicion_of_another_epoch_is_not_acted_on(off: int) -> None:
    made = single(2, "c", "d")
    made.handle(CopySuspected(Copy(F, 1), 1, "gateway"))
    catch_up(made)
    epoch = now(made).seat(Copy(F, 1)).epoch
    assert made.handle(CopySuspected(Copy(F, 1), epoch + off, "gateway")) == []
    assert made.handle(CopySuspected(Copy(F, 1), 1, "gateway")) == []
    assert seat_of(made, Copy(F, 1)) == ("c", ACTIVE)


# --- standbys --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("holds_state", [False, True])
def test_a_standby_that_fails_is_followed_by_another_node(holds_state: bool) -> None:
    made = single(2, "c", "d")
    made.handle(MembersLeft(("b",)))
    first = now(made).seat(Copy(F, 1))
    made.handle(CopyMoveFailed(Copy(F, 1), first.epoch, "why", holds_state))
    assert seat_of(made, Copy(F, 1)) == ("d", STDBY)


def test_old_news_changes_nothing() -> None:
    made = controller("e", "f")
    made.handle(MembersLeft(("b",)))
    before = now(made)
    for copy in with_status(made, STDBY):
        epoch = before.seat(copy).epoch
        for other in (1, epoch - 1, epoch + 1):
            assert made.handle(CopyCaughtUp(copy, other)) == []
            assert made.handle(CopyMoveFailed(copy, other)) == []
    active = with_status(made, ACTIVE)[0]
    assert made.handle(CopyMoveFailed(active, before.seat(active).epoch)) == []
    assert made.handle(CopyCaughtUp(active, before.seat(active).epoch)) == []
    assert made.handle(CopySuspected(Copy(Partition("nothing")), 1, "x")) == []
    assert made.handle(CopySuspected(low(0, 7), 1, "x")) == []
    assert made.handle(MembersLeft(("stranger",))) == []
    assert now(made) == before


def test_before_the_first_view_reports_change_nothing() -> None:
    made = Controller(chain_of(f=1), 2, 2)
    for event in (CopyCaughtUp(Copy(F), 1), CopyMoveFailed(Copy(F), 1), CopySuspected(Copy(F), 1, "x")):
        assert made.handle(event) == []
    assert made.view is None


def test_a_suspected_node_gets_its_seat_back_only_if_there_is_no_other() -> None:
    made = single(2)
    made.handle(CopySuspected(Copy(F, 1), 1, "gateway"))
    again = now(made).seat(Copy(F, 1))
    assert (again.node, again.status) == ("b", STDBY)
    assert again.epoch > 1
    assert not now(made).holds(Copy(F, 1), "b", 1)
    made.handle(MemberJoined("c", 3))
    made.handle(CopySuspected(Copy(F, 1), again.epoch, "gateway"))
    assert now(made).seat(Copy(F, 1)).node == "c"


def test_the_node_with_the_fewest_copies_is_chosen() -> None:
    made = controller("e")
    made.handle(MembersLeft(("b",)))
    all_catch_up(made)
    assert max(now(made).load.values()) - min(now(made).load.values()) <= 1


def test_copies_that_recover_together_go_to_different_nodes() -> None:
    made = controller("e", "f")
    made.handle(MembersLeft(("a",)))
    assert [now(made).seat(copy).node for copy in with_status(made, STDBY)] == ["e", "f"]


def test_a_node_that_left_and_came_back_under_its_name_can_be_seated_again() -> None:
    made = controller()
    made.handle(MembersLeft(("b",)))
    all_catch_up(made)
    made.handle(MemberJoined("b", 9))
    made.handle(MembersLeft(("d",)))
    all_catch_up(made)
    assert now(made).copies_on("b")


def test_a_member_that_joins_again_without_having_left_keeps_its_place_in_the_order() -> None:
    made = single(2, "c", "d")
    made.handle(MemberJoined("c", 9))
    made.handle(MembersLeft(("b",)))
    assert seat_of(made, Copy(F, 1)) == ("c", STDBY)


def test_a_suspected_node_that_caught_up_is_chosen_like_any_other() -> None:
    made = Controller(chain_of(f=2), 2, nodes_wanted=2)
    join(made, "a", "b")
    moved = Copy(Partition("f", 1), 0)
    # No other node can take its seats, so b gets them back.
    made.handle(CopySuspected(moved, 1, "gateway"))
    all_catch_up(made)
    made.handle(MemberJoined("c", 2))
    made.handle(MoveCopy(moved, "c"))
    all_catch_up(made)
    made.handle(CopySuspected(moved, now(made).seat(moved).epoch, "gateway"))
    assert seat_of(made, moved) == ("b", STDBY), "c, the suspect, has fewer copies"


def test_a_suspected_node_is_the_last_choice_until_it_has_left_or_come_back() -> None:
    made = Controller(chain_of(one=1), 3, 3)
    for order, node in enumerate(("a", "b", "c", "d", "e"), 1):
        made.handle(MemberJoined(node, order))
    first, second = Copy(Partition("one"), 0), Copy(Partition("one"), 1)
    # Two of three replicas are suspected at once, and both are still members.
    made.handle(CopySuspected(first, 1, "gateway"))
    made.handle(CopySuspected(second, 1, "gateway"))
    assert now(made).seat(first).node == "d"
    made.handle(CopyCaughtUp(first, now(made).seat(first).epoch))
    # The first suspect joined before e, and has as few copies.
    assert now(made).seat(second).node == "e"


def test_a_suspected_node_that_was_spared_is_chosen_like_any_other() -> None:
    made = Controller(chain_of(f=2), 2, nodes_wanted=4)
    join(made, *"abcde")
    made.handle(MembersLeft(("b",)))
    # It holds the only active copy.
    assert made.handle(CopySuspected(Copy(Partition("f", 1), 1), 1, "gateway")) == []
    all_catch_up(made)
    made.handle(MembersLeft(("d",)))
    assert seat_of(made, Copy(Partition("f"), 1)) == ("c", STDBY), "e joined later, and has as many copies"


# --- a new leader ----------------------------------------------------------------------------------------


def test_a_new_leader_fills_no_seat_before_it_has_heard_of_every_node_of_the_view() -> None:
    dead = views(controller().handle(MembersLeft(("d",))))[0]
    made = Controller(SHAPE, 2, 4, dead)
    for order, node in enumerate(["e", "a", "b"]):
        assert made.handle(MemberJoined(node, order)) == []
    assert views(made.handle(MemberJoined("c", 9)))
    assert {now(made).seat(copy).node for copy in with_status(made, STDBY)} == {"e"}


def test_a_new_leader_buries_no_copy_before_it_has_seen_a_member_with_the_state() -> None:
    made = Controller(chain_of(f=1), 2, 2, now(single(2)))
    # The other copy's node may have died since the view was stored.
    assert made.handle(CopySuspected(Copy(F, 0), 1, "gateway")) == []
    assert views(made.handle(MembersLeft(("a",)))) == []
    (dead,) = views(made.handle(MemberJoined("b", 2)))
    assert dead.copies_on("a") == []


def test_a_new_leader_has_heard_of_a_node_that_left_too() -> None:
    dead = views(controller().handle(MembersLeft(("d",))))[0]
    made = Controller(SHAPE, 2, 4, dead)
    join(made, "e", "a", "b")
    made.handle(MembersLeft(("c",)))
    assert with_status(made, STDBY)


def test_a_new_leader_waits_for_nodes_that_only_a_wish_names() -> None:
    wished = view(3, f=seats(2, "a", "b DEAD"))
    wished = type(wished)(3, wished.partitions, frozenset({"w"}))
    made = Controller(chain_of(f=1), 2, 2, wished)
    join(made, "a", "c")
    assert with_status(made, STDBY) == []
    made.handle(MemberJoined("w", 9))
    assert seat_of(made, Copy(F, 1)) == ("c", STDBY)


def test_a_new_leader_goes_on_from_the_stored_view() -> None:
    made = controller("e")
    made.handle(MembersLeft(("b",)))
    made = successor(made)
    all_catch_up(made)
    assert len(with_status(made, ACTIVE)) == 16


def test_a_stored_view_of_another_flow_or_policy_is_refused() -> None:
    stored = now(controller())
    with pytest.raises(BrokenInvariant, match="other partitions"):
        Controller(chain_of(low=3, high=4), 2, 4, stored)
    with pytest.raises(BrokenInvariant, match=r"has \{2\} replicas, not 3"):
        Controller(SHAPE, 3, 4, stored)
    with pytest.raises(BrokenInvariant, match="at least one replica"):
        Controller(SHAPE, 0, 4)


# --- any sequence of events ------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_sequence_of_events_breaks_an_invariant(data: st.DataObject) -> None:
    replicas = data.draw(st.sampled_from([1, 2, 3]))
    made = Controller(chain_of(low=2, high=2), replicas, nodes_wanted=replicas)
    for order in range(data.draw(st.integers(1, 40))):
        before, members = made.view, dict(made.members)
        event = any_event(data.draw, made, order)
        published = views(made.handle(event))
        made.check()
        if not isinstance(event, MemberJoined | MembersLeft):
            assert made.members == members
        if not published:
            assert made.view is before
        for after in published:
            assert after.epoch == (before.epoch + 1 if before else 1), "epochs rise by one"
            waiting = [copy for copy, seat in after.seats.items() if seat.status is STDBY]
            assert len({copy.partition.name for copy in waiting}) <= 1, "one level catches up at a time"
            for copy in waiting:
                if after.seat(copy).epoch == after.epoch:
                    others = after.partitions[copy.partition]
                    assert other_active(others, copy.replica), "a standby was seated without a lender"
            assert before is None or before.lost is None or after.lost is not None, "a lost flow came back"
            before = after
        if made.view is not None and made.view.nodes_named <= made.members.keys():
            # A new leader knows only what was published and who is a member; it has nothing to add.
            made = successor(made)
            assert made.view == before


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_once_nothing_fails_any_more_every_seat_is_active_again(data: st.DataObject) -> None:
    replicas = data.draw(st.sampled_from([2, 3]))
    made = Controller(chain_of(low=2, high=1), replicas, nodes_wanted=replicas)
    join(made, *"abc"[:replicas])
    for order in range(10, 30):
        made.handle(any_event(data.draw, made, order))
    if now(made).lost is not None:
        return
    for order, node in enumerate([*now(made).nodes_named, "x", "y", "z"]):
        made.handle(MemberJoined(node, 50 + order))
    for _ in range(60):
        catch_up(made)
    assert with_status(made, ACTIVE) == list(now(made).seats)
