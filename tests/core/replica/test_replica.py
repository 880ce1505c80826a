"""A copy of a partition by exact instructions: work, snapshots, and a newcomer's way."""

from __future__ import annotations

import pytest
from core_kit import ACTIVE, DEAD, STDBY, all_active, assert_rejected, copies, run

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.messages import Ack, Attached, Data, From, Reverse
from understudy.core.edge.outlet import OutletState
from understudy.core.errors import BrokenInvariant
from understudy.core.replica.consumer import Consumer
from understudy.core.replica.events import (
    Ask,
    AskAgainLater,
    Asked,
    AtEdge,
    CaughtUp,
    CopyState,
    DropSnapshot,
    Fetch,
    FetchFailed,
    Installed,
    KeepSnapshot,
    LimitGroups,
    MoveFailed,
    Offer,
    Offered,
    Process,
    Processed,
    Produced,
    Progress,
    SendTo,
    ShipDue,
    SnapshotTaken,
    StandbyGone,
    TakeSnapshot,
)
from understudy.core.replica.producer import Producer
from understudy.core.replica.replica import Replica
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.changes import Activated, Avail, Fail
from understudy.core.view.view import Status

F, BELOW, ABOVE = Partition("f"), Partition("below"), Partition("above")
SOURCE, SINK = Copy(BELOW), Copy(ABOVE)


def copy_of(
    below: dict[int, Status] | None = None,
    above: dict[int, Status] | None = None,
    *,
    replica: int = 1,
    buckets_max: int = 100,
    group_buckets_max: int = 1_000,
) -> Replica:
    consumer = Consumer("c", replica, {BELOW: below or {0: ACTIVE}}, group_buckets_max=group_buckets_max)
    producer = Producer("p", {ABOVE: above or {0: ACTIVE}}, buckets_max=buckets_max)
    return Replica(Copy(F, replica), consumer, producer)


def active(**facts: int) -> Replica:
    """A copy that began empty, attached to its only producer and its only consumer."""
    made = copy_of(**facts)  # type: ignore[arg-type]
    assert made.begin() == []
    assert made.handle(AtEdge(BELOW, Attached(0))) == [SendTo(SOURCE, Reverse(NOTHING))]
    assert made.handle(AtEdge(ABOVE, Attached(0))) == []
    made.handle(AtEdge(ABOVE, From(0, Reverse(NOTHING))))
    return made


def data(*numbers: int) -> AtEdge:
    return AtEdge(BELOW, From(0, Data(run(*numbers))))


def produced(*numbers: int) -> Produced:
    return Produced(((ABOVE, run(*numbers)),))


def group(*numbers: int) -> Process:
    return Process(tuple(Bucket(n, ((BELOW, f"rows of {n}"),), 1) for n in numbers))


# --- work ------------------------------------------------------------------------------------------------


def test_a_copy_acknowledges_a_group_hands_it_out_and_gathers_the_next_meanwhile() -> None:
    made = active()
    assert made.handle(data(1)) == [SendTo(SOURCE, Ack(1)), group(1)]
    assert made.handle(data(2)) == []
    assert made.handle(data(3)) == []
    assert made.handle(produced(1)) == [SendTo(SINK, Data(run(1)))]
    assert made.handle(Processed()) == [SendTo(SOURCE, Ack(3)), group(2, 3)]


def test_a_copy_that_has_not_begun_hands_out_nothing() -> None:
    made = copy_of()
    assert made.begin() == []
    with pytest.raises(BrokenInvariant, match="began twice"):
        made.begin()


def test_a_copy_stands_still_while_its_output_is_full_and_goes_on_with_the_acknowledgement() -> None:
    made = active(buckets_max=1, group_buckets_max=1)
    made.handle(data(1, 2))
    made.handle(produced(1))
    assert made.handle(Processed()) == []
    assert made.handle(AtEdge(ABOVE, From(0, Ack(1)))) == [SendTo(SOURCE, Ack(2)), group(2)]


def test_a_source_takes_no_input_and_a_sink_puts_out_nothing() -> None:
    source = Replica(SOURCE, None, Producer("p", {F: all_active(2)}))
    source.begin()
    for replica in range(2):
        source.handle(AtEdge(F, Attached(replica)))
    assert source.handle(AtEdge(F, From(1, Reverse(0)))) == []
    assert source.handle(Produced(((F, run(1)),))) == [SendTo(Copy(F, 1), Data(run(1)))]
    assert_rejected(source, Processed(), "takes no input")
    sink = Replica(SINK, Consumer("c", None, {F: all_active(2)}, acks_when_processed=True), None)
    sink.begin()
    sink.handle(AtEdge(F, Attached(0)))
    sink.handle(AtEdge(F, From(0, Data(run(1)))))
    assert sink.handle(Processed()) == [SendTo(Copy(F), Ack(1))]
    assert_rejected(sink, Produced(((F, run(1)),)), "puts out nothing")


