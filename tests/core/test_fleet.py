"""Machines, hosts and controller together: every row once, whichever node is lost."""

from __future__ import annotations

import pytest
from core_kit import ACTIVE, BACKUP, rows
from fleet import Fleet

from understudy.core.host.limits import Limits
from understudy.core.host.parcels import ViewSeen
from understudy.core.host.places import GATEWAY
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import Topology, chain_of
from understudy.core.view.events import CopySuspected, MoveCopy
from understudy.core.view.view import View

NUMBERS = list(range(1, 31))


def delivered(fleet: Fleet) -> list[int]:
    return [bucket.number for bucket in fleet.delivered]


def produce(fleet: Fleet, numbers: list[int]) -> None:
    fleet.produce(*(rows(number) for number in numbers))


def kept(fleet: Fleet) -> int:
    """How many buckets all outlets of all hosts keep."""
    return sum(
        len(outlet.buffer)
        for name in fleet.processes
        for resident in fleet.host(name).residents.values()
        if resident.machine.above is not None
        for outlet in resident.machine.above.outlets.values()
    )


def all_active(fleet: Fleet) -> bool:
    view = fleet.controller.view
    return view is not None and all(seat.status is ACTIVE for seat in view.seats.values())


def catch_up(fleet: Fleet) -> None:
    """Let requests be repeated until every seat is active again."""
    for _ in range(20):
        fleet.settle()
        if all_active(fleet):
            return
        fleet.fire("ask")
    raise AssertionError("a standby does not catch up")


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_every_row_is_delivered_once_and_in_order_and_nothing_is_kept(replicas: int) -> None:
    fleet = Fleet(chain_of(low=1, high=1), replicas, "abc", 3)
    produce(fleet, NUMBERS)
    fleet.settle()
    assert delivered(fleet) == NUMBERS
    assert kept(fleet) == 0


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("victim", ["a", "b"])
@pytest.mark.parametrize("steps", range(0, 30, 6))
def test_a_node_that_is_lost_costs_no_row_and_its_seats_are_filled(
    replicas: int, victim: str, steps: int
) -> None:
    fleet = Fleet(chain_of(low=2, high=1), replicas, "abcd", 3)
    produce(fleet, NUMBERS[:10])
    for _ in range(steps):
        fleet.step()
    fleet.kill(victim)
    produce(fleet, NUMBERS[10:20])
    catch_up(fleet)
    produce(fleet, NUMBERS[20:])
    fleet.settle()
    assert delivered(fleet) == NUMBERS
    assert kept(fleet) == 0


@pytest.mark.parametrize("replicas", [2, 3])
def test_one_node_after_another_may_be_lost(replicas: int) -> None:
    fleet = Fleet(chain_of(low=1, high=1), replicas, "abcdef", replicas)
    for at, victim in enumerate("abc"):
        produce(fleet, NUMBERS[at * 10 : at * 10 + 10])
        fleet.kill(victim)
        catch_up(fleet)
    assert delivered(fleet) == NUMBERS
    assert kept(fleet) == 0


def test_a_lender_that_dies_after_its_state_has_moved_costs_nothing() -> None:
    fleet = Fleet(chain_of(f=1), 2, "abc", 2)
    produce(fleet, NUMBERS[:10])
    fleet.settle()
    fleet.kill("b")
    produce(fleet, NUMBERS[10:20])
    newcomer = Copy(Partition("f"), 1)
    while newcomer not in fleet.host("c").residents or not fleet.host("c").residents[newcomer].begun:
        fleet.step()
    fleet.kill("a")
    produce(fleet, NUMBERS[20:])
    fleet.settle()
    assert delivered(fleet) == NUMBERS


