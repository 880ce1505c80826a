"""Layouts and the controller of a partitioned flow."""

from __future__ import annotations

from random import Random

import pytest

from understudy.core.controller import MemberJoined, MemberLeft
from understudy.core.errors import PeerError
from understudy.core.flux_controller import (
    CopyCaughtUp,
    CopyMoveFailed,
    CopySuspected,
    Declined,
    Drain,
    FluxController,
    FluxView,
    MoveCopy,
    PublishFlux,
)
from understudy.core.layout import LayoutError, chained, check_layout, levels_of
from understudy.core.partition import Copy, Partition
from understudy.core.view import Slot, Status

PRIM, SEC = Slot.PRIM, Slot.SEC
LEVELS = levels_of({"sessions": 4, "stats": 4})
NODES = ["a", "b", "c", "d"]


def controller(*more: str) -> FluxController:
    """Four nodes hold everything; the others have come after them."""
    made = FluxController(LEVELS, nodes_wanted=4)
    for order, node in enumerate([*NODES, *more]):
        made.handle(MemberJoined(node, order))
    return made


def statuses(made: FluxController, status: Status) -> list[Copy]:
    assert made.view is not None
    return [
        Copy(partition, slot)
        for partition, view in made.view.partitions.items()
        for slot, seat in view.seats.items()
        if seat.status is status
    ]


def catch_up(made: FluxController) -> None:
    """All standbys there are now catch up."""
    assert made.view is not None
    for copy in statuses(made, Status.STDBY):
        made.handle(CopyCaughtUp(copy, made.view.seat(copy).epoch))


def test_each_secondary_sits_one_node_further_than_its_primary() -> None:
    layout = chained(LEVELS, NODES)
    assert [layout[Copy(Partition("stats", i), PRIM)] for i in range(4)] == NODES
    assert [layout[Copy(Partition("stats", i), SEC)] for i in range(4)] == ["b", "c", "d", "a"]
    check_layout(layout, LEVELS, NODES)


def test_a_layout_that_one_loss_could_destroy_is_refused() -> None:
    layout = chained(LEVELS, NODES)
    copy = Copy(Partition("stats", 2), SEC)
    with pytest.raises(LayoutError, match="both copies of stats/2 are to sit on 'c'"):
        check_layout({**layout, copy: "c"}, LEVELS, NODES)
    with pytest.raises(LayoutError, match="'z', which is not there"):
        check_layout({**layout, copy: "z"}, LEVELS, NODES)
    with pytest.raises(LayoutError, match="stats/2:SEC has no node"):
        check_layout({c: n for c, n in layout.items() if c != copy}, LEVELS, NODES)
    with pytest.raises(LayoutError, match="at least 2 nodes"):
        chained(LEVELS, ["a"])
    with pytest.raises(LayoutError, match="at least one partition"):
        levels_of({"stats": 0})


def test_a_lost_node_costs_its_seats_in_one_view_and_the_lowest_level_recovers_first() -> None:
    made = controller("e")
    done = made.handle(MemberLeft("b"))
    dead, standbys = (each.view for each in done if isinstance(each, PublishFlux))
    assert [c for c in dead.copies_on("a") if dead.seat(c.other).status is Status.DEAD]
    assert {copy.partition.fragment for copy in statuses(made, Status.STDBY)} == {"sessions"}
    assert all(standbys.seat(copy).node == "e" for copy in statuses(made, Status.STDBY))
    catch_up(made)
    assert {copy.partition.fragment for copy in statuses(made, Status.STDBY)} == {"stats"}
    catch_up(made)
    assert len(statuses(made, Status.ACTIVE)) == 16


def test_without_a_free_node_the_others_take_the_seats_but_never_both_copies() -> None:
    made = controller()
    made.handle(MemberLeft("b"))
    catch_up(made)
    catch_up(made)
    assert made.view is not None
    for view in made.view.partitions.values():
        nodes = [seat.node for seat in view.seats.values() if seat.alive]
        assert len(nodes) == len(set(nodes)) == 2


def test_a_partition_without_a_copy_is_lost_for_good() -> None:
    made = controller()
    made.handle(MemberLeft("b"))
    made.handle(MemberLeft("c"))
    assert made.view is not None
    assert made.view.lost is not None
    assert made.handle(MemberJoined("e", 9)) == []


