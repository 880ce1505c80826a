"""The view: which seatings there can be, and the fencing check."""

from __future__ import annotations

import copy
import pickle

import pytest
from core_kit import ACTIVE, DEAD, STDBY, copies, seat, seats, view

from understudy.core.errors import BrokenInvariant
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.view import Seat, Seats, View

F = Partition("f")


def test_only_the_living_occupant_with_its_seat_epoch_holds_a_seat() -> None:
    first, second, third = copies("f", 3)
    now = view(5, f=seats(5, "a DEAD", "c@3", "b@4 STDBY"))
    assert now.holds(second, "c", 3)
    assert now.holds(third, "b", 4), "a standby holds its seat"
    assert not now.holds(second, "c", 2), "an earlier epoch"
    assert not now.holds(second, "b", 3), "another node"
    assert not now.holds(first, "a", 1), "declared dead"
    assert not now.holds(Copy(F, 3), "a", 1), "no such replica"
    assert not now.holds(Copy(Partition("g")), "a", 1), "no such partition"


@pytest.mark.parametrize(
    ("each", "lost", "why"),
    [
        ((), None, "at least one seat"),
        (("a", "a"), None, "one node sits in two seats"),
        (("a", "b STDBY", "a"), None, "one node sits in two seats"),
        (("a", "b STDBY", "c STDBY"), None, "two standbys"),
        (("a@4", "b"), None, "newer than its view"),
        (("a DEAD",), None, "lost exactly when every seat is dead"),
        (("a DEAD", "b DEAD"), None, "lost exactly when every seat is dead"),
        (("a", "b DEAD"), "gone", "lost exactly when every seat is dead"),
    ],
)
def test_impossible_seatings_cannot_be_built(each: tuple[str, ...], lost: str | None, why: str) -> None:
    with pytest.raises(BrokenInvariant, match=why):
        seats(3, *each, lost=lost)


def test_a_seat_names_its_node_and_epochs_begin_at_1() -> None:
    for node, epoch in (("", 1), ("a", 0)):
        with pytest.raises(BrokenInvariant):
            Seat(node, epoch, ACTIVE)


def test_a_dead_node_may_sit_again_and_be_named_twice() -> None:
    assert seats(3, "a DEAD", "a@3 STDBY", "b").seats[1] == Seat("a", 3, STDBY)


@pytest.mark.parametrize(
    ("each", "whole"),
    [
        (("a",), True),
        (("a", "b"), True),
        (("a", "b STDBY"), False),
        (("a", "b DEAD", "c"), False),
    ],
)
def test_a_partition_is_whole_when_every_seat_is_active(each: tuple[str, ...], whole: bool) -> None:
    assert seats(1, *each).whole is whole


def test_a_view_is_not_older_than_its_parts_and_its_wishes_make_sense() -> None:
    parts = {F: seats(2, "a", "b")}
    with pytest.raises(BrokenInvariant, match="newer than the view"):
        View(1, parts)
    with pytest.raises(BrokenInvariant, match="no copy of this flow"):
        View(2, parts, wanted={Copy(Partition("g")): "c"})
    with pytest.raises(BrokenInvariant, match="which is to be empty"):
        View(2, parts, frozenset({"c"}), {Copy(F): "c"})


SHOWN = View(
    6,
    {
        Partition("g"): seats(6, "b", "c@6 STDBY", "d DEAD"),
        F: seats(1, "a", "b", "c"),
    },
    frozenset({"e"}),
    {Copy(F, 1): "d"},
)


def test_a_view_tells_who_lives_where_and_whose_coming_matters() -> None:
    assert dict(SHOWN.load) == {"a": 1, "b": 2, "c": 2}
    assert [str(each) for each in SHOWN.copies_on("c")] == ["f/0:2", "g/0:1"]
    assert SHOWN.copies_on("d") == []
    assert SHOWN.nodes_named == set("abcde")
    assert SHOWN.seat(Copy(Partition("g"), 1)) == seat("c@6 STDBY")
    assert list(SHOWN.seats) == [*copies("f", 3), *copies("g", 3)]


def test_a_view_is_lost_when_one_partition_is() -> None:
    assert SHOWN.lost is None
    lost = view(7, f=seats(1, "a"), g=seats(7, "b DEAD", lost="b left."))
    assert lost.lost == "g/0: b left."


def test_the_copy_that_had_better_move_is_one_without_state_else_one_on_the_fullest_node() -> None:
    assert SHOWN.copy_on_fuller_node(Partition("g")) == Copy(Partition("g"), 2), "the dead one"
    assert SHOWN.copy_on_fuller_node(F) == Copy(F, 2), "b and c have two copies each, a has one"
    standby = view(3, f=seats(3, "a", "b@3 STDBY"))
    assert standby.copy_on_fuller_node(F) == Copy(F, 1)


def test_equal_views_read_alike_whatever_order_they_were_made_in() -> None:
    turned = View(6, dict(reversed(SHOWN.partitions.items())), SHOWN.drained, dict(SHOWN.wanted))
    assert turned == SHOWN
    assert hash(turned) == hash(SHOWN)
    assert turned.to_json() == SHOWN.to_json()


def test_a_view_survives_copying_and_pickling_and_cannot_be_changed_in_place() -> None:
    assert copy.deepcopy(SHOWN) == pickle.loads(pickle.dumps(SHOWN)) == SHOWN
    with pytest.raises(TypeError):
        SHOWN.partitions[F] = seats(6, "x")  # type: ignore[index]


def test_a_seat_is_replaced_in_a_new_value_of_a_later_epoch() -> None:
    before = seats(1, "a", "b", "c")
    after = before.with_seat(1, seat("b DEAD"), 2)
    assert after == seats(2, "a", "b DEAD", "c")
    assert before == seats(1, "a", "b", "c")
    gone = Seats(2, (Seat("a", 1, ACTIVE),)).with_seat(0, Seat("a", 1, DEAD), 3, "a left")
    assert gone.lost == "a left"