# --- saved state -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("saves", [0, 1, 2, 3])
@pytest.mark.parametrize("victims", ["ab", "cd", "abcd"], ids=["producers", "consumers", "all"])
def test_partitions_that_lost_all_their_copies_begin_again_and_no_row_is_lost_or_repeated(
    replicas: int, saves: int, victims: str
) -> None:
    fleet = Fleet(chain_of(low=1, high=1), replicas, "abcdefgh", 4, saved=True)
    for at in range(4):
        produce(fleet, NUMBERS[at * 5 : at * 5 + 5])
        fleet.settle()
        if at < saves:
            fleet.fire("save")
    for victim in victims:
        fleet.kill(victim)
    produce(fleet, NUMBERS[20:])
    catch_up(fleet)
    assert delivered(fleet) == NUMBERS
    for _ in range(3):
        fleet.fire("save")
    assert kept(fleet) == 0, "every saved state has everything"


def test_a_consumer_that_its_producer_cannot_serve_makes_the_producer_go_back_too() -> None:
    limits = Limits(output_buckets_max=2, group_buckets_max=1, save_bytes_max=0)
    fleet = Fleet(chain_of(low=1, high=2), 1, "ab", 2, saved=True, limits=limits)
    for number in NUMBERS[:10]:
        produce(fleet, [number])
        fleet.settle()
        if number == 1:
            fleet.fire("save")
    fleet.kill("b")
    fleet.settle()
    produce(fleet, NUMBERS[10:])
    catch_up(fleet)
    assert delivered(fleet) == NUMBERS
    assert fleet.controller.view is not None
    restored = {str(p): seats.restored > 0 for p, seats in fleet.controller.view.partitions.items()}
    assert restored == {"low/0": True, "high/0": False, "high/1": True}


# --- backups ---------------------------------------------------------------------------------------------


def ship(fleet: Fleet) -> None:
    """Let requests be repeated and snapshots be shipped until every copy has its place and all is held."""
    for _ in range(60):
        fleet.fire("ask")
        fleet.fire("ship")
        view = fleet.controller.view
        assert view is not None
        if all(seats.whole for seats in view.partitions.values()) and not kept(fleet):
            return
    raise AssertionError("a backup does not get what it lacks")


def working(fleet: Fleet) -> dict[str, str]:
    """On which node each partition's one active copy sits."""
    assert fleet.controller.view is not None
    seated: dict[str, list[str]] = {}
    for copy, seat in fleet.controller.view.seats.items():
        seated.setdefault(str(copy.partition), []).extend([seat.node] if seat.status is ACTIVE else [])
    assert all(len(nodes) == 1 for nodes in seated.values()), seated
    return {partition: nodes[0] for partition, nodes in seated.items()}


def passive(nodes: str, replicas: int = 2) -> Fleet:
    fleet = Fleet(chain_of(low=1, high=1), replicas, nodes, len(nodes), passive=True)
    ship(fleet)
    return fleet


@pytest.mark.parametrize("replicas", [2, 3])
def test_with_backups_every_row_is_delivered_once_and_kept_until_each_backup_holds_it(replicas: int) -> None:
    fleet = passive("abc", replicas)
    for number in NUMBERS:
        produce(fleet, [number])
        fleet.settle()
    assert delivered(fleet) == NUMBERS
    assert kept(fleet) > 0, "no backup holds it yet"
    ship(fleet)
    assert kept(fleet) == 0


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("steps", range(0, 40, 8))
def test_a_backup_takes_over_and_the_old_node_comes_back_as_a_backup(replicas: int, steps: int) -> None:
    fleet = passive("abc"[:replicas], replicas)
    produce(fleet, NUMBERS[:10])
    fleet.settle()
    fleet.fire("ship")
    produce(fleet, NUMBERS[10:20])
    for _ in range(min(steps, len(fleet.queue))):
        fleet.step()
    victim = working(fleet)["low/0"]
    fleet.kill(victim)
    fleet.settle()
    assert working(fleet)["low/0"] != victim
    fleet.add(victim)
    produce(fleet, NUMBERS[20:])
    ship(fleet)
    assert delivered(fleet) == NUMBERS
    assert victim not in working(fleet).values()
    assert fleet.controller.view is not None
    assert fleet.controller.view.copies_on(victim), "it holds snapshots now"
    assert kept(fleet) == 0