def test_a_suspicion_does_not_bury_the_last_copy() -> None:
    made = controller("e")
    assert made.view is not None
    copy = Copy(Partition("stats", 0), PRIM)
    made.handle(CopySuspected(copy, 1, "somebody"))
    assert made.view.seat(copy).epoch > 1
    before = made.view
    made.handle(CopySuspected(copy.other, 1, "somebody"))
    assert made.view == before


def test_word_about_a_former_occupant_changes_nothing() -> None:
    made = controller("e", "f")
    made.handle(MemberLeft("b"))
    before = made.view
    for copy in statuses(made, Status.STDBY):
        assert made.handle(CopyCaughtUp(copy, 1)) == []
        assert made.handle(CopyMoveFailed(copy, 1)) == []
    assert made.view == before


def test_a_copy_is_moved_by_way_of_a_standby() -> None:
    made = controller("e")
    copy = Copy(Partition("sessions", 1), SEC)
    made.handle(MoveCopy(copy, "e"))
    assert made.view is not None
    assert (made.view.seat(copy).node, made.view.seat(copy).status) == ("e", Status.STDBY)
    catch_up(made)
    assert made.view.seat(copy).status is Status.ACTIVE


@pytest.mark.parametrize(
    ("copy", "node", "why"),
    [
        (Copy(Partition("sessions", 1), SEC), "z", "z is not there"),
        (Copy(Partition("sessions", 1), SEC), "b", "holds the other copy"),
        (Copy(Partition("sessions", 1), SEC), "c", "sits on c already"),
        (Copy(Partition("nothing", 0), SEC), "a", "no partition nothing/0"),
    ],
)
def test_a_move_that_makes_no_sense_is_declined(copy: Copy, node: str, why: str) -> None:
    made = controller("e")
    (declined,) = made.handle(MoveCopy(copy, node))
    assert isinstance(declined, Declined)
    assert why in declined.why


def test_a_drained_node_ends_up_empty_and_every_partition_keeps_an_active_copy() -> None:
    made = controller("e")
    made.handle(Drain("a"))
    for _ in range(20):
        assert made.view is not None
        for view in made.view.partitions.values():
            assert any(seat.status is Status.ACTIVE for seat in view.seats.values())
        if not statuses(made, Status.STDBY):
            break
        catch_up(made)
    assert made.view is not None
    assert made.view.copies_on("a") == []
    assert len(statuses(made, Status.ACTIVE)) == 16


def test_a_view_survives_its_journey_as_text() -> None:
    made = controller("e")
    made.handle(MemberLeft("c"))
    assert made.view is not None
    assert FluxView.from_json(made.view.to_json()) == made.view
    with pytest.raises(PeerError, match="not a view"):
        FluxView.from_json('{"epoch": 3}')


def test_no_sequence_of_events_breaks_an_invariant() -> None:
    for seed in range(40):
        random = Random(seed)
        made = controller(*"efgh")
        joined = 20
        for _ in range(60):
            assert made.view is not None
            waiting = statuses(made, Status.STDBY)
            copy = Copy(
                Partition(random.choice(["sessions", "stats"]), random.randrange(4)), random.choice([*Slot])
            )
            joined += 1
            event = random.choice(
                [
                    MemberJoined(f"n{joined}", joined),
                    MemberLeft(random.choice([*made.members, "nobody"])),
                    CopySuspected(copy, made.view.seat(copy).epoch, "x"),
                    MoveCopy(copy, random.choice([*made.members, "nobody"])),
                    Drain(random.choice([*made.members, "nobody"])),
                    *[CopyCaughtUp(each, made.view.seat(each).epoch) for each in waiting],
                    *[CopyMoveFailed(each, made.view.seat(each).epoch) for each in waiting],
                ]
            )
            epochs = [each.view.epoch for each in made.handle(event) if isinstance(each, PublishFlux)]
            assert epochs == sorted(set(epochs))
            levels = {each.partition.fragment for each in statuses(made, Status.STDBY)}
            assert len(levels) <= 1, "two levels catch up at once"
            if made.view.lost:
                break
