"""The controller of a flow with backups: one copy of each partition works, and a backup takes over."""

from __future__ import annotations

import pytest
from controller_kit import F, catch_up, join, now, seat_of, views
from core_kit import ACTIVE, BACKUP, DEAD, STDBY, copies, state_of

from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import chain_of
from understudy.core.timers import SetTimer, TimerFired
from understudy.core.view.controller import Controller
from understudy.core.view.events import (
    CopyCaughtUp,
    CopyMoveFailed,
    CopySuspected,
    Drain,
    MemberJoined,
    MembersLeft,
    MoveCopy,
)
from understudy.core.view.view import Status, View

FIRST, SECOND, THIRD = copies("f", 3)


def backed(replicas: int = 2, *more: str, caught_up: bool = True) -> Controller:
    """One partition on as many nodes as it has replicas: it works on a, and the others hold snapshots."""
    made = Controller(chain_of(f=1), replicas, nodes_wanted=replicas, passive=True)
    join(made, *"abc"[:replicas], *more)
    for _ in range(replicas if caught_up else 0):
        catch_up(made)
    return made


def statuses(view: View) -> list[Status]:
    return [seat.status for seat in view.seats.values()]


def test_the_first_view_seats_one_copy_and_backups_come_one_after_the_other() -> None:
    made = Controller(chain_of(f=1), 3, nodes_wanted=3, passive=True)
    join(made, "a", "b")
    first, filled = views(made.handle(MemberJoined("c", 2)))
    assert statuses(first) == [ACTIVE, DEAD, DEAD]
    assert statuses(filled) == [ACTIVE, STDBY, DEAD]
    backup, filled = views(made.handle(CopyCaughtUp(SECOND, now(made).seat(SECOND).epoch)))
    assert statuses(backup) == [ACTIVE, BACKUP, DEAD]
    assert statuses(filled) == [ACTIVE, BACKUP, STDBY]


@pytest.mark.parametrize("replicas", [2, 3])
def test_the_first_backup_takes_over_in_the_seat_that_it_has(replicas: int) -> None:
    made = backed(replicas)
    before = now(made).seat(SECOND)
    dead, taken_over = views(made.handle(MembersLeft(("a",))))
    others = [BACKUP] * (replicas - 2)
    assert statuses(dead) == [DEAD, BACKUP, *others]
    assert statuses(taken_over) == [DEAD, ACTIVE, *others]
    after = now(made).seat(SECOND)
    assert (after.node, after.epoch) == (before.node, before.epoch)


def test_a_node_that_comes_back_is_a_backup() -> None:
    made = backed()
    made.handle(MembersLeft(("a",)))
    made.handle(MemberJoined("a", 9))
    assert seat_of(made, FIRST) == ("a", STDBY)
    catch_up(made)
    assert seat_of(made, FIRST) == ("a", BACKUP)
    assert seat_of(made, SECOND) == ("b", ACTIVE)


def test_a_backup_that_is_lost_is_replaced_and_the_active_copy_goes_on() -> None:
    made = backed(2, "c")
    made.handle(MembersLeft(("b",)))
    assert seat_of(made, FIRST) == ("a", ACTIVE)
    assert seat_of(made, SECOND) == ("c", STDBY)


def test_a_standby_without_a_snapshot_is_never_promoted() -> None:
    made = backed(2, caught_up=False)
    assert statuses(now(made)) == [ACTIVE, STDBY]
    assert made.handle(MembersLeft(("a",))) == [SetTimer(("missed", "a"), 10_000)]
    made.handle(TimerFired(("missed", "a")))
    assert statuses(now(made)) == [DEAD, STDBY]


def test_a_standby_that_turns_out_to_hold_one_when_its_lender_is_dead_works_at_once() -> None:
    made = backed(2, caught_up=False)
    made.handle(MembersLeft(("a",)))
    made.handle(TimerFired(("missed", "a")))
    catch_up(made)
    assert seat_of(made, SECOND) == ("b", ACTIVE)


def test_when_both_are_missed_the_backup_takes_over_as_soon_as_it_is_back() -> None:
    made = backed()
    made.handle(MembersLeft(("a", "b")))
    assert statuses(now(made)) == [ACTIVE, BACKUP]
    made.handle(MemberJoined("b", 9))
    assert statuses(now(made)) == [DEAD, ACTIVE]


def test_when_both_are_missed_the_active_copy_that_comes_back_goes_on() -> None:
    made = backed()
    made.handle(MembersLeft(("a", "b")))
    made.handle(MemberJoined("a", 9))
    assert statuses(now(made)) == [ACTIVE, DEAD]


