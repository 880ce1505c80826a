"""Lending and borrowing a state, by exact instructions."""

from __future__ import annotations

import pytest
from core_kit import copies, state_of

from understudy.core.bucket import NOTHING
from understudy.core.errors import BrokenInvariant
from understudy.core.replica.events import (
    Ask,
    AskAgainLater,
    Asked,
    CopyState,
    DropSnapshot,
    Fetch,
    FetchFailed,
    KeepSnapshot,
    MoveFailed,
    Offer,
    Offered,
    SaveSnapshot,
    SnapshotFailed,
    SnapshotTaken,
    TakeSnapshot,
)
from understudy.core.replica.movement import FETCHES_MAX, Borrowing, Lending
from understudy.core.shape.partition import Copy

LENDER, STANDBY, THIRD = copies("f", 3)


def asked(attempt: int = 1, epoch: int = 5) -> Asked:
    return Asked(STANDBY, epoch, attempt)


def state(version: int) -> CopyState:
    return CopyState(version, 10, ())


def lending(attempt: int = 1) -> Lending:
    """A snapshot is kept for this attempt."""
    made = Lending()
    made.asked(asked(attempt))
    made.stands_still()
    made.taken(SnapshotTaken(1), state(1))
    return made


# --- the lender ------------------------------------------------------------------------------------------


def test_a_request_waits_until_the_engine_stands_still_then_a_snapshot_is_taken_kept_and_offered() -> None:
    made = Lending()
    assert made.stands_still() == []
    assert made.asked(asked()) == []
    assert not made.paused
    assert made.stands_still() == [TakeSnapshot(1)]
    assert made.paused
    assert made.taken(SnapshotTaken(1), state(1)) == [KeepSnapshot(state(1)), Offer(STANDBY, 5, 1, 1)]
    assert not made.paused


def test_a_request_that_is_repeated_is_offered_the_same_snapshot() -> None:
    assert lending().asked(asked()) == [Offer(STANDBY, 5, 1, 1)]


def test_a_request_that_is_repeated_before_its_snapshot_is_there_changes_nothing() -> None:
    made = Lending()
    made.asked(asked())
    assert made.asked(asked()) == []
    made.stands_still()
    assert made.asked(asked()) == []
    assert made.wanted == {}


@pytest.mark.parametrize("later", [asked(attempt=2), asked(epoch=6)])
def test_a_later_attempt_or_the_next_standby_gets_a_snapshot_of_its_own(later: Asked) -> None:
    made = lending()
    assert made.asked(later) == [DropSnapshot(1)]
    assert made.stands_still() == [TakeSnapshot(2)]
    assert made.taken(SnapshotTaken(2), state(2))[-1] == Offer(STANDBY, later.epoch, later.attempt, 2)


def test_an_earlier_attempt_that_comes_late_is_ignored() -> None:
    made = lending(attempt=2)
    assert made.asked(asked(1)) == []
    assert made.lent == {STANDBY: (asked(2), 1)}


def test_an_earlier_attempt_that_comes_late_does_not_replace_one_that_waits() -> None:
    made = Lending()
    made.asked(asked(2))
    assert made.asked(asked(1)) == []
    assert made.wanted == {STANDBY: asked(2)}


def test_a_request_during_a_snapshot_makes_that_one_useless() -> None:
    made = Lending()
    made.asked(asked())
    made.stands_still()
    assert made.asked(asked(2)) == []
    assert made.taken(SnapshotTaken(1), state(1)) == [DropSnapshot(1)]
    assert made.stands_still() == [TakeSnapshot(2)]


def test_a_snapshot_that_failed_is_taken_again_when_the_request_is_repeated() -> None:
    made = Lending()
    made.asked(asked())
    made.stands_still()
    assert made.taken(SnapshotFailed(1, "the disk is full"), state(1)) == []
    assert made.stands_still() == []
    assert made.asked(asked()) == []
    assert made.stands_still() == [TakeSnapshot(2)]


def test_a_snapshot_is_dropped_when_its_standby_is_gone() -> None:
    made = lending()
    assert made.standby_gone(STANDBY) == [DropSnapshot(1)]
    assert made.standby_gone(STANDBY) == []


def test_a_standby_that_is_gone_is_not_waited_for() -> None:
    made = Lending()
    made.asked(asked())
    assert made.standby_gone(STANDBY) == []
    assert made.stands_still() == []


