"""The controller of a partitioned flow."""

from __future__ import annotations

import copy as copying
import pickle
from random import Random

import pytest

from understudy.core.controller import MemberJoined, MemberLeft
from understudy.core.errors import BrokenInvariant, PeerError
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
    Undrain,
)
from understudy.core.partition import Copy, Partition
from understudy.core.topology import chain_of
from understudy.core.view import Slot, Status

PRIM, SEC = Slot.PRIM, Slot.SEC
SHAPE = chain_of(sessions=4, stats=4)
NODES = ["a", "b", "c", "d"]


def controller(*more: str, whole: bool = False) -> FluxController:
    """Four nodes hold everything; the others have come after them."""
    made = FluxController(SHAPE, nodes_wanted=4, whole=whole)
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


def successor(of: FluxController) -> FluxController:
    """A new leader, with nothing but the stored view and the members."""
    assert of.view is not None
    made = FluxController(SHAPE, 4, FluxView.from_json(of.view.to_json()))
    for node in of.members_in_order:
        made.handle(MemberJoined(node, of.members[node]))
    return made


def seat_of(made: FluxController, copy: Copy) -> tuple[str, Status]:
    assert made.view is not None
    seat = made.view.seat(copy)
    return seat.node, seat.status


def all_catch_up(made: FluxController) -> None:
    for _ in range(40):
        assert made.view is not None
        for view in made.view.partitions.values():
            assert any(seat.status is Status.ACTIVE for seat in view.seats.values())
        if not statuses(made, Status.STDBY):
            return
        catch_up(made)
    raise AssertionError("there is no end to it")


MOVED = Copy(Partition("sessions", 1), SEC)


def test_a_move_is_a_view_of_its_own_and_is_forgotten_when_the_copy_is_active_there() -> None:
    made = controller("e")
    wished, dead, seated = (each.view for each in made.handle(MoveCopy(MOVED, "e")))
    assert wished.wanted == dead.wanted == seated.wanted == {MOVED: "e"}
    assert [view.seat(MOVED).status for view in (wished, dead, seated)] == [
        Status.ACTIVE,
        Status.DEAD,
        Status.STDBY,
    ]
    catch_up(made)
    assert made.view is not None
    assert made.view.wanted == {}
    assert seat_of(made, MOVED) == ("e", Status.ACTIVE)


def test_a_move_goes_where_it_was_wished_although_another_node_is_empty() -> None:
    made = controller("e")
    made.handle(MoveCopy(MOVED, "d"))
    assert seat_of(made, MOVED) == ("d", Status.STDBY)


def test_a_move_that_is_said_twice_is_one_move() -> None:
    made = controller("e")
    made.handle(MoveCopy(MOVED, "e"))
    assert made.handle(MoveCopy(MOVED, "e")) == []


def test_a_copy_keeps_its_seat_until_its_move_has_its_turn() -> None:
    made = controller("e", "f")
    made.handle(MemberLeft("d"))
    upper = Copy(Partition("stats", 1), SEC)
    (wished,) = made.handle(MoveCopy(upper, "f"))
    assert isinstance(wished, PublishFlux)
    assert seat_of(made, upper) == ("c", Status.ACTIVE)
    all_catch_up(made)
    assert seat_of(made, upper) == ("f", Status.ACTIVE)


def test_a_new_leader_goes_on_with_what_an_operator_wished() -> None:
    made = controller("e", "f")
    made.handle(MemberLeft("d"))
    upper = Copy(Partition("stats", 1), SEC)
    made.handle(MoveCopy(upper, "f"))
    made.handle(Drain("a"))
    made = successor(made)
    assert made.view is not None
    assert (made.view.wanted, made.view.drained) == ({upper: "f"}, {"a"})
    all_catch_up(made)
    assert seat_of(made, upper) == ("f", Status.ACTIVE)
    assert made.view.copies_on("a") == []


def test_a_new_leader_seats_nobody_before_it_knows_who_of_the_view_is_there() -> None:
    dead = controller().handle(MemberLeft("d"))[0]
    assert isinstance(dead, PublishFlux)
    made = FluxController(SHAPE, 4, dead.view)
    for order, node in enumerate(["e", "a", "b"]):
        assert made.handle(MemberJoined(node, order)) == []
    assert made.handle(MemberJoined("c", 9))
    assert {made.view.seat(copy).node for copy in statuses(made, Status.STDBY)} == {"e"}