def test_a_copy_has_neighbours_and_none_of_them_on_both_sides() -> None:
    with pytest.raises(BrokenInvariant, match="has no neighbours"):
        Replica(Copy(F), None, None)
    with pytest.raises(BrokenInvariant, match="both below and above"):
        Replica(Copy(F), Consumer("c", 0, {BELOW: all_active(1)}), Producer("p", {BELOW: all_active(1)}))


# --- lending ---------------------------------------------------------------------------------------------

STANDBY = Copy(F, 0)


def test_a_lender_finishes_its_group_stands_still_for_the_snapshot_and_goes_on() -> None:
    made = active()
    made.handle(data(1))
    assert made.handle(Asked(STANDBY, 5, 1)) == []
    made.handle(data(2))
    made.handle(produced(1))
    assert made.handle(Processed()) == [TakeSnapshot(1)]
    assert made.handle(data(3)) == [], "the engine stands still until its snapshot is taken"
    outlet = OutletState(run(1), 1, NOTHING, ((0, NOTHING),))
    state = CopyState(1, 1, ((ABOVE, outlet),))
    assert made.handle(SnapshotTaken(1)) == [
        KeepSnapshot(state),
        Offer(STANDBY, 5, 1, 1),
        SendTo(SOURCE, Ack(3)),
        group(2, 3),
    ]


def test_a_lender_that_stands_still_takes_its_snapshot_at_once_even_if_its_output_is_full() -> None:
    made = active(buckets_max=1)
    made.handle(data(1))
    made.handle(produced(1))
    made.handle(Processed())
    assert made.handle(Asked(STANDBY, 5, 1)) == [TakeSnapshot(1)]


def test_a_copy_without_state_has_nothing_to_lend_and_is_asked_again() -> None:
    made = copy_of()
    assert made.handle(Asked(STANDBY, 5, 1)) == []
    made.begin()
    assert made.handle(Asked(STANDBY, 5, 1)) == [TakeSnapshot(1)]


def test_a_lender_drops_its_snapshot_when_the_standby_is_gone() -> None:
    made = active()
    made.handle(Asked(STANDBY, 5, 1))
    made.handle(SnapshotTaken(1))
    assert made.handle(StandbyGone(STANDBY)) == [DropSnapshot(1)]


# --- a newcomer ------------------------------------------------------------------------------------------


def borrowed(through: int = 10, version: int = 4) -> CopyState:
    return CopyState(version, through, ((ABOVE, OutletState((), through, through, ((0, through),))),))


def newcomer(below: dict[int, Status] | None = None, above: dict[int, Status] | None = None) -> Replica:
    """A copy with a borrowed state, which holds the input through 10."""
    made = copy_of(below, above)
    assert made.borrow() == [Ask(1), AskAgainLater()]
    assert made.handle(Offered(Copy(F), 1, 4)) == [Fetch(Copy(F), 1, 4)]
    assert made.handle(Installed(1, borrowed())) == []
    return made


def says_caught_up(made: Replica, *events: object) -> bool:
    """Whether the newcomer says, at one of these events, that it has caught up."""
    return any(isinstance(done, CaughtUp) for event in events for done in made.handle(event))


def test_a_newcomer_goes_on_from_its_state_and_its_versions_go_on_rising() -> None:
    made = newcomer()
    assert made.handle(AtEdge(BELOW, Attached(0, 12))) == [
        SendTo(SOURCE, Ack(10)),
        SendTo(SOURCE, Reverse(10)),
    ]
    assert made.handle(data(11)) == [SendTo(SOURCE, Ack(11)), group(11)]
    made.handle(Asked(STANDBY, 9, 1))
    assert made.handle(Processed()) == [TakeSnapshot(5)]


def test_a_newcomer_has_caught_up_once_its_engine_holds_what_its_producers_had_put_out() -> None:
    made = newcomer()
    assert not says_caught_up(made, AtEdge(ABOVE, Attached(0, 10)), AtEdge(BELOW, Attached(0, 12)))
    assert not says_caught_up(made, data(11), Processed())
    assert not says_caught_up(made, data(12)), "its engine has only begun with it"
    assert says_caught_up(made, Processed())
    assert not says_caught_up(made, data(13), Processed()), "it says so once"