def test_a_standby_that_is_gone_while_its_snapshot_is_taken_gets_no_offer() -> None:
    made = Lending()
    made.asked(asked())
    made.stands_still()
    assert made.standby_gone(STANDBY) == []
    assert made.taken(SnapshotTaken(1), state(1)) == [DropSnapshot(1)]
    assert made.lent == {}


def test_the_next_standby_is_served_although_the_snapshot_of_the_last_was_under_way() -> None:
    made = Lending()
    made.asked(asked())
    made.stands_still()
    made.standby_gone(STANDBY)
    made.asked(asked(epoch=7))
    assert made.taken(SnapshotTaken(1), state(1)) == [DropSnapshot(1)]
    assert made.stands_still() == [TakeSnapshot(2)]
    assert made.taken(SnapshotTaken(2), state(2)) == [KeepSnapshot(state(2)), Offer(STANDBY, 7, 1, 2)]


@pytest.mark.parametrize("event", [SnapshotTaken(1), SnapshotTaken(2), SnapshotFailed(1, "x")])
def test_a_snapshot_that_was_not_asked_for_is_our_bug_and_leaves_no_trace(
    event: SnapshotTaken | SnapshotFailed,
) -> None:
    made = lending()
    before = state_of(made)
    with pytest.raises(BrokenInvariant, match="was not asked for"):
        made.taken(event, state(event.version))
    assert state_of(made) == before


def test_a_snapshot_of_another_version_than_the_one_being_taken_is_our_bug() -> None:
    made = lending()
    made.asked(asked(2))
    made.stands_still()
    before = state_of(made)
    with pytest.raises(BrokenInvariant, match="was not asked for"):
        made.taken(SnapshotTaken(1), state(1))
    assert state_of(made) == before


def third(attempt: int = 1) -> Asked:
    return Asked(THIRD, 6, attempt)


def test_a_snapshot_serves_all_standbys_that_want_one_and_goes_with_the_last_of_them() -> None:
    made = Lending()
    made.asked(asked())
    made.asked(third())
    assert made.stands_still() == [TakeSnapshot(1)]
    assert made.taken(SnapshotTaken(1), state(1)) == [
        KeepSnapshot(state(1)),
        Offer(STANDBY, 5, 1, 1),
        Offer(THIRD, 6, 1, 1),
    ]
    assert made.standby_gone(STANDBY) == []
    assert made.asked(third()) == [Offer(THIRD, 6, 1, 1)]
    assert made.standby_gone(THIRD) == [DropSnapshot(1)]


def test_a_standby_that_asks_while_a_snapshot_is_made_for_another_gets_the_next() -> None:
    made = Lending()
    made.asked(asked())
    made.stands_still()
    assert made.asked(third()) == []
    assert made.taken(SnapshotTaken(1), state(1)) == [KeepSnapshot(state(1)), Offer(STANDBY, 5, 1, 1)]
    assert made.stands_still() == [TakeSnapshot(2)]
    assert made.taken(SnapshotTaken(2), state(2)) == [KeepSnapshot(state(2)), Offer(THIRD, 6, 1, 2)]


# --- the store -------------------------------------------------------------------------------------------


def saving() -> Lending:
    """A snapshot is on its way to the store."""
    made = Lending()
    made.save()
    assert made.stands_still() == [TakeSnapshot(1)]
    assert made.taken(SnapshotTaken(1), state(1)) == [KeepSnapshot(state(1)), SaveSnapshot(1)]
    return made


def test_a_snapshot_for_the_store_is_kept_until_it_is_there() -> None:
    made = saving()
    assert made.saved(1) == [DropSnapshot(1)]
    assert made.saving is None
    made.save()
    assert made.stands_still() == [TakeSnapshot(2)]


def test_one_snapshot_at_a_time_is_on_its_way_to_the_store() -> None:
    made = saving()
    made.save()
    assert made.stands_still() == []
    made = Lending()
    made.save()
    made.stands_still()
    made.save()
    made.taken(SnapshotTaken(1), state(1))
    assert made.stands_still() == [], "one was being taken when the time came again"


