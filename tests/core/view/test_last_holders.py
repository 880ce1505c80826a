"""The last holder of a state leaves: it is given time, and no other node is given up for its sake."""

from __future__ import annotations

import pytest
from controller_kit import (
    F,
    all_catch_up,
    catch_up,
    controller,
    high,
    low,
    now,
    other_active,
    seat_of,
    single,
    views,
)
from core_kit import ACTIVE, DEAD, STDBY, copies

from understudy.core.shape.partition import Copy
from understudy.core.timers import SetTimer, TimerFired
from understudy.core.view.events import (
    ControllerEvent,
    CopyCaughtUp,
    CopyMoveFailed,
    CopySuspected,
    MemberJoined,
    MembersLeft,
    Publish,
)
from understudy.core.view.view import Seat


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_the_last_holder_that_leaves_is_given_time_to_come_back(replicas: int) -> None:
    made = single(replicas)
    for replica in range(1, replicas):
        made.handle(MembersLeft(("abc"[replica],)))
    assert made.handle(MembersLeft(("a",))) == [SetTimer(("missed", "a"), 10_000)]
    assert seat_of(made, Copy(F, 0)) == ("a", ACTIVE)
    made.handle(MemberJoined("a", 9))
    assert made.handle(TimerFired(("missed", "a"))) == []
    assert seat_of(made, Copy(F, 0)) == ("a", ACTIVE)


def test_nobody_is_seated_to_learn_from_a_last_holder_that_is_missed() -> None:
    made = single(2)
    made.handle(MembersLeft(("b",)))
    made.handle(MembersLeft(("a",)))
    assert views(made.handle(MemberJoined("c", 9))) == []
    assert seat_of(made, Copy(F, 1)) == ("b", DEAD)
    made.handle(MemberJoined("a", 10))
    assert seat_of(made, Copy(F, 1)) == ("c", STDBY)


def test_a_last_holder_that_does_not_come_back_is_buried_and_the_flow_is_lost_for_good() -> None:
    made = single(1)
    made.handle(MembersLeft(("a",)))
    (lost,) = views(made.handle(TimerFired(("missed", "a"))))
    assert lost.lost == (
        "f/0: No copy holds the state any more: f/0:0 on a left the cluster and did not come back."
    )
    assert made.handle(TimerFired(("missed", "a"))) == []
    for event in (MemberJoined("a", 9), MemberJoined("b", 10), CopySuspected(Copy(F), 1, "x")):
        assert made.handle(event) == []


def test_of_a_node_that_leaves_only_the_last_copies_are_spared() -> None:
    made = controller()
    made.handle(CopySuspected(high(1, 0), 1, "x"))
    all_catch_up(made)
    made.handle(CopySuspected(low(2, 1), now(made).seat(low(2, 1)).epoch, "x"))
    spared = [
        c for c in now(made).copies_on("c") if not other_active(now(made).partitions[c.partition], c.replica)
    ]
    assert spared
    done = made.handle(MembersLeft(("c",)))
    assert done[0] == SetTimer(("missed", "c"), 10_000)
    assert set(now(made).copies_on("c")) == set(spared)
    assert now(made).lost is None


def test_a_standby_outlives_the_last_active_and_can_become_active() -> None:
    made = single(2, "c")
    made.handle(CopySuspected(Copy(F, 1), 1, "gateway"))
    standby = now(made).seat(Copy(F, 1))
    made.handle(MembersLeft(("a",)))
    made.handle(TimerFired(("missed", "a")))
    assert seat_of(made, Copy(F, 0)) == ("a", DEAD)
    assert seat_of(made, Copy(F, 1)) == ("c", STDBY)
    assert now(made).lost is None
    made.handle(CopyCaughtUp(Copy(F, 1), standby.epoch))
    assert seat_of(made, Copy(F, 1)) == ("c", ACTIVE)
    assert seat_of(made, Copy(F, 0)) == ("b", STDBY), "who was only suspected may sit again"


