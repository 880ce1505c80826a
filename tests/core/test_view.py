"""The view: its fencing check, its written form, and the controller messages that follow from a change."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.view import (
    BURIED_MAX,
    Activated,
    Avail,
    Fail,
    Seat,
    Seated,
    Slot,
    Status,
    View,
    changes,
)

PRIM, SEC = Slot.PRIM, Slot.SEC
ACTIVE, DEAD, STDBY = Status.ACTIVE, Status.DEAD, Status.STDBY


def view(
    epoch: int,
    prim: tuple[str, int, Status],
    sec: tuple[str, int, Status] | None = None,
    lost: str | None = None,
    buried: tuple[str, ...] = (),
) -> View:
    seats = {PRIM: Seat(*prim)} | ({SEC: Seat(*sec)} if sec else {})
    return View(epoch, seats, lost, buried)


BOTH = view(1, ("a", 1, ACTIVE), ("b", 1, ACTIVE))


def test_each_slot_knows_the_other() -> None:
    assert PRIM.other is SEC
    assert SEC.other is PRIM


def test_only_the_living_occupant_with_its_seat_epoch_holds_a_seat() -> None:
    now = view(5, ("a", 1, DEAD), ("c", 3, ACTIVE))
    assert now.holds(SEC, "c", 3)
    assert not now.holds(SEC, "c", 2)
    assert not now.holds(SEC, "b", 3)
    assert not now.holds(PRIM, "c", 3)
    assert not now.holds(PRIM, "a", 1)
    assert not view(1, ("a", 1, ACTIVE)).holds(SEC, "a", 1)


def test_a_standby_holds_its_seat() -> None:
    assert view(3, ("a", 1, ACTIVE), ("c", 3, STDBY)).holds(SEC, "c", 3)


def test_a_name_is_dead_on_its_seat_and_after_it_was_buried() -> None:
    now = view(5, ("a", 1, DEAD), ("c", 3, ACTIVE), buried=("b",))
    assert [now.declared_dead(n) for n in ("a", "b", "c", "d")] == [True, True, False, False]
    assert [now.slot_of(n) for n in ("a", "b", "c", "d")] == [None, None, SEC, None]


@pytest.mark.parametrize(
    "one",
    [
        BOTH,
        view(1, ("a", 1, ACTIVE)),
        view(7, ("c", 5, STDBY), ("b", 1, ACTIVE), buried=("a", "ä")),
        view(2, ("a", 1, DEAD), lost="a left"),
    ],
)
def test_a_view_survives_writing_copying_and_pickling(one: View) -> None:
    assert View.from_json(one.to_json()) == one
    assert View.from_json(one.to_json().encode()) == one
    assert copy.deepcopy(one) == one
    assert pickle.loads(pickle.dumps(one)) == one
    assert hash(View.from_json(one.to_json())) == hash(one)


def test_nobody_can_change_a_view_in_place() -> None:
    with pytest.raises(TypeError):
        BOTH.seats[PRIM] = Seat("x", 1, ACTIVE)  # type: ignore[index]


@pytest.mark.parametrize(
    "damage",
    [
        {"epoch": "1"},
        {"epoch": True},
        {"epoch": 0},
        {"seats": {}},
        {"seats": []},
        {"seats": {"PRIM": {"node": "a", "epoch": 1}}},
        {"seats": {"PRIM": {"node": "a", "epoch": 1, "status": "WELL"}}},
        {"seats": {"THIRD": {"node": "a", "epoch": 1, "status": "ACTIVE"}}},
        {"seats": {"PRIM": {"node": "a", "epoch": 9, "status": "ACTIVE"}}},
        {"lost": "although all is well"},
        {"lost": 3},
        {"buried": ["a"]},
        {"buried": "b"},
        {"more": 1},
    ],
)
def test_a_damaged_view_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises(PeerError, match="not a view"):
        View.from_json(json.dumps(json.loads(BOTH.to_json()) | damage))


@pytest.mark.parametrize("text", ["", "null", "[]", "{", b"\xff"])
def test_what_is_no_view_at_all_is_refused(text: str | bytes) -> None:
    with pytest.raises(PeerError, match="not a view"):
        View.from_json(text)


@pytest.mark.parametrize(
    ("seats", "lost"),
    [
        ({PRIM: Seat("a", 1, ACTIVE), SEC: Seat("a", 1, ACTIVE)}, None),
        ({SEC: Seat("a", 1, ACTIVE)}, None),
        ({PRIM: Seat("a", 1, Status.PAUSE)}, None),
        ({PRIM: Seat("a", 1, STDBY), SEC: Seat("b", 1, STDBY)}, None),
        ({PRIM: Seat("a", 1, DEAD), SEC: Seat("b", 1, DEAD)}, None),
    ],
)
def test_impossible_seatings_cannot_be_built(seats: dict[Slot, Seat], lost: str | None) -> None:
    with pytest.raises(BrokenInvariant):
        View(3, seats, lost)


def test_the_memory_of_dead_names_is_bounded() -> None:
    with pytest.raises(BrokenInvariant):
        view(1, ("a", 1, ACTIVE), buried=tuple(f"d{i}" for i in range(BURIED_MAX + 1)))


def test_a_newcomer_meets_active_slots_as_seated() -> None:
    assert changes(None, BOTH) == [Seated(PRIM), Seated(SEC)]


def test_a_newcomer_meets_a_dead_slot_as_failed_and_a_standby_as_failed_and_available() -> None:
    assert changes(None, view(2, ("a", 1, DEAD), ("b", 1, ACTIVE))) == [Seated(SEC), Fail(PRIM)]
    assert changes(None, view(3, ("c", 3, STDBY), ("b", 1, ACTIVE))) == [Seated(SEC), Fail(PRIM), Avail(PRIM)]


def test_a_newcomer_never_meets_two_dead_slots_while_a_standby_waits() -> None:
    meets = [Fail(SEC), Avail(SEC), Fail(PRIM)]
    assert changes(None, view(4, ("a", 1, DEAD), ("c", 3, STDBY))) == meets


FAILED = view(2, ("a", 1, DEAD), ("b", 1, ACTIVE))
WAITING = view(3, ("c", 3, STDBY), ("b", 1, ACTIVE), buried=("a",))
AGAIN = view(4, ("c", 3, ACTIVE), ("b", 1, ACTIVE), buried=("a",))


def test_one_step_gives_one_message() -> None:
    assert changes(BOTH, FAILED) == [Fail(PRIM)]
    assert changes(FAILED, WAITING) == [Avail(PRIM)]
    assert changes(WAITING, AGAIN) == [Activated(PRIM)]
    assert changes(WAITING, view(4, ("c", 3, DEAD), ("b", 1, ACTIVE))) == [Fail(PRIM)]
    assert changes(AGAIN, AGAIN) == []


def test_skipped_views_give_all_their_messages_in_order() -> None:
    assert changes(BOTH, WAITING) == [Fail(PRIM), Avail(PRIM)]
    assert changes(BOTH, AGAIN) == [Fail(PRIM), Avail(PRIM), Activated(PRIM)]
    assert changes(FAILED, AGAIN) == [Avail(PRIM), Activated(PRIM)]


def test_a_standby_that_came_and_died_unseen_leaves_no_message() -> None:
    assert changes(FAILED, view(4, ("c", 3, DEAD), ("b", 1, ACTIVE))) == []
    assert changes(BOTH, view(4, ("c", 3, DEAD), ("b", 1, ACTIVE))) == [Fail(PRIM)]


def test_the_successor_of_an_unseen_standby_is_announced_once() -> None:
    assert changes(WAITING, view(5, ("d", 5, STDBY), ("b", 1, ACTIVE))) == [Fail(PRIM), Avail(PRIM)]


def test_the_slot_seated_earlier_is_handled_first() -> None:
    later = view(6, ("c", 3, ACTIVE), ("d", 6, STDBY))
    expected = [Fail(PRIM), Avail(PRIM), Activated(PRIM), Fail(SEC), Avail(SEC)]
    assert changes(BOTH, later) == expected
    mirrored = view(6, ("d", 6, STDBY), ("c", 3, ACTIVE))
    assert changes(BOTH, mirrored) == [Fail(SEC), Avail(SEC), Activated(SEC), Fail(PRIM), Avail(PRIM)]


def test_a_death_without_successor_comes_after_the_other_slots_arrival() -> None:
    assert changes(BOTH, view(5, ("a", 1, DEAD), ("c", 3, ACTIVE))) == [
        Fail(SEC),
        Avail(SEC),
        Activated(SEC),
        Fail(PRIM),
    ]
    before = view(3, ("a", 1, ACTIVE), ("c", 3, STDBY))
    assert changes(before, view(5, ("a", 1, DEAD), ("c", 3, ACTIVE))) == [Activated(SEC), Fail(PRIM)]


def test_a_view_with_one_slot_changes_like_the_others() -> None:
    alone = view(1, ("a", 1, ACTIVE))
    assert changes(None, alone) == [Seated(PRIM)]
    assert changes(alone, view(2, ("a", 1, DEAD), lost="a left")) == [Fail(PRIM)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (FAILED, BOTH),
        (BOTH, view(1, ("a", 1, ACTIVE), ("x", 1, ACTIVE))),
        (BOTH, view(2, ("x", 1, ACTIVE), ("b", 1, ACTIVE))),
        (FAILED, view(3, ("a", 1, ACTIVE), ("b", 1, ACTIVE))),
        (BOTH, view(2, ("a", 1, STDBY), ("b", 1, ACTIVE))),
        (AGAIN, view(5, ("a", 1, ACTIVE), ("b", 1, ACTIVE))),
        (BOTH, view(2, ("a", 1, ACTIVE))),
    ],
)
def test_views_that_cannot_follow_each_other_are_our_bug(old: View, new: View) -> None:
    with pytest.raises(BrokenInvariant):
        changes(old, new)