def test_one_snapshot_serves_the_store_and_a_standby_and_goes_when_both_have_it() -> None:
    for store_first in (True, False):
        made = Lending()
        made.save()
        made.asked(asked())
        made.stands_still()
        assert made.taken(SnapshotTaken(1), state(1)) == [
            KeepSnapshot(state(1)),
            SaveSnapshot(1),
            Offer(STANDBY, 5, 1, 1),
        ]
        first, second = (made.saved, 1), (made.standby_gone, STANDBY)
        if not store_first:
            first, second = second, first  # type: ignore[assignment]
        assert first[0](first[1]) == []
        assert second[0](second[1]) == [DropSnapshot(1)]  # type: ignore[arg-type]


def test_a_standby_of_a_later_attempt_leaves_the_store_its_snapshot() -> None:
    made = Lending()
    made.save()
    made.asked(asked())
    made.stands_still()
    made.taken(SnapshotTaken(1), state(1))
    assert made.asked(asked(2)) == []
    assert made.saved(1) == [DropSnapshot(1)]


def test_a_snapshot_that_is_not_fit_for_the_store_may_still_be_lent() -> None:
    made = Lending()
    made.save()
    made.asked(asked())
    made.stands_still()
    done = made.taken(SnapshotTaken(1), state(1), fit_to_save=False)
    assert done == [KeepSnapshot(state(1)), Offer(STANDBY, 5, 1, 1)]
    assert made.saving is None


def test_a_snapshot_that_is_fit_for_neither_is_dropped() -> None:
    made = Lending()
    made.save()
    made.stands_still()
    assert made.taken(SnapshotTaken(1), state(1), fit_to_save=False) == [DropSnapshot(1)]


def test_a_snapshot_that_failed_is_saved_when_the_time_comes_again() -> None:
    made = Lending()
    made.save()
    made.stands_still()
    assert made.taken(SnapshotFailed(1, "the disk is full"), state(1)) == []
    assert made.stands_still() == []
    made.save()
    assert made.stands_still() == [TakeSnapshot(2)]


@pytest.mark.parametrize("version", [1, 3])
def test_a_save_that_was_not_asked_for_is_our_bug_and_leaves_no_trace(version: int) -> None:
    made = saving() if version == 3 else lending()
    before = state_of(made)
    with pytest.raises(BrokenInvariant, match=f"version {version} was not to be saved"):
        made.saved(version)
    assert state_of(made) == before


# --- the borrower ----------------------------------------------------------------------------------------


def offer(attempt: int = 1, version: int = 3) -> Offered:
    return Offered(LENDER, attempt, version)


def test_a_standby_asks_until_it_is_offered_a_snapshot_and_fetches_that_one() -> None:
    made = Borrowing()
    assert made.ask() == made.ask() == [Ask(1), AskAgainLater()]
    assert made.offered(offer()) == [Fetch(LENDER, 1, 3)]
    assert made.ask() == []
    assert made.expects(1)


def test_a_second_offer_of_the_same_attempt_is_not_fetched_too() -> None:
    made = Borrowing()
    made.offered(offer())
    assert made.offered(Offered(THIRD, 1, 4)) == []


@pytest.mark.parametrize("attempt", [1, 3])
def test_an_offer_of_another_attempt_is_ignored(attempt: int) -> None:
    made = Borrowing()
    made.offered(offer())
    made.failed(FetchFailed(1, "broken"))
    before = state_of(made)
    assert made.offered(offer(attempt)) == []
    assert state_of(made) == before
    assert made.offered(offer(2)) == [Fetch(LENDER, 2, 3)]


def test_a_failed_fetch_is_tried_again_a_few_times_then_given_up() -> None:
    made = Borrowing()
    for attempt in range(1, FETCHES_MAX):
        made.offered(offer(attempt))
        assert made.failed(FetchFailed(attempt, "broken")) == [AskAgainLater()]
        assert made.ask() == [Ask(attempt + 1), AskAgainLater()]
    made.offered(offer(FETCHES_MAX))
    assert made.failed(FetchFailed(FETCHES_MAX, "the disk is full")) == [MoveFailed("the disk is full")]
    assert made.ask() == []
    assert made.give_up("again") == []
    assert not made.expects(FETCHES_MAX)


def test_a_failure_of_an_earlier_attempt_or_of_no_fetch_is_ignored() -> None:
    made = Borrowing()
    assert made.failed(FetchFailed(1, "never began")) == []
    made.offered(offer())
    made.failed(FetchFailed(1, "broken"))
    made.offered(offer(2))
    assert made.failed(FetchFailed(1, "once more")) == []
    assert (made.attempt, made.fetching) == (2, True)