def test_the_active_copies_of_two_neighbours_die_at_once_and_their_backups_fit_together() -> None:
    fleet = passive("abcd")
    produce(fleet, NUMBERS[:10])
    ship(fleet)
    produce(fleet, NUMBERS[10:20])
    fleet.settle()
    fleet.fire("ship")
    produce(fleet, NUMBERS[20:25])
    fleet.settle()
    for victim in set(working(fleet).values()):
        fleet.kill(victim)
    produce(fleet, NUMBERS[25:])
    fleet.settle()
    ship(fleet)
    assert delivered(fleet) == NUMBERS


def test_one_after_the_other_takes_over() -> None:
    fleet = passive("abcd")
    for at in range(3):
        produce(fleet, NUMBERS[at * 10 : at * 10 + 10])
        fleet.settle()
        victim = working(fleet)["high/0"]
        fleet.kill(victim)
        fleet.add(victim)
        ship(fleet)
    assert delivered(fleet) == NUMBERS


def test_a_working_copy_that_an_operator_moves_is_a_backup_there_and_the_wish_has_come_to_its_end() -> None:
    fleet = passive("abc")
    low = Copy(Partition("low"))
    assert fleet.controller.view is not None
    (free,) = set("abc") - {seat.node for seat in fleet.controller.view.partitions[low.partition].seats}
    produce(fleet, NUMBERS[:15])
    fleet.decide(MoveCopy(low, free))
    produce(fleet, NUMBERS[15:])
    ship(fleet)
    assert delivered(fleet) == NUMBERS
    view = fleet.controller.view
    assert (view.seat(low).node, view.seat(low).status) == (free, BACKUP)
    assert dict(view.wanted) == {}


def test_a_source_that_is_silent_holds_back_only_the_segments_that_read_it() -> None:
    shop = Topology({"f": ("clicks",), "g": ("orders",)}, {"f": 1, "g": 1}, {"one": "f", "two": "g"})
    fleet = Fleet(shop, 2, "ab", 2)
    fleet.produce(rows(1), rows(2), source="clicks")
    fleet.settle()
    assert delivered(fleet) == [1, 2]


def test_a_copy_that_an_operator_moves_loses_nothing() -> None:
    fleet = Fleet(chain_of(f=1), 2, "abc", 2)
    produce(fleet, NUMBERS[:15])
    fleet.decide(MoveCopy(Copy(Partition("f"), 0), "c"))
    produce(fleet, NUMBERS[15:])
    catch_up(fleet)
    assert delivered(fleet) == NUMBERS
    assert [seat.node for seat in fleet.controller.view.seats.values()] == ["c", "b"]  # type: ignore[union-attr]


def test_a_suspected_node_that_lives_on_comes_back_as_a_newcomer() -> None:
    fleet = Fleet(chain_of(f=1), 2, "ab", 2)
    produce(fleet, NUMBERS[:15])
    fleet.decide(CopySuspected(Copy(Partition("f"), 1), 1, GATEWAY))
    produce(fleet, NUMBERS[15:])
    catch_up(fleet)
    assert delivered(fleet) == NUMBERS
    assert kept(fleet) == 0


def test_a_process_that_slept_through_views_catches_up_with_the_newest_alone() -> None:
    fleet = Fleet(chain_of(f=1), 3, "abcde", 3)
    produce(fleet, NUMBERS[:10])
    fleet.settle()
    for victim in "ab":
        fleet.kill(victim)
    seen: list[View] = [event.view for name, event in fleet.queue if isinstance(event, ViewSeen)]
    newest = max(view.epoch for view in seen)
    fleet.queue = type(fleet.queue)(
        (name, event)
        for name, event in fleet.queue
        if name != GATEWAY or not isinstance(event, ViewSeen) or event.view.epoch == newest
    )
    catch_up(fleet)
    produce(fleet, NUMBERS[10:])
    fleet.settle()
    assert delivered(fleet) == NUMBERS
