"""The controller machine: exact decisions, then the invariants over random lives of a cluster."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.core.controller import (
    Controller,
    Event,
    FoldedIn,
    MemberJoined,
    MemberLeft,
    MoveFailed,
    Publish,
    Suspected,
)
from understudy.core.errors import BrokenInvariant, require
from understudy.core.view import BURIED_MAX, Seat, Slot, Status, View, changes

PRIM, SEC = Slot.PRIM, Slot.SEC
ACTIVE, DEAD, STDBY = Status.ACTIVE, Status.DEAD, Status.STDBY


def view(epoch: int, prim: Seat, sec: Seat | None = None, *, buried: Sequence[str] = ()) -> View:
    return View(epoch, {PRIM: prim} | ({SEC: sec} if sec else {}), None, tuple(buried))


def running(*spares: str) -> Controller:
    """A controller with a in PRIM and b in SEC, both ACTIVE since epoch 1, and spare members."""
    controller = Controller()
    for order, node in enumerate(("a", "b", *spares)):
        controller.handle(MemberJoined(node, order))
    return controller


def test_the_first_view_waits_until_every_slot_can_be_filled() -> None:
    controller = Controller()
    assert controller.handle(MemberJoined("a", 1)) == []
    assert controller.handle(MemberJoined("b", 2)) == [
        Publish(view(1, Seat("a", 1, ACTIVE), Seat("b", 1, ACTIVE)))
    ]
    assert controller.handle(MemberJoined("c", 3)) == []


def test_a_policy_with_one_slot_begins_with_one_member() -> None:
    assert Controller([PRIM]).handle(MemberJoined("a", 1)) == [Publish(view(1, Seat("a", 1, ACTIVE)))]


def test_seats_are_given_in_joining_order() -> None:
    controller = Controller()
    controller.handle(MemberJoined("late", 7))
    [first] = controller.handle(MemberJoined("early", 3))
    assert [seat.node for seat in first.view.seats.values()] == ["early", "late"]


def test_who_left_before_the_first_view_gets_no_seat() -> None:
    controller = Controller()
    controller.handle(MemberJoined("a", 1))
    assert controller.handle(MemberLeft("a")) == []
    assert controller.handle(MemberJoined("b", 2)) == []


def test_a_member_that_leaves_its_seat_is_dead() -> None:
    assert running().handle(MemberLeft("a")) == [Publish(view(2, Seat("a", 1, DEAD), Seat("b", 1, ACTIVE)))]


def test_a_free_member_takes_a_dead_slot_at_once_as_a_standby() -> None:
    assert running("c", "d").handle(MemberLeft("a")) == [
        Publish(view(2, Seat("a", 1, DEAD), Seat("b", 1, ACTIVE))),
        Publish(view(3, Seat("c", 3, STDBY), Seat("b", 1, ACTIVE), buried="a")),
    ]


def test_a_standby_that_joins_later_takes_the_dead_slot() -> None:
    controller = running()
    controller.handle(MemberLeft("b"))
    assert controller.handle(MemberJoined("c", 5)) == [
        Publish(view(3, Seat("a", 1, ACTIVE), Seat("c", 3, STDBY), buried="b"))
    ]


def test_a_suspicion_is_as_good_as_a_death() -> None:
    assert running().handle(Suspected("b", 1, by="gateway")) == [
        Publish(view(2, Seat("a", 1, ACTIVE), Seat("b", 1, DEAD)))
    ]


def test_the_only_state_is_not_buried_on_a_suspicion() -> None:
    alone = running()
    alone.handle(MemberLeft("a"))
    assert alone.handle(Suspected("b", 1, by="gateway")) == []
    with_standby = running("c")
    with_standby.handle(MemberLeft("a"))
    assert with_standby.handle(Suspected("b", 1, by="gateway")) == []
    with_standby.handle(MemberLeft("b"))
    assert with_standby.handle(Suspected("c", 3, by="gateway")) == []


def test_folding_in_makes_the_standby_active() -> None:
    controller = running("c")
    controller.handle(MemberLeft("a"))
    assert controller.handle(FoldedIn(PRIM, 3)) == [
        Publish(view(4, Seat("c", 3, ACTIVE), Seat("b", 1, ACTIVE), buried="a"))
    ]


def test_standbys_are_tried_one_after_the_other() -> None:
    controller = running("c", "d", "e", "f")
    controller.handle(MemberLeft("a"))
    seated = [controller.handle(event)[-1].view.seats[PRIM] for event in (
        MemberLeft("c"), Suspected("d", 5, by="gateway"), MoveFailed(PRIM, 7)
    )]  # fmt: skip
    assert seated == [Seat("d", 5, STDBY), Seat("e", 7, STDBY), Seat("f", 9, STDBY)]
    assert controller.view is not None
    assert controller.view.buried == ("a", "c", "d", "e")


OLD_NEWS = [
    Suspected("a", 1, by="gateway"),
    Suspected("c", 1, by="gateway"),
    Suspected("c", 2, by="gateway"),
    Suspected("stranger", 3, by="gateway"),
    FoldedIn(PRIM, 1),
    FoldedIn(PRIM, 4),
    FoldedIn(SEC, 1),
    MoveFailed(PRIM, 2),
    MoveFailed(SEC, 1),
    MemberLeft("a"),
    MemberLeft("stranger"),
    MemberJoined("a", 99),
    MemberJoined("b", 99),
]


@pytest.mark.parametrize("event", OLD_NEWS, ids=repr)
def test_old_news_changes_nothing(event: Event) -> None:
    controller = running("c")
    controller.handle(MemberLeft("a"))
    before = controller.view
    assert controller.handle(event) == []
    assert controller.view is before


@pytest.mark.parametrize(
    "event", [Suspected("a", 1, "g"), FoldedIn(PRIM, 1), MoveFailed(SEC, 1), MemberLeft("a")]
)
def test_before_the_first_view_reports_change_nothing(event: Event) -> None:
    controller = Controller()
    assert controller.handle(event) == []
    assert controller.view is None


def test_a_dead_name_is_not_seated_again_but_its_new_incarnation_is() -> None:
    controller = running()
    controller.handle(MemberLeft("a"))
    assert controller.handle(MemberJoined("a", 9)) == []
    assert controller.handle(MemberJoined("a.2", 10)) == [
        Publish(view(3, Seat("a.2", 3, STDBY), Seat("b", 1, ACTIVE), buried="a"))
    ]


def test_a_standby_outlives_the_last_active_and_can_become_active() -> None:
    controller = running("c", "d")
    controller.handle(MemberLeft("a"))
    assert controller.handle(MemberLeft("b")) == [
        Publish(view(4, Seat("c", 3, STDBY), Seat("b", 1, DEAD), buried="a"))
    ]
    assert controller.handle(FoldedIn(PRIM, 3)) == [
        Publish(view(5, Seat("c", 3, ACTIVE), Seat("b", 1, DEAD), buried="a")),
        Publish(view(6, Seat("c", 3, ACTIVE), Seat("d", 6, STDBY), buried=("a", "b"))),
    ]


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (MemberLeft("c"), "PRIM on c left the cluster, SEC on b was dead before"),
        (MoveFailed(PRIM, 3), "PRIM on c could not catch up, SEC on b was dead before"),
    ],
    ids=repr,
)
def test_a_standby_without_any_active_that_ends_means_lost(end: Event, why: str) -> None:
    controller = running("c", "d")
    controller.handle(MemberLeft("a"))
    controller.handle(MemberLeft("b"))
    [publish] = controller.handle(end)
    assert publish.view.lost == f"No replica holds the state any more: {why}."


def test_a_lost_flow_stays_lost() -> None:
    controller = running()
    controller.handle(MemberLeft("a"))
    controller.handle(MemberLeft("b"))
    assert controller.handle(MemberJoined("c", 9)) == []
    assert controller.handle(MemberJoined("d", 10)) == []
    assert controller.handle(FoldedIn(PRIM, 1)) == []


def test_with_one_slot_its_death_means_lost() -> None:
    controller = Controller([PRIM])
    controller.handle(MemberJoined("a", 1))
    controller.handle(MemberJoined("b", 2))
    [publish] = controller.handle(MemberLeft("a"))
    assert publish.view.lost == "No replica holds the state any more: PRIM on a left the cluster."


def test_a_new_leader_goes_on_from_the_stored_view() -> None:
    stored = view(2, Seat("a", 1, DEAD), Seat("b", 1, ACTIVE))
    controller = Controller(view=stored)
    assert controller.handle(MemberJoined("a", 1)) == []
    assert controller.handle(MemberJoined("b", 2)) == []
    assert controller.handle(MemberJoined("c", 3)) == [
        Publish(view(3, Seat("c", 3, STDBY), Seat("b", 1, ACTIVE), buried="a"))
    ]


def test_a_new_leader_can_bury_a_node_it_never_saw() -> None:
    stored = view(1, Seat("a", 1, ACTIVE), Seat("b", 1, ACTIVE))
    assert Controller(view=stored).handle(MemberLeft("a")) == [
        Publish(view(2, Seat("a", 1, DEAD), Seat("b", 1, ACTIVE)))
    ]


def test_a_stored_view_with_other_slots_is_refused() -> None:
    with pytest.raises(BrokenInvariant):
        Controller([PRIM], view(1, Seat("a", 1, ACTIVE), Seat("b", 1, ACTIVE)))


def test_the_list_of_the_buried_stays_bounded() -> None:
    full = tuple(f"d{i}" for i in range(BURIED_MAX))
    controller = Controller(view=view(9, Seat("a", 1, DEAD), Seat("b", 1, ACTIVE), buried=full))
    [publish] = controller.handle(MemberJoined("c", 1))
    assert publish.view.buried == (*full[1:], "a")


NAMES = ("a", "b", "c", "d", "e", "f")


def events(draw: st.DrawFn, controller: Controller, order: int) -> Event:
    """An event that often, but not always, speaks of the current seats."""
    now = controller.view
    slot = draw(st.sampled_from(list(now.seats) if now else [PRIM, SEC]))
    seat = now.seats[slot] if now else Seat("a", 1, DEAD)
    node = draw(st.sampled_from((*NAMES, seat.node)))
    epoch = seat.epoch + draw(st.sampled_from((0, 0, 0, -1, 1)))
    made: list[Event] = [
        MemberJoined(node, order),
        MemberLeft(node),
        Suspected(node, epoch, by="gateway"),
        FoldedIn(slot, epoch),
        MoveFailed(slot, epoch),
    ]
    return draw(st.sampled_from(made))


def check(before: View | None, published: list[Publish], ever_dead: set[str]) -> None:
    """What holds for every step, whatever happened."""
    previous = before
    for after in (publish.view for publish in published):
        require(after.epoch == (previous.epoch + 1 if previous else 1), "epochs rise by one")
        live = [seat.node for seat in after.seats.values() if seat.alive]
        require(len(set(live)) == len(live), "a node sits in two slots")
        require(not ever_dead & set(live), f"{ever_dead & set(live)} came back from the dead")
        statuses = [seat.status for seat in after.seats.values()]
        require(statuses.count(STDBY) <= 1, "two standbys wait for each other")
        require((after.lost is not None) == (set(statuses) == {DEAD}), "lost means that all are dead")
        if previous is not None:
            require(previous.lost is None, "a lost flow came back")
            require(len(changes(previous, after)) == 1, "one decision is one message")
        for slot, seat in after.seats.items():
            if seat.status is STDBY and seat.epoch == after.epoch:
                require(after.seats[slot.other].status is ACTIVE, "a standby was seated without a source")
        ever_dead |= {seat.node for seat in after.seats.values() if not seat.alive}
        previous = after


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_sequence_of_events_breaks_an_invariant(data: st.DataObject) -> None:
    slots = data.draw(st.sampled_from([(PRIM,), (PRIM, SEC)]))
    controller = Controller(slots)
    ever_dead: set[str] = set()
    for order in range(data.draw(st.integers(1, 40))):
        before, members = controller.view, controller.members
        event = events(data.draw, controller, order)
        published = controller.handle(event)
        check(before, published, ever_dead)
        if not published:
            assert controller.view is before
        if not isinstance(event, MemberJoined | MemberLeft):
            assert controller.members == members
        if data.draw(st.booleans()):
            # A new leader knows only what was published and who is there; it must decide alike.
            successor = Controller(slots, controller.view)
            for place, node in enumerate(controller.members):
                assert successor.handle(MemberJoined(node, place)) == []
            assert successor.view == controller.view
            controller = successor


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whoever_skips_views_ends_up_with_the_same_statuses(data: st.DataObject) -> None:
    controller = Controller()
    history: list[View] = []
    for order in range(40):
        history += [publish.view for publish in controller.handle(events(data.draw, controller, order))]
    if not history:
        return
    seen = [v for v in history[:-1] if data.draw(st.booleans())] + history[-1:]
    statuses = {PRIM: ACTIVE, SEC: ACTIVE}
    meaning = {"Fail": DEAD, "Avail": STDBY, "Activated": ACTIVE, "Seated": ACTIVE}
    previous: View | None = None
    for now in seen:
        for change in changes(previous, now):
            statuses[change.slot] = meaning[type(change).__name__]
        assert statuses == {slot: seat.status for slot, seat in now.seats.items()}
        previous = now
