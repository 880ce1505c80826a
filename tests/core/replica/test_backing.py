"""A backup by exact instructions: what it asks for, what it holds, and how it takes over."""

from __future__ import annotations

import pytest
from core_kit import ACTIVE, DEAD, assert_rejected, copies, run, state_of

from understudy.core.bucket import NOTHING
from understudy.core.edge.messages import Ack, Attached, Data, From, Reverse
from understudy.core.edge.outlet import OutletState
from understudy.core.errors import BrokenInvariant
from understudy.core.replica.backing import Backing
from understudy.core.replica.consumer import Consumer
from understudy.core.replica.events import (
    Ask,
    AskAgainLater,
    AtEdge,
    CaughtUp,
    CopyState,
    Fetch,
    FetchFailed,
    Hold,
    Installed,
    MoveFailed,
    Offered,
    Process,
    Progress,
    Received,
    Resume,
    SendTo,
)
from understudy.core.replica.movement import FETCHES_MAX
from understudy.core.replica.producer import Producer
from understudy.core.replica.replica import Replica
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.view import Status

F, BELOW, ABOVE = Partition("f"), Partition("below"), Partition("above")
ACTIVE_COPY, BACKUP = copies("f", 2)
SOURCE, SINK = Copy(BELOW), Copy(ABOVE)
LIMIT_MS = 60_000
STALLED = "its state made no progress for 60 s"


def offered(attempt: int, version: int = 4) -> Offered:
    return Offered(ACTIVE_COPY, attempt, version)


def fetch(attempt: int, version: int = 4) -> Fetch:
    return Fetch(ACTIVE_COPY, attempt, version, hold=True)


def holding(through: int = 10) -> Backing:
    """Its first snapshot is here, and the next one is asked for."""
    made = Backing()
    made.ask()
    made.offered(offered(1))
    assert made.received(Received(1, through))
    made.ask()
    return made


# --- asking and holding ----------------------------------------------------------------------------------


def test_a_backup_without_a_snapshot_asks_again_and_again() -> None:
    made = Backing()
    assert made.ask() == [Ask(1), AskAgainLater()]
    assert made.ask() == [Ask(1), AskAgainLater()]


def test_a_backup_that_holds_one_asks_once_for_the_next_and_says_what_it_holds() -> None:
    made = holding(10)
    assert made.ask() == [Ask(2, 10)]
    assert made.offered(offered(2, 5)) == [fetch(2, 5)]
    assert made.ask() == [], "it is on its way"
    assert made.received(Received(2, 12))
    assert made.ask() == [Ask(3, 12)]


@pytest.mark.parametrize("attempt", [1, 3])
def test_an_offer_of_another_attempt_is_left_out(attempt: int) -> None:
    made = holding()
    before = state_of(made)
    assert made.offered(offered(attempt)) == []
    assert state_of(made) == before


def test_a_second_offer_of_a_fetch_that_goes_on_is_left_out() -> None:
    made = holding()
    assert made.offered(offered(2)) == [fetch(2)]
    assert made.offered(offered(2)) == []


@pytest.mark.parametrize("attempt", [1, 2, 4])
def test_a_snapshot_of_another_attempt_is_not_held(attempt: int) -> None:
    made = holding()
    made.offered(offered(2))
    made.failed(FetchFailed(2, "broken"))
    made.ask()
    made.offered(offered(3))
    before = state_of(made)
    assert not made.received(Received(attempt, 99))
    assert state_of(made) == before


# --- fetches that bring nothing --------------------------------------------------------------------------


def test_after_a_fetch_that_failed_the_next_snapshot_is_another_chance_and_what_is_held_is_still_good() -> (
    None
):
    made = holding(10)
    made.offered(offered(2))
    assert made.failed(FetchFailed(2, "broken")) == [AskAgainLater()]
    assert made.ask() == [Ask(3, 10)]
    assert made.failed(FetchFailed(2, "broken")) == [], "it was counted"
    assert made.failures == 1