def test_a_standby_without_any_active_that_cannot_catch_up_means_lost() -> None:
    made = single(2, "c")
    made.handle(CopySuspected(Copy(F, 1), 1, "gateway"))
    made.handle(MembersLeft(("a",)))
    made.handle(TimerFired(("missed", "a")))
    made.handle(CopyMoveFailed(Copy(F, 1), now(made).seat(Copy(F, 1)).epoch, "the disk is full"))
    assert now(made).lost is not None
    assert "could not catch up: the disk is full" in str(now(made).lost)


def test_a_standby_without_any_active_that_holds_the_state_and_is_slow_is_spared() -> None:
    made = single(2, "c")
    made.handle(CopySuspected(Copy(F, 1), 1, "gateway"))
    epoch = now(made).seat(Copy(F, 1)).epoch
    made.handle(MembersLeft(("a",)))
    made.handle(TimerFired(("missed", "a")))
    assert made.handle(CopyMoveFailed(Copy(F, 1), epoch, "slow", holds_state=True)) == []
    made.handle(CopyCaughtUp(Copy(F, 1), epoch))
    assert seat_of(made, Copy(F, 1)) == ("c", ACTIVE)


def test_a_standby_whose_node_leaves_is_given_time_if_no_copy_is_active() -> None:
    """It may have the state already, and then it alone has it."""
    made = single(2, "c")
    made.handle(CopySuspected(Copy(F, 1), 1, "gateway"))
    made.handle(MembersLeft(("a",)))
    made.handle(TimerFired(("missed", "a")))
    made.handle(MembersLeft(("c",)))
    assert now(made).lost is None
    made.handle(TimerFired(("missed", "c")))
    assert now(made).lost is not None


@pytest.mark.parametrize(
    "doubt",
    [MembersLeft(("c",)), CopySuspected(Copy(F, 1), 3, "gateway")],
    ids=["it left", "it is suspected"],
)
def test_a_copy_in_its_grace_makes_no_standby_replaceable(doubt: ControllerEvent) -> None:
    made = single(2, "c")
    made.handle(MembersLeft(("b",)))
    made.handle(MembersLeft(("a",)))
    assert seat_of(made, Copy(F, 1)) == ("c", STDBY)
    made.handle(doubt)
    assert now(made).seat(Copy(F, 1)) == Seat("c", 3, STDBY)


@pytest.mark.parametrize("nodes", [("a", "b"), ("b", "a")])
def test_of_nodes_that_are_missed_together_none_is_given_up_for_the_sake_of_another(
    nodes: tuple[str, ...],
) -> None:
    made = single(2, "c")
    assert set(made.handle(MembersLeft(nodes))) == {SetTimer(("missed", each), 10_000) for each in nodes}
    assert seat_of(made, Copy(F, 0)) == ("a", ACTIVE)
    assert seat_of(made, Copy(F, 1)) == ("b", ACTIVE)
    made.handle(MemberJoined("a", 9))
    assert seat_of(made, Copy(F, 0)) == ("a", ACTIVE)
    assert seat_of(made, Copy(F, 1)) == ("c", STDBY), "the other one is not waited for any longer"
    assert made.handle(TimerFired(("missed", "b"))) == []
    assert now(made).lost is None


def test_a_node_that_comes_back_after_it_was_given_up_ends_no_grace_of_another() -> None:
    made = single(3, "d")
    made.handle(MembersLeft(("c",)))
    made.handle(MembersLeft(("a", "b")))
    made.handle(TimerFired(("missed", "b")))
    catch_up(made)
    made.handle(MemberJoined("b", 9))
    assert [seat_of(made, copy) for copy in copies("f", 3)] == [("a", ACTIVE), ("b", STDBY), ("d", ACTIVE)]


def test_nodes_that_are_missed_together_die_in_one_view_where_a_copy_lives_on() -> None:
    made = single(3, "d", "e")
    (died, *_) = (each for each in made.handle(MembersLeft(("a", "b"))) if isinstance(each, Publish))
    assert [seat.status for seat in died.view.partitions[F].seats] == [DEAD, DEAD, ACTIVE]