def test_a_standby_that_gave_up_takes_no_offer() -> None:
    made = Borrowing()
    assert made.give_up("no copy holds the state any more") == [
        MoveFailed("no copy holds the state any more")
    ]
    assert made.offered(offer()) == []


# --- backups ---------------------------------------------------------------------------------------------


def holding(holds: int | None, attempt: int = 2, standby: Copy = STANDBY) -> Asked:
    return Asked(standby, 5, attempt, holds)


def paced() -> Lending:
    """A lender of backups, whose time to ship has come."""
    return Lending(paced=True)


def test_a_backup_is_served_when_its_time_has_come_and_there_is_more_than_it_holds() -> None:
    made = paced()
    made.asked(holding(10))
    assert made.stands_still(10) == [], "it holds as much"
    assert made.stands_still(11) == [TakeSnapshot(1)]
    assert made.taken(SnapshotTaken(1), state(1)) == [KeepSnapshot(state(1)), Offer(STANDBY, 5, 2, 1)]
    assert made.asked(holding(11, attempt=3)) == [DropSnapshot(1)]
    assert made.stands_still(12) == [], "its time has not come"
    made.ship_due = True
    assert made.stands_still(12) == [TakeSnapshot(2)]


def test_a_standby_without_a_snapshot_gets_one_though_there_is_no_input_yet() -> None:
    made = paced()
    made.asked(holding(None))
    assert made.stands_still(NOTHING) == [TakeSnapshot(1)]


def test_of_two_backups_the_one_that_holds_less_is_served_and_the_other_waits() -> None:
    made = paced()
    made.asked(holding(10))
    made.asked(holding(12, standby=THIRD))
    assert made.stands_still(12) == [TakeSnapshot(1)]
    assert made.taken(SnapshotTaken(1), state(1)) == [KeepSnapshot(state(1)), Offer(STANDBY, 5, 2, 1)]
    assert made.wanted == {THIRD: holding(12, standby=THIRD)}


def test_each_of_two_backups_keeps_its_snapshot_until_it_asks_for_the_next() -> None:
    made = paced()
    made.asked(holding(10))
    made.stands_still(11)
    made.taken(SnapshotTaken(1), state(1))
    made.asked(holding(10, standby=THIRD))
    made.ship_due = True
    made.stands_still(12)
    assert made.taken(SnapshotTaken(2), state(2)) == [KeepSnapshot(state(2)), Offer(THIRD, 5, 2, 2)]
    assert made.asked(holding(11, attempt=3)) == [DropSnapshot(1)]
    assert made.standby_gone(THIRD) == [DropSnapshot(2)]


def test_a_snapshot_for_the_store_serves_a_backup_whose_time_has_not_come() -> None:
    made = Lending(paced=True, ship_due=False)
    made.asked(holding(10))
    made.save()
    assert made.stands_still(11) == [TakeSnapshot(1)]
    done = made.taken(SnapshotTaken(1), state(1))
    assert done == [KeepSnapshot(state(1)), SaveSnapshot(1), Offer(STANDBY, 5, 2, 1)]


def test_a_snapshot_that_failed_leaves_a_backups_request_and_a_standbys_is_repeated() -> None:
    made = paced()
    made.asked(holding(10))
    made.asked(holding(None, standby=THIRD))
    made.stands_still(11)
    assert made.taken(SnapshotFailed(1, "full"), state(1)) == []
    assert made.wanted == {STANDBY: holding(10)}
    assert made.stands_still(11) == [], "not at once"
    made.ship_due = True
    assert made.stands_still(11) == [TakeSnapshot(2)]


def test_a_later_request_that_came_during_a_snapshot_that_failed_is_the_one_that_stays() -> None:
    made = paced()
    made.asked(holding(10))
    made.stands_still(11)
    made.asked(holding(10, attempt=3))
    made.taken(SnapshotFailed(1, "full"), state(1))
    assert made.wanted == {STANDBY: holding(10, attempt=3)}


def test_the_clock_of_backups_is_nothing_to_a_lender_that_is_not_paced() -> None:
    made = lending()
    made.asked(asked(attempt=2))
    assert made.stands_still(11) == [TakeSnapshot(2)]