def test_a_fetch_that_hangs_is_begun_anew() -> None:
    made = holding(10)
    made.offered(offered(2))
    assert made.stalled(STALLED) == [Ask(3, 10)]
    assert made.failed(FetchFailed(2, "stopped")) == []
    assert not made.received(Received(2, 99))


def test_a_backup_that_waits_for_more_has_not_stalled() -> None:
    made = holding(10)
    before = state_of(made)
    assert made.stalled(STALLED) == []
    assert state_of(made) == before


def fails(made: Backing) -> list[object]:
    made.ask()
    made.offered(offered(made.attempt))
    return list(made.failed(FetchFailed(made.attempt, "the disk is full")))


def test_a_backup_that_fails_time_and_again_says_so_and_goes_on_trying_in_case_it_is_the_last() -> None:
    made = holding(10)
    for _ in range(2):
        for _ in range(FETCHES_MAX - 1):
            assert fails(made) == [AskAgainLater()]
        assert fails(made) == [MoveFailed("the disk is full", holds_state=True), AskAgainLater()]
    assert made.ask() == [Ask(made.attempt, 10)]


def test_a_fetch_that_hangs_time_and_again_counts_as_failed() -> None:
    made = holding(10)
    for _ in range(FETCHES_MAX - 1):
        made.offered(offered(made.attempt))
        assert made.stalled(STALLED) == [Ask(made.attempt, 10)]
    made.offered(offered(made.attempt))
    assert made.stalled(STALLED) == [MoveFailed(STALLED, holds_state=True), Ask(made.attempt, 10)]


def test_a_snapshot_that_comes_makes_up_for_those_that_did_not() -> None:
    made = holding(10)
    for _ in range(FETCHES_MAX - 1):
        fails(made)
    made.ask()
    made.offered(offered(made.attempt))
    assert made.received(Received(made.attempt, 11))
    assert fails(made) == [AskAgainLater()]


def test_a_standby_whose_first_snapshot_fails_time_and_again_gives_up_for_good() -> None:
    made = Backing()
    for _ in range(FETCHES_MAX - 1):
        assert fails(made) == [AskAgainLater()]
    assert fails(made) == [MoveFailed("the disk is full"), AskAgainLater()]
    assert made.ask() == []
    assert made.offered(offered(made.attempt)) == []


def test_only_one_without_a_snapshot_gives_up_when_no_copy_can_lend() -> None:
    assert Backing().give_up("gone") == [MoveFailed("gone")]
    assert holding().give_up("gone") == []


# --- as a copy -------------------------------------------------------------------------------------------


def backup(below: dict[int, Status] | None = None) -> Replica:
    """A standby that asks for its first snapshot."""
    consumer = Consumer("c", 1, {BELOW: below or {0: ACTIVE}}, passive=True)
    made = Replica(Copy(F, 1), consumer, Producer("p", {ABOVE: {0: ACTIVE}}))
    assert made.borrow(to_hold=True) == [Ask(1), AskAgainLater()]
    return made


def state(version: int, through: int) -> CopyState:
    outlet = OutletState(run(through), through, through - 1, ((0, through - 1),))
    return CopyState(version, through, ((ABOVE, outlet),))


def holds(below: dict[int, Status] | None = None, through: int = 10) -> Replica:
    """A backup whose first snapshot is here; its producer has let it in."""
    made = backup(below)
    assert made.handle(offered(1)) == [fetch(1)]
    assert made.handle(Received(1, through)) == [Hold(1), Ask(2, through)]
    assert made.handle(AtEdge(BELOW, Attached(0, 20))) == [SendTo(SOURCE, Ack(through)), CaughtUp()]
    return made


def test_a_backup_attaches_with_what_its_snapshot_holds_asks_for_no_data_and_has_caught_up() -> None:
    made = holds()
    assert made.holds
    assert made.backs_up
    assert not made.begun
    made.check()


