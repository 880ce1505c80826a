"""A run that goes on begins with one node, where every node holds a copy of everything."""

from __future__ import annotations

import pytest
from controller_kit import F, all_catch_up, join, now, views

from understudy.core.errors import BrokenInvariant
from understudy.core.shape.partition import Copy
from understudy.core.shape.topology import chain_of
from understudy.core.view.controller import Controller
from understudy.core.view.events import CopyCaughtUp, MemberJoined
from understudy.core.view.view import Status


def going_on(replicas: int = 2, nodes: int = 2, *, early: bool = True) -> Controller:
    return Controller(
        chain_of(low=2, high=2),
        replicas,
        nodes,
        saved=True,
        first_epoch=1_000_001,
        early=early,
    )


def statuses(made: Controller) -> dict[str, set[Status]]:
    """By node, what its living seats are."""
    found: dict[str, set[Status]] = {}
    for seat in now(made).seats.values():
        if seat.alive:
            found.setdefault(seat.node, set()).add(seat.status)
    return found


def test_the_first_node_gets_a_copy_of_everything_and_the_other_seats_stay_empty() -> None:
    made = going_on()
    (view,) = views(made.handle(MemberJoined("a", 0)))
    assert view.epoch == 1_000_001
    for seats in view.partitions.values():
        assert [seat.status for seat in seats.seats] == [Status.ACTIVE, Status.DEAD]
        assert seats.seats[0].node == "a"


def test_a_node_that_comes_later_catches_up_with_the_first_one() -> None:
    made = going_on()
    join(made, "a", "b")
    assert statuses(made) == {"a": {Status.ACTIVE}, "b": {Status.STDBY}}
    all_catch_up(made)
    assert statuses(made) == {"a": {Status.ACTIVE}, "b": {Status.ACTIVE}}
    assert all(seats.whole for seats in now(made).partitions.values())


def test_a_third_replica_comes_after_the_second() -> None:
    made = going_on(replicas=3, nodes=3)
    join(made, "a", "b", "c")
    all_catch_up(made)
    assert statuses(made) == {node: {Status.ACTIVE} for node in "abc"}


def test_a_backup_of_passive_standby_comes_later_as_it_does_anyway() -> None:
    made = Controller(chain_of(f=1), 2, 2, saved=True, passive=True, early=True)
    join(made, "a", "b")
    made.handle(CopyCaughtUp(Copy(F, 1), now(made).seat(Copy(F, 1)).epoch))
    assert [seat.status for seat in now(made).partitions[F].seats] == [Status.ACTIVE, Status.BACKUP]


def test_nodes_that_share_the_partitions_are_waited_for_so_that_none_gets_too_many() -> None:
    made = going_on(nodes=4)
    join(made, "a", "b", "c")
    assert made.view is None
    made.handle(MemberJoined("d", 3))
    assert all(seats.whole for seats in now(made).partitions.values())
    assert now(made).load["a"] == 2, "of four partitions' eight copies"


def test_a_run_that_begins_waits_for_all_its_nodes() -> None:
    made = going_on(early=False)
    made.handle(MemberJoined("a", 0))
    assert made.view is None
    made.handle(MemberJoined("b", 1))
    assert statuses(made) == {"a": {Status.ACTIVE}, "b": {Status.ACTIVE}}


def test_without_a_saved_state_one_node_could_not_begin_alone() -> None:
    with pytest.raises(BrokenInvariant, match="saved state"):
        Controller(chain_of(f=1), 2, 2, early=True)