def test_the_goal_is_the_furthest_of_its_producers() -> None:
    made = newcomer(below=all_active(3))
    made.handle(AtEdge(ABOVE, Attached(0, 10)))
    for replica, put_out in enumerate((13, 11, 12)):
        assert not says_caught_up(made, AtEdge(BELOW, Attached(replica, put_out)))
    assert not says_caught_up(made, AtEdge(BELOW, From(1, Data(run(11, 12)))), Processed())
    assert says_caught_up(made, AtEdge(BELOW, From(1, Data(run(13)))), Processed())


def test_a_newcomer_that_never_runs_out_of_input_has_caught_up_all_the_same() -> None:
    made = newcomer()
    made.handle(AtEdge(ABOVE, Attached(0, 10)))
    made.handle(AtEdge(BELOW, Attached(0, 11)))
    made.handle(data(11))
    made.handle(data(12))
    assert made.handle(Processed()) == [SendTo(SOURCE, Ack(12)), group(12), CaughtUp()]


@pytest.mark.parametrize("first", [BELOW, ABOVE])
def test_a_newcomer_that_one_active_neighbour_has_not_let_in_has_not_caught_up(first: Partition) -> None:
    made = newcomer()
    second = ABOVE if first == BELOW else BELOW
    assert not says_caught_up(made, AtEdge(first, Attached(0, 10)))
    assert says_caught_up(made, AtEdge(second, Attached(0, 10)))


def test_a_newcomer_waits_for_every_active_copy_of_a_neighbour_and_for_no_other() -> None:
    made = newcomer(above={0: ACTIVE, 1: DEAD, 2: STDBY, 3: ACTIVE})
    assert not says_caught_up(made, AtEdge(BELOW, Attached(0, 10)), AtEdge(ABOVE, Attached(0, 10)))
    assert says_caught_up(made, AtEdge(ABOVE, Attached(3, 10)))


@pytest.mark.parametrize("change", [Fail(1), Activated(1)])
def test_the_question_is_asked_again_when_neighbours_come_and_go(change: Fail | Activated) -> None:
    made = newcomer(above={0: ACTIVE, 1: ACTIVE if isinstance(change, Fail) else STDBY})
    made.handle(AtEdge(BELOW, Attached(0, 11)))
    assert not says_caught_up(made, AtEdge(ABOVE, Attached(0, 10)), AtEdge(ABOVE, change))
    if isinstance(change, Activated):
        assert not says_caught_up(made, data(11), Processed()), "it is active now, and not connected"
        assert says_caught_up(made, AtEdge(ABOVE, Attached(1, 10)))
    else:
        assert says_caught_up(made, data(11), Processed())


def test_a_newcomer_that_the_controller_calls_active_has_nothing_more_to_say() -> None:
    made = newcomer()
    assert made.activated() == []
    assert not says_caught_up(made, AtEdge(ABOVE, Attached(0, 10)), AtEdge(BELOW, Attached(0, 10)))


def test_neighbours_that_changed_while_the_state_was_on_its_way_are_followed() -> None:
    made = copy_of(above={0: ACTIVE, 1: ACTIVE})
    made.borrow()
    made.handle(Offered(Copy(F), 1, 4))
    assert made.handle(AtEdge(ABOVE, Fail(1))) == []
    assert made.handle(AtEdge(ABOVE, Avail(1))) == []
    outlet = OutletState(run(8, 9), 9, 7, ((0, 7),))
    made.handle(Installed(1, CopyState(4, 9, ((ABOVE, outlet),))))
    assert made.above is not None
    assert made.above.outlets[ABOVE].buffer.floor == {0: 7, 1: 7}


# --- a newcomer that gets no further ---------------------------------------------------------------------


def test_a_standby_without_progress_gives_up_at_the_limit() -> None:
    made = copy_of()
    made.borrow()
    assert made.stuck(60_000) == [MoveFailed("its state made no progress for 60 s")]
    assert made.stuck(60_000) is None


def test_every_sign_of_progress_gives_a_standby_another_limit() -> None:
    made = copy_of()
    made.borrow()
    for sign in (Offered(Copy(F), 1, 4), Progress(), Progress()):
        made.handle(sign)
        assert made.stuck(60_000) == []
    assert made.stuck(60_000) == [MoveFailed("its state made no progress for 60 s")]


def test_a_newcomer_whose_engine_does_not_finish_a_group_gives_up_at_the_second_limit() -> None:
    made = newcomer()
    made.handle(AtEdge(BELOW, Attached(0, 12)))
    made.handle(data(11))
    assert made.stuck(60_000) == []
    assert made.stuck(60_000) == [MoveFailed("its engine has done nothing for 60 s", holds_state=True)]


