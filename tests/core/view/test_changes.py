"""What a change of views means to a participant, also to one that slept through some of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from core_kit import ACTIVE, DEAD, all_active, numbers, run, seats
from hypothesis import given, settings
from hypothesis import strategies as st
from view_histories import view_histories

from understudy.core.bucket import NOTHING
from understudy.core.edge.inlet import Inlet
from understudy.core.edge.messages import Ack, Attached, Detached, From, Put
from understudy.core.edge.outlet import Outlet
from understudy.core.errors import BrokenInvariant
from understudy.core.shape.partition import Partition
from understudy.core.view.changes import Activated, Avail, Fail, changes
from understudy.core.view.view import Seats, View

BOTH = seats(1, "a", "b")
FAILED = seats(2, "a DEAD", "b")
WAITING = seats(3, "c@3 STDBY", "b")
AGAIN = seats(4, "c@3", "b")


def test_one_step_gives_one_message() -> None:
    assert changes(BOTH, FAILED) == [Fail(0)]
    assert changes(FAILED, WAITING) == [Avail(0)]
    assert changes(WAITING, AGAIN) == [Activated(0)]
    assert changes(WAITING, seats(4, "c@3 DEAD", "b")) == [Fail(0)]
    assert changes(AGAIN, AGAIN) == []


def test_skipped_views_give_all_their_messages_in_order() -> None:
    assert changes(BOTH, WAITING) == [Fail(0), Avail(0)]
    assert changes(BOTH, AGAIN) == [Fail(0), Avail(0), Activated(0)]
    assert changes(FAILED, AGAIN) == [Avail(0), Activated(0)]


def test_a_standby_that_came_and_died_unseen_leaves_no_message() -> None:
    assert changes(FAILED, seats(4, "c@3 DEAD", "b")) == []
    assert changes(BOTH, seats(4, "c@3 DEAD", "b")) == [Fail(0)]


def test_the_successor_of_a_standby_is_announced_after_its_death() -> None:
    assert changes(WAITING, seats(5, "d@5 STDBY", "b")) == [Fail(0), Avail(0)]


def test_a_single_replica_that_dies_has_failed() -> None:
    assert changes(seats(1, "a"), seats(2, "a DEAD", lost="a left")) == [Fail(0)]


def test_the_seat_taken_earlier_is_handled_first() -> None:
    expected = [Fail(0), Avail(0), Activated(0), Fail(1), Avail(1)]
    assert changes(BOTH, seats(6, "c@3", "d@6 STDBY")) == expected
    expected = [Fail(1), Avail(1), Activated(1), Fail(0), Avail(0)]
    assert changes(BOTH, seats(6, "d@6 STDBY", "c@3")) == expected
    three = [Fail(2), Avail(2), Activated(2), Fail(0), Avail(0), Activated(0), Fail(1), Avail(1)]
    assert changes(seats(1, "a", "b", "c"), seats(9, "e@5", "f@8 STDBY", "d@3")) == three


def test_a_death_without_successor_comes_after_every_arrival() -> None:
    arrived = [Fail(1), Avail(1), Activated(1)]
    assert changes(BOTH, seats(5, "a DEAD", "c@3")) == [*arrived, Fail(0)]
    assert changes(seats(3, "a", "c@3 STDBY"), seats(5, "a DEAD", "c@3")) == [Activated(1), Fail(0)]
    old, new = seats(1, "a", "b", "c"), seats(7, "a DEAD", "b", "d@3 STDBY")
    assert changes(old, new) == [Fail(2), Avail(2), Fail(0)]


def test_a_death_that_was_followed_by_a_seating_comes_before_later_arrivals() -> None:
    """The successor came and died unseen; what came after its seating had no state of its predecessor."""
    old, new = seats(1, "a", "b", "c"), seats(7, "x@3 DEAD", "b", "d@6 STDBY")
    assert changes(old, new) == [Fail(0), Fail(2), Avail(2)]


def test_what_the_standby_of_a_dead_lender_needs_is_kept_although_the_others_have_it() -> None:
    outlet = Outlet("outlet", all_active(3))
    for replica, through in enumerate((10, 20, 20)):
        outlet.handle(Attached(replica))
        outlet.handle(From(replica, Ack(through)))
    outlet.handle(Put(run(10, 15, 20, 25)))
    # Replica 2 died, its standby took the state of replica 0, which holds 10, and then that died too.
    for change in changes(seats(1, "a", "b", "c"), seats(4, "a DEAD", "b", "d@3 STDBY")):
        outlet.handle(change)
    assert numbers(outlet.buffer) == [15, 20, 25]
    outlet.handle(Attached(2, 10))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (FAILED, BOTH, "a view never goes back"),
        (BOTH, seats(1, "a", "x"), "two views with epoch 1"),
        (BOTH, seats(2, "x", "b"), "changed from a to x in one seat"),
        (FAILED, seats(3, "a", "b"), "went from DEAD to ACTIVE"),
        (BOTH, seats(2, "a STDBY", "b"), "went from ACTIVE to STDBY"),
        (AGAIN, seats(5, "a", "b"), "went back from seat 3 to 1"),
        (BOTH, seats(2, "a"), "the replicas of a flow never change"),
    ],
)
def test_views_that_cannot_follow_each_other_are_our_bug(old: Seats, new: Seats, why: str) -> None:
    with pytest.raises(BrokenInvariant, match=why):
        changes(old, new)


# --- any sequence of views, any of them skipped ----------------------------------------------------------

F = Partition("f")


class Participant:
    """An outlet and an inlet that attach to every copy that is not dead, as soon as they see a view."""

    def __init__(self, first: Seats) -> None:
        self.seen = first
        statuses = {replica: seat.status for replica, seat in enumerate(first.seats)}
        self.ends = Outlet("outlet", statuses), Inlet("inlet", statuses, own=0)
        self._attach()

    def see(self, new: Seats) -> None:
        for change in changes(self.seen, new):
            for end in self.ends:
                end.handle(change)
                end.check()
        self.seen = new
        self._attach()

    def _attach(self) -> None:
        for end in self.ends:
            for replica, status in end.status.items():
                if status is not DEAD and replica not in end.attached:
                    end.handle(Attached(replica, NOTHING))

    def state(self) -> object:
        outlet, inlet = self.ends
        for replica in sorted(inlet.attached):
            # Which copy is asked depends on when the others went: begin once more from the same.
            inlet.handle(Detached(replica))
        return outlet.status, inlet.status, outlet.attached, outlet.live, inlet.sender


@settings(max_examples=200, deadline=None)
@given(view_histories(), st.data())
def test_a_participant_that_skips_views_ends_where_one_that_saw_them_all_does(
    history: list[View], data: st.DataObject
) -> None:
    every = [each.partitions[F] for each in history]
    some = [each for each in every[1:-1] if data.draw(st.booleans())]
    saw_all, skipped = Participant(every[0]), Participant(every[0])
    for each in every[1:]:
        saw_all.see(each)
    for each in [*some, every[-1]]:
        skipped.see(each)
    assert skipped.state() == saw_all.state()
    assert skipped.ends[0].status == {r: seat.status for r, seat in enumerate(every[-1].seats)}


@settings(max_examples=200, deadline=None)
@given(view_histories(), st.data())
def test_no_possible_lender_fails_before_the_standby_that_may_have_its_state_arrives(
    history: list[View], data: st.DataObject
) -> None:
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(history) - 1)] * 2)))
    old, new = history[first].partitions[F], history[last].partitions[F]
    found = changes(old, new)
    by_epoch = {each.epoch: each.partitions[F] for each in history}
    for at, change in enumerate(found):
        if not isinstance(change, Avail):
            continue
        seated = by_epoch[new.seats[change.replica].epoch].seats
        lenders = [r for r, s in enumerate(seated) if s.status is ACTIVE and s == old.seats[r]]
        assert not any(Fail(lender) in found[:at] for lender in lenders)


@settings(max_examples=100, deadline=None)
@given(view_histories())
def test_one_decision_is_at_most_one_message_about_a_partition(history: list[View]) -> None:
    for old, new in pairwise(each.partitions[F] for each in history):
        assert len(changes(old, new)) <= 1


# --- backups ---------------------------------------------------------------------------------------------

HOLDS = seats(4, "c@3 BACKUP", "b")


def test_a_standby_that_becomes_a_backup_is_nothing_to_its_neighbours() -> None:
    assert changes(WAITING, HOLDS) == []
    assert changes(FAILED, HOLDS) == [Avail(0)]
    assert changes(BOTH, HOLDS) == [Fail(0), Avail(0)]


def test_a_backup_that_takes_over_is_called_active() -> None:
    assert changes(HOLDS, seats(6, "c@3", "b DEAD")) == [Activated(0), Fail(1)]
    assert changes(WAITING, seats(6, "c@3", "b DEAD")) == [Activated(0), Fail(1)]
    assert changes(HOLDS, seats(7, "c@3", "b@7 STDBY")) == [Activated(0), Fail(1), Avail(1)]


def test_a_backup_that_dies_has_failed() -> None:
    assert changes(HOLDS, seats(5, "c@3 DEAD", "b")) == [Fail(0)]


@pytest.mark.parametrize("before", ["ACTIVE", "DEAD"])
def test_no_seat_becomes_a_backups_but_a_standbys(before: str) -> None:
    with pytest.raises(BrokenInvariant, match=f"went from {before} to BACKUP"):
        changes(seats(3, f"c@3 {before}", "b"), seats(4, "c@3 BACKUP", "b"))


def test_an_active_seat_never_becomes_a_backups_again_without_a_new_one() -> None:
    with pytest.raises(BrokenInvariant, match="went from BACKUP to STDBY"):
        changes(HOLDS, seats(5, "c@3 STDBY", "b"))