def test_a_backup_has_caught_up_when_every_active_producer_has_let_it_in() -> None:
    made = backup({0: ACTIVE, 1: ACTIVE, 2: DEAD})
    made.handle(offered(1))
    assert CaughtUp() not in made.handle(Received(1, 10))
    assert made.handle(AtEdge(BELOW, Attached(0, 20))) == [SendTo(SOURCE, Ack(10))]
    assert made.handle(AtEdge(BELOW, Attached(1, 20))) == [SendTo(Copy(BELOW, 1), Ack(10)), CaughtUp()]


def test_a_backup_acknowledges_every_snapshot_that_it_holds_and_says_only_once_that_it_caught_up() -> None:
    made = holds()
    made.handle(offered(2, 5))
    assert made.handle(Received(2, 14)) == [Hold(2), SendTo(SOURCE, Ack(14)), Ask(3, 14)]
    made.check()


def test_a_snapshot_that_is_not_wanted_is_neither_held_nor_acknowledged() -> None:
    made = holds()
    made.handle(offered(2))
    made.handle(FetchFailed(2, "broken"))
    before = state_of(made)
    assert made.handle(Received(2, 14)) == []
    assert state_of(made) == before


def test_a_backup_that_is_called_active_starts_from_what_it_holds_and_asks_for_the_rest() -> None:
    made = holds()
    assert made.activated() == [Resume()]
    assert made.begin(state(4, 10)) == [SendTo(SOURCE, Reverse(10))]
    assert made.begun
    assert not made.backs_up
    assert made.lending.version == 4
    assert [bucket.number for bucket in made.above.outlets[ABOVE].buffer] == [10]  # type: ignore[union-attr]
    done = made.handle(AtEdge(BELOW, From(0, Data(run(11)))))
    assert done[0] == SendTo(SOURCE, Ack(11))
    assert isinstance(done[1], Process)
    made.check()


def test_data_that_reaches_a_backup_is_left_out() -> None:
    made = holds()
    before = state_of(made)
    assert made.handle(AtEdge(BELOW, From(0, Data(run(11))))) == []
    assert state_of(made) == before


def test_a_snapshot_that_comes_during_a_take_over_is_too_late() -> None:
    made = holds()
    made.handle(offered(2))
    made.activated()
    assert made.handle(Received(2, 14)) == []
    assert made.ask_again() == []
    assert made.begin(state(4, 10)) == [SendTo(SOURCE, Reverse(10))]


@pytest.mark.parametrize(
    "wrong", [None, state(5, 14), state(3, 8)], ids=["nothing", "a later state", "an earlier state"]
)
def test_a_backup_resumes_with_nothing_but_what_it_holds(wrong: CopyState | None) -> None:
    made = holds()
    made.activated()
    before = state_of(made)
    with pytest.raises(BrokenInvariant, match="resumed"):
        made.begin(wrong)
    assert state_of(made) == before


def test_a_backup_does_not_begin_before_it_is_called_active() -> None:
    made = holds()
    before = state_of(made)
    with pytest.raises(BrokenInvariant, match="resumed"):
        made.begin(state(4, 10))
    assert state_of(made) == before


def test_a_state_for_an_engine_is_nothing_for_a_backup() -> None:
    assert_rejected(holds(), Installed(2, state(4, 10)), "did not want a state of attempt 2")


def test_what_a_backup_holds_is_watched_and_a_fetch_that_hangs_is_begun_anew() -> None:
    made = holds()
    assert made.stuck(LIMIT_MS) == [], "the first snapshot came since"
    made.handle(offered(2))
    assert made.stuck(LIMIT_MS) == []
    made.handle(Progress())
    assert made.stuck(LIMIT_MS) == []
    assert made.stuck(LIMIT_MS) == [Ask(3, 10)]


def test_a_standby_that_gets_nothing_for_long_gives_up() -> None:
    assert backup().stuck(LIMIT_MS) == [MoveFailed(STALLED)]


def test_an_empty_snapshot_is_held_like_any_other() -> None:
    made = backup()
    made.handle(offered(1))
    assert made.handle(Received(1, NOTHING)) == [Hold(1), Ask(2, NOTHING)]
    assert made.holds
