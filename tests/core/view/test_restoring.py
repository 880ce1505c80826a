"""The controller of a flow that saves its state: no partition is lost for good."""

from __future__ import annotations

import pytest
from controller_kit import F, join, now, seat_of, views, with_status
from core_kit import ACTIVE, DEAD, STDBY, copies

from understudy.core.errors import BrokenInvariant
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import chain_of
from understudy.core.timers import SetTimer, TimerFired
from understudy.core.view.controller import Controller
from understudy.core.view.events import CopyCaughtUp, CopyLacks, CopySuspected, MemberJoined, MembersLeft
from understudy.core.view.view import View

LOW, HIGH = Partition("low"), Partition("high")
FIRST, SECOND = copies("f", 2)


def saved(replicas: int, *more: str) -> Controller:
    """One partition, whose state is saved, on as many nodes as it has replicas: a, b."""
    made = Controller(chain_of(f=1), replicas, nodes_wanted=replicas, saved=True)
    join(made, *"ab"[:replicas], *more)
    return made


def lose(made: Controller, *nodes: str) -> list[View]:
    """These nodes leave, and none comes back."""
    found = views(made.handle(MembersLeft(nodes)))
    for node in nodes:
        found += views(made.handle(TimerFired(("missed", node))))
    return found


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_partition_that_lost_all_its_copies_begins_again_on_a_node_that_counts_as_active_at_once(
    replicas: int,
) -> None:
    made = saved(replicas, "c")
    *_, lost, restored = [each for each in lose(made, *"ab"[:replicas]) if not with_any_standby(each)]
    assert lost.lost is not None
    assert restored.lost is None
    assert seat_of(made, FIRST) == ("c", ACTIVE)
    seats = now(made).partitions[F]
    assert seats.restored == seats.seats[0].epoch == restored.epoch


def with_any_standby(view: View) -> bool:
    return any(seat.status is STDBY for seat in view.seats.values())


def test_a_node_that_is_gone_is_given_no_time_to_come_back() -> None:
    made = saved(1, "c")
    assert made.handle(MembersLeft(("a",))) == [SetTimer(("missed", "a"), 0)]
    assert Controller(chain_of(f=1), 1, 1).grace_ms == 10_000


def test_a_partition_without_any_node_for_it_waits_for_one_and_the_former_may_come_back() -> None:
    made = saved(1)
    (lost,) = lose(made, "a")
    assert lost.lost is not None
    (restored,) = views(made.handle(MemberJoined("a", 9)))
    assert seat_of(made, FIRST) == ("a", ACTIVE)
    assert restored.seat(FIRST).epoch == restored.epoch, "it sits there anew, and begins with the saved state"


def test_the_other_seats_are_filled_with_standbys_of_the_copy_that_began_again() -> None:
    made = saved(2, "c", "d")
    lose(made, "a", "b")
    assert (seat_of(made, FIRST), seat_of(made, SECOND)) == (("c", ACTIVE), ("d", STDBY))


def test_a_flow_that_saves_nothing_stays_lost() -> None:
    made = Controller(chain_of(f=1), 1, nodes_wanted=1, grace_ms=0)
    join(made, "a", "c")
    lose(made, "a")
    assert seat_of(made, FIRST) == ("a", DEAD)


def test_several_partitions_begin_again_in_one_view_on_different_nodes() -> None:
    made = Controller(chain_of(f=2), 1, nodes_wanted=2, saved=True)
    join(made, "a", "b", "c", "d")
    *_, restored = lose(made, "a", "b")
    assert {seat.node for seat in restored.seats.values()} == {"c", "d"}
    assert now(made).lost is None


def test_a_partition_begins_again_although_a_standby_of_another_level_catches_up() -> None:
    made = Controller(chain_of(low=1, high=1), 2, nodes_wanted=4, saved=True, layout=LAYOUT)
    join(made, "a", "b", "c", "d", "e", "f")
    lose(made, "a")
    assert with_status(made, STDBY) == [Copy(LOW)]
    lose(made, "c", "d")
    assert now(made).seat(Copy(HIGH)).status is ACTIVE


LAYOUT = {Copy(LOW): "a", Copy(LOW, 1): "b", Copy(HIGH): "c", Copy(HIGH, 1): "d"}


def chain(*more: str) -> Controller:
    made = Controller(chain_of(low=1, high=1), 2, nodes_wanted=4, saved=True, layout=LAYOUT)
    join(made, "a", "b", "c", "d", *more)
    return made


def test_a_copy_that_lacks_what_its_producers_kept_goes_back_together_with_all_of_them() -> None:
    made = chain("e", "f", "g")
    first, restored, *_ = views(made.handle(CopyLacks(Copy(HIGH), 1, LOW)))
    dead = {copy for copy, seat in first.seats.items() if seat.status is DEAD}
    assert dead == {Copy(HIGH), Copy(LOW), Copy(LOW, 1)}
    assert first.lost is not None
    assert restored.seat(Copy(LOW)).status is ACTIVE
    assert restored.partitions[LOW].restored == restored.epoch
    assert restored.partitions[HIGH].restored == 0, "its other copy is alive"


def test_a_copy_that_lacks_what_a_log_has_forgotten_goes_back_alone() -> None:
    made = chain("e")
    first, *_ = views(made.handle(CopyLacks(Copy(LOW), 1, Partition("source"))))
    assert [copy for copy, seat in first.seats.items() if seat.status is DEAD] == [Copy(LOW)]


@pytest.mark.parametrize(
    "report",
    [CopyLacks(Copy(HIGH), 7, LOW), CopyLacks(Copy(Partition("x")), 1, LOW), CopyLacks(Copy(HIGH), 1, HIGH)],
    ids=["another seat", "no such partition", "its own output"],
)
def test_a_report_that_makes_no_sense_is_old_news(report: CopyLacks) -> None:
    assert chain("e").handle(report) == []


def test_a_flow_that_saves_nothing_goes_back_to_nothing() -> None:
    made = Controller(chain_of(low=1, high=1), 2, nodes_wanted=4, layout=LAYOUT)
    join(made, "a", "b", "c", "d", "e")
    assert made.handle(CopyLacks(Copy(HIGH), 1, LOW)) == []


def test_a_suspicion_alone_costs_no_last_copy_its_seat() -> None:
    made = saved(1, "c")
    assert made.handle(CopySuspected(FIRST, 1, "gateway")) == []


def test_a_restored_partition_is_remembered_as_such() -> None:
    made = saved(2, "c", "d")
    lose(made, "a", "b")
    epoch = now(made).partitions[F].restored
    made.handle(CopyCaughtUp(SECOND, now(made).seat(SECOND).epoch))
    assert now(made).partitions[F].restored == epoch > 0


def test_isolated_replicas_save_nothing() -> None:
    with pytest.raises(BrokenInvariant, match="save nothing"):
        Controller(chain_of(f=1), 1, 1, isolated=True, saved=True)