def test_a_suspected_active_copy_is_buried_only_if_its_backup_is_a_member() -> None:
    made = backed()
    epoch = now(made).seat(FIRST).epoch
    made.handle(MembersLeft(("b",)))
    assert made.handle(CopySuspected(FIRST, epoch, "x")) == []
    made = backed()
    made.handle(CopySuspected(FIRST, epoch, "x"))
    assert seat_of(made, SECOND) == ("b", ACTIVE)


def test_a_new_leader_goes_on_with_a_take_over_that_the_last_one_had_not_decided() -> None:
    made = backed(2, "c")
    dead, *_ = views(made.handle(MembersLeft(("a",))))
    assert statuses(dead) == [DEAD, BACKUP]
    leader = Controller(chain_of(f=1), 2, 2, dead, passive=True)
    leader.handle(MemberJoined("c", 2))
    assert statuses(now(leader)) == [DEAD, BACKUP], "it does not know yet whether the backup lives"
    leader.handle(MemberJoined("b", 1))
    assert seat_of(leader, SECOND) == ("b", ACTIVE)


def test_every_partition_of_a_node_is_taken_over_in_one_view() -> None:
    made = Controller(chain_of(low=2, high=2), 2, nodes_wanted=2, passive=True)
    join(made, "a", "b")
    for _ in range(8):
        catch_up(made)
    mine = [copy for copy in now(made).copies_on("a") if now(made).seat(copy).status is ACTIVE]
    assert len(mine) == 2
    dead, taken_over = views(made.handle(MembersLeft(("a",))))
    assert all(
        seats.seats[0].status is not ACTIVE or seats.seats[0].node == "b"
        for seats in dead.partitions.values()
    )
    for seats in taken_over.partitions.values():
        assert [seat.node for seat in seats.seats if seat.status is ACTIVE] == ["b"]


# --- a backup that gets nothing --------------------------------------------------------------------------


def gave_up(made: Controller, copy: Copy = SECOND) -> list[View]:
    return views(made.handle(CopyMoveFailed(copy, now(made).seat(copy).epoch, "full", holds_state=True)))


def test_a_backup_that_gets_no_snapshots_loses_its_seat_to_another_node() -> None:
    made = backed(2, "c")
    dead, _ = gave_up(made)
    assert statuses(dead) == [ACTIVE, DEAD]
    assert seat_of(made, SECOND) == ("c", STDBY)


def test_a_backup_without_another_node_begins_anew_so_that_producers_let_go() -> None:
    made = backed()
    before = now(made).seat(SECOND).epoch
    gave_up(made)
    assert seat_of(made, SECOND) == ("b", STDBY)
    assert now(made).seat(SECOND).epoch > before


def test_a_backup_that_may_be_the_last_that_holds_the_state_stays() -> None:
    made = backed()
    leader = Controller(chain_of(f=1), 2, 2, now(made), passive=True)
    leader.handle(MemberJoined("b", 1))
    before = state_of(leader)[1]["view"]
    assert gave_up(leader) == []
    assert state_of(leader)[1]["view"] == before


def test_a_copy_that_has_taken_over_meanwhile_stays() -> None:
    made = backed(3)
    epoch = now(made).seat(SECOND).epoch
    made.handle(MembersLeft(("a",)))
    assert made.handle(CopyMoveFailed(SECOND, epoch, "full", holds_state=True)) == []


# --- what an operator asks for ---------------------------------------------------------------------------


def test_a_working_copy_that_is_moved_hands_over_to_its_backup_and_is_a_backup_on_the_other_node() -> None:
    made = backed(2, "c")
    made.handle(MoveCopy(FIRST, "c"))
    assert seat_of(made, SECOND) == ("b", ACTIVE)
    assert seat_of(made, FIRST) == ("c", STDBY)
    assert dict(now(made).wanted) == {FIRST: "c"}
    catch_up(made)
    assert seat_of(made, FIRST) == ("c", BACKUP)
    assert dict(now(made).wanted) == {}, "the wish is fulfilled"


def test_a_drained_node_is_empty_in_the_end_and_each_partition_has_a_copy_that_works() -> None:
    made = Controller(chain_of(low=1, high=1), 2, nodes_wanted=2, passive=True)
    join(made, "a", "b", "c")
    for _ in range(6):
        catch_up(made)
    made.handle(Drain("a"))
    for _ in range(6):
        catch_up(made)
    assert now(made).copies_on("a") == []
    for name in ("low", "high"):
        assert sorted(s.status.name for s in now(made).partitions[Partition(name)].seats) == [
            "ACTIVE",
            "BACKUP",
        ]
    assert now(made).drained == {"a"}


def test_a_copy_whose_backup_has_no_snapshot_yet_cannot_be_moved() -> None:
    made = backed(2, "c", caught_up=False)
    (declined,) = made.handle(MoveCopy(FIRST, "c"))
    assert "must be before this one can move" in declined.why  # type: ignore[union-attr]
    assert now(made).partitions[F].seats[0].status is ACTIVE