def test_an_engine_that_is_slow_for_each_bucket_gets_short_groups() -> None:
    made = newcomer()
    made.handle(LimitGroups(1))
    made.handle(LimitGroups(2))
    made.handle(AtEdge(BELOW, Attached(0, 19)))
    handed = [each for each in made.handle(data(11, 12, 13)) if isinstance(each, Process)]
    assert [[bucket.number for bucket in each.buckets] for each in handed] == [[11, 12]]


def test_a_newcomer_whose_engine_works_on_a_long_group_is_not_stuck() -> None:
    made = newcomer()
    made.handle(AtEdge(BELOW, Attached(0, 12)))
    made.handle(data(11))
    assert made.stuck(60_000) == []
    for _ in range(3):
        made.handle(Progress())
        assert made.stuck(60_000) == []
    assert made.stuck(60_000) == [MoveFailed("its engine has done nothing for 60 s", holds_state=True)]


def test_a_newcomer_whose_engine_works_or_waits_for_input_is_not_stuck() -> None:
    made = newcomer()
    made.handle(AtEdge(BELOW, Attached(0, 19)))
    for number in range(11, 14):
        made.handle(data(number))
        assert made.stuck(60_000) == []
        made.handle(Processed())
    assert made.stuck(60_000) == made.stuck(60_000) == [], "it waits for its producers"


def test_a_copy_that_is_no_newcomer_is_not_watched() -> None:
    assert active().stuck(60_000) is None


def test_a_state_that_arrives_after_it_was_given_up_is_ignored() -> None:
    made = copy_of()
    made.borrow()
    made.handle(Offered(Copy(F), 1, 4))
    made.stuck(60_000)
    assert made.stuck(60_000) == [MoveFailed("its state made no progress for 60 s")]
    assert made.handle(Installed(1, borrowed())) == []
    assert not made.begun
    assert made.handle(FetchFailed(1, "too late")) == []
    made.check()


def test_a_standby_for_whom_no_lender_is_left_gives_up_once() -> None:
    made = copy_of()
    made.borrow()
    assert made.give_up("no copy holds the state any more") == [
        MoveFailed("no copy holds the state any more")
    ]
    assert made.give_up("again") == []
    assert made.ask_again() == []
    assert newcomer().give_up("it has its state") == []


def test_a_standby_asks_again_until_the_state_is_on_its_way() -> None:
    made = copy_of()
    made.borrow()
    assert made.ask_again() == [Ask(1), AskAgainLater()]
    made.handle(Offered(Copy(F), 1, 4))
    assert made.ask_again() == []
    made.handle(FetchFailed(1, "broken"))
    assert made.ask_again() == [Ask(2), AskAgainLater()]
    assert active().ask_again() == []


def test_a_copy_borrows_once_and_does_not_begin_empty_as_well() -> None:
    made = copy_of()
    made.borrow()
    with pytest.raises(BrokenInvariant, match="cannot borrow"):
        made.borrow()
    with pytest.raises(BrokenInvariant, match="waits for its state"):
        made.begin()
    assert not made.begun
    with pytest.raises(BrokenInvariant, match="cannot borrow"):
        active().borrow()


def test_every_end_of_a_copy_is_found_by_its_neighbour() -> None:
    made = active()
    assert set(made.ends) == {BELOW, ABOVE}
    assert made.end_towards(BELOW) is made.ends[BELOW]
    assert made.end_towards(ABOVE) is made.ends[ABOVE]
    assert made.end_towards(Partition("other")) is None
    assert copies("f", 2)[1] == made.copy


# --- backups ---------------------------------------------------------------------------------------------


def test_a_copy_ships_between_two_groups_when_the_time_has_come_and_goes_on_afterwards() -> None:
    made = active()
    made.lending.paced, made.lending.ship_due = True, False
    made.handle(data(1))
    assert made.handle(Asked(Copy(F, 0), 4, 2, NOTHING)) == []
    assert made.handle(ShipDue()) == [], "the engine works"
    made.handle(data(2))
    assert made.handle(Processed()) == [TakeSnapshot(1)]
    kept = CopyState(1, 1, ((ABOVE, OutletState((), NOTHING, NOTHING, ((0, NOTHING),))),))
    assert made.handle(SnapshotTaken(1)) == [
        KeepSnapshot(kept),
        Offer(Copy(F, 0), 4, 2, 1),
        SendTo(SOURCE, Ack(2)),
        group(2),
    ]


def test_a_copy_that_rests_with_all_that_its_backup_holds_ships_nothing() -> None:
    made = active()
    made.lending.paced = True
    assert made.handle(Asked(Copy(F, 0), 4, 2, NOTHING)) == []
    assert made.handle(ShipDue()) == []