@pytest.mark.parametrize("event", [MemberLeft("e"), Drain("e")], ids=["left", "drained"])
def test_a_wish_ends_when_its_node_cannot_have_the_copy_any_more(event: MemberLeft | Drain) -> None:
    made = controller("e")
    made.handle(MoveCopy(MOVED, "e"))
    made.handle(event)
    assert made.view is not None
    assert made.view.wanted == {}
    all_catch_up(made)
    assert seat_of(made, MOVED)[0] != "e"


def test_a_wish_ends_when_it_was_tried_and_failed() -> None:
    made = controller("e")
    made.handle(MoveCopy(MOVED, "e"))
    assert made.view is not None
    made.handle(CopyMoveFailed(MOVED, made.view.seat(MOVED).epoch))
    assert made.view.wanted == {}
    node, status = seat_of(made, MOVED)
    assert node not in ("b", "e")
    assert status is Status.STDBY


def test_a_wish_ends_when_the_node_has_got_the_other_copy() -> None:
    made = controller("e")
    made.handle(MemberLeft("d"))
    upper = Copy(Partition("stats", 1), PRIM)
    made.handle(MoveCopy(upper, "e"))
    assert made.view is not None
    assert made.view.wanted == {upper: "e"}
    made.handle(CopySuspected(upper.other, 1, "somebody"))
    all_catch_up(made)
    assert seat_of(made, upper.other) == ("e", Status.ACTIVE)
    assert made.view.wanted == {}
    assert seat_of(made, upper) == ("b", Status.ACTIVE)


def test_a_node_that_was_suspected_gets_the_seat_back_only_if_there_is_no_other() -> None:
    lonely = FluxController(chain_of(f=1), 2)
    lonely.handle(MemberJoined("a", 1))
    lonely.handle(MemberJoined("b", 2))
    copy = Copy(Partition("f"), SEC)
    lonely.handle(CopySuspected(copy, 1, "somebody"))
    assert lonely.view is not None
    again = lonely.view.seat(copy)
    assert (again.node, again.status) == ("b", Status.STDBY)
    assert again.epoch > 1
    assert not lonely.view.holds(copy, "b", 1)
    lonely.handle(MemberJoined("c", 3))
    lonely.handle(CopySuspected(copy, again.epoch, "somebody"))
    assert lonely.view.seat(copy).node == "c"


def test_a_node_that_left_and_came_back_under_its_name_can_be_seated_again() -> None:
    made = controller()
    made.handle(MemberLeft("b"))
    all_catch_up(made)
    made.handle(MemberJoined("b", 9))
    made.handle(MemberLeft("d"))
    all_catch_up(made)
    assert made.view is not None
    assert made.view.copies_on("b")


def test_a_drain_that_is_taken_back_or_whose_node_left_is_forgotten() -> None:
    made = controller("e", "f")
    (drained,) = made.handle(Drain("e"))
    assert isinstance(drained, PublishFlux)
    assert drained.view.drained == {"e"}
    assert made.handle(Drain("e")) == []
    made.handle(Undrain("e"))
    made.handle(Drain("f"))
    made.handle(MemberLeft("f"))
    assert made.view is not None
    assert made.view.drained == set()
    (declined,) = made.handle(Undrain("e"))
    assert isinstance(declined, Declined)
    assert "e is not being drained" in declined.why


def test_a_drain_that_nobody_could_make_room_for_is_declined() -> None:
    made = FluxController(chain_of(f=2), 2)
    (early,) = made.handle(Drain("a"))
    assert isinstance(early, Declined)
    made.handle(MemberJoined("a", 1))
    made.handle(MemberJoined("b", 2))
    (declined,) = made.handle(Drain("a"))
    assert isinstance(declined, Declined)
    assert "no other node can take f/0:PRIM" in declined.why


def test_without_a_word_the_copy_on_the_fuller_node_is_moved() -> None:
    made = controller("e")
    assert made.view is not None
    made.handle(MoveCopy(MOVED, "e"))
    catch_up(made)
    # b has four copies, e has one.
    assert made.view.copy_on_fuller_node(MOVED.partition) == MOVED.other
    made.handle(CopySuspected(MOVED, made.view.seat(MOVED).epoch, "x"))
    assert made.view.copy_on_fuller_node(MOVED.partition) == MOVED


@pytest.mark.parametrize("event", [MemberLeft("b"), CopySuspected(Copy(Partition("stats", 1), PRIM), 1, "x")])
def test_one_loss_costs_a_cluster_pair_a_whole_dataflow(event: MemberLeft | CopySuspected) -> None:
    made = controller("e", whole=True)
    (published,) = made.handle(event)
    assert isinstance(published, PublishFlux)
    assert {copy.slot for copy in statuses(made, Status.DEAD)} == {PRIM}
    assert {copy.slot for copy in statuses(made, Status.ACTIVE)} == {SEC}
    assert len(statuses(made, Status.DEAD)) == 8
    assert published.view.nodes_alive == ("c", "d")
    assert made.handle(MemberJoined("f", 9)) == []


def test_a_cluster_pair_is_lost_with_its_second_half_and_only_then() -> None:
    made = controller("e", whole=True)
    made.handle(MemberLeft("b"))
    made.handle(MemberLeft("a"))
    assert made.view is not None
    assert made.view.lost is None
    made.handle(CopySuspected(Copy(Partition("stats", 1), SEC), 1, "x"))
    assert made.view.lost is None, "a suspicion does not bury the last dataflow"
    made.handle(MemberLeft("d"))
    assert made.view.lost is not None
    assert statuses(made, Status.ACTIVE) == []


@pytest.mark.parametrize("event", [MoveCopy(MOVED, "e"), Drain("a")])
def test_nothing_of_a_cluster_pair_is_moved(event: MoveCopy | Drain) -> None:
    made = controller("e", whole=True)
    (declined,) = made.handle(event)
    assert isinstance(declined, Declined)
    assert "cluster pairs" in declined.why


def test_a_stored_view_of_another_flow_is_refused() -> None:
    made = controller()
    with pytest.raises(BrokenInvariant, match="other partitions"):
        FluxController(chain_of(sessions=3, stats=4), 4, made.view)


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
    made.handle(MoveCopy(Copy(Partition("stats", 0), PRIM), "e"))
    made.handle(Drain("a"))
    assert made.view.wanted
    assert made.view.drained
    assert FluxView.from_json(made.view.to_json()) == made.view
    assert copying.deepcopy(made.view) == pickle.loads(pickle.dumps(made.view)) == made.view
    with pytest.raises(PeerError, match="not a view"):
        FluxView.from_json('{"epoch": 3}')


def test_of_a_view_one_can_tell_what_has_changed_since_another() -> None:
    made = controller("e")
    assert made.view is not None
    first = made.view
    made.handle(MemberLeft("c"))
    made.handle(Drain("a"))
    changed = made.view.to_json(since=first)
    assert FluxView.from_json(changed, {first.epoch: first}) == made.view
    assert len(changed) < len(made.view.to_json()) / 1.5
    assert FluxView.from_json(made.view.to_json(since=made.view), {made.view.epoch: made.view}) == made.view
    with pytest.raises(PeerError, match="not a view"):
        FluxView.from_json(changed, {made.view.epoch: made.view})


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
                    Undrain(random.choice([*made.members, "nobody"])),
                    *[CopyCaughtUp(each, made.view.seat(each).epoch) for each in waiting],
                    *[CopyMoveFailed(each, made.view.seat(each).epoch) for each in waiting],
                ]
            )
            if random.random() < 0.1:
                made = successor(made)
                assert made.view is not None
            before = made.view
            epochs = [each.view.epoch for each in made.handle(event) if isinstance(each, PublishFlux)]
            assert epochs == sorted(set(epochs))
            changed = made.view.to_json(since=before)
            assert FluxView.from_json(changed, {before.epoch: before}) == made.view
            levels = {each.partition.fragment for each in statuses(made, Status.STDBY)}
            assert len(levels) <= 1, "two levels catch up at once"
            for view in made.view.partitions.values():
                alive = [seat.node for seat in view.seats.values() if seat.alive]
                assert len(alive) == len(set(alive))
            assert set(made.view.nodes_named) <= made.members.keys()
            if made.view.lost:
                break
