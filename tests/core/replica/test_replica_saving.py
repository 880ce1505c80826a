"""A copy that saves its state in a store, or begins with a state from there, by exact instructions."""

from __future__ import annotations

import pytest
from core_kit import all_active, assert_rejected, run

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.messages import Ack, Attached, Data, From, Held, Reverse
from understudy.core.edge.outlet import OutletState
from understudy.core.replica.consumer import Consumer
from understudy.core.replica.events import (
    Asked,
    AtEdge,
    CopyState,
    DropSnapshot,
    KeepSnapshot,
    Offer,
    Process,
    Processed,
    Produced,
    Saved,
    SaveDue,
    SaveFailed,
    SaveSnapshot,
    SendTo,
    SnapshotTaken,
    TakeSnapshot,
)
from understudy.core.replica.producer import Producer
from understudy.core.replica.replica import Replica
from understudy.core.shape.partition import STORE, Copy, Partition

F, BELOW, ABOVE = Partition("f"), Partition("below"), Partition("above")
SOURCE, CONSUMER = Copy(BELOW), Copy(ABOVE)


def copy_of(*, save_bytes_max: int = 0, buckets_max: int = 100) -> Replica:
    consumer = Consumer("c", 0, {BELOW: all_active(1)}, group_buckets_max=1)
    producer = Producer("p", {ABOVE: all_active(1)}, stored=(ABOVE,), buckets_max=buckets_max)
    made = Replica(Copy(F), consumer, producer, save_bytes_max=save_bytes_max)
    made.saves = True
    return made


def working(*taken: int, **facts: int) -> Replica:
    """The copy that saves its partition's state; it has taken and put out this much, and stands still."""
    made = copy_of(**facts)
    made.begin()
    made.handle(AtEdge(BELOW, Attached(0)))
    made.handle(AtEdge(ABOVE, Attached(0)))
    for number in taken:
        work(made, number)
    return made


def work(made: Replica, number: int) -> list[object]:
    """The copy takes a bucket, puts it out, and its consumer acknowledges it."""
    done = list(made.handle(AtEdge(BELOW, From(0, Data(run(number))))))
    made.handle(Produced(((ABOVE, run(number)),)))
    done += made.handle(Processed())
    done += made.handle(AtEdge(ABOVE, From(0, Ack(number))))
    return done


def group(number: int) -> Process:
    return Process((Bucket(number, ((BELOW, f"rows of {number}"),), 1),))


def state(version: int, through: int, *kept: int) -> CopyState:
    outlet = OutletState(run(*kept), through, NOTHING, ((0, through), (STORE, NOTHING)))
    return CopyState(version, through, ((ABOVE, outlet),))


# --- saving ----------------------------------------------------------------------------------------------


def test_a_copy_takes_a_snapshot_saves_it_and_tells_its_producers_what_the_store_holds() -> None:
    made = working(1, 2)
    assert made.handle(SaveDue()) == [TakeSnapshot(1)]
    assert made.handle(SnapshotTaken(1)) == [KeepSnapshot(state(1, 2, 1, 2)), SaveSnapshot(1)]
    assert made.handle(Saved(1, 2)) == [DropSnapshot(1), SendTo(SOURCE, Held(2))]


def test_a_copy_that_works_saves_its_state_when_it_stands_still_and_goes_on_at_once() -> None:
    made = working(1)
    made.handle(AtEdge(BELOW, From(0, Data(run(2, 3)))))
    assert made.handle(SaveDue()) == []
    made.handle(Produced(((ABOVE, run(2)),)))
    assert made.handle(Processed()) == [TakeSnapshot(1)]
    assert made.handle(SnapshotTaken(1))[-2:] == [SendTo(SOURCE, Ack(3)), group(3)]


def test_a_copy_saves_until_the_oldest_snapshot_of_the_store_holds_all_that_it_has() -> None:
    made = working(1)
    made.handle(SaveDue())
    made.handle(SnapshotTaken(1))
    made.handle(Saved(1, NOTHING))
    assert made.worth_saving
    assert made.handle(SaveDue()) == [TakeSnapshot(2)]
    made.handle(SnapshotTaken(2))
    made.handle(Saved(2, 1))
    assert not made.worth_saving
    assert made.handle(SaveDue()) == []
    work(made, 2)
    assert made.handle(SaveDue()) == [TakeSnapshot(3)]


def test_a_save_that_failed_says_nothing_of_the_store_and_is_tried_when_the_time_comes_again() -> None:
    made = working(1)
    made.handle(SaveDue())
    made.handle(SnapshotTaken(1))
    assert made.handle(SaveFailed(1, "the disk is full")) == [DropSnapshot(1)]
    assert made.handle(SaveDue()) == [TakeSnapshot(2)]


def test_only_the_copy_that_is_to_save_does_and_only_with_its_state() -> None:
    made = working(1)
    made.saves = False
    assert made.handle(SaveDue()) == []
    empty = copy_of()
    assert empty.handle(SaveDue()) == []
    assert not empty.worth_saving


def test_a_snapshot_is_saved_and_lent_at_once() -> None:
    made = working(1)
    made.handle(AtEdge(BELOW, From(0, Data(run(2)))))
    made.handle(SaveDue())
    made.handle(Asked(Copy(F, 1), 5, 1))
    made.handle(Produced(((ABOVE, run(2)),)))
    made.handle(Processed())
    done = made.handle(SnapshotTaken(1))
    assert done[1:] == [SaveSnapshot(1), Offer(Copy(F, 1), 5, 1, 1)]


def test_a_state_with_a_gap_is_not_saved_and_the_next_one_may_be() -> None:
    made = working(1, 2, buckets_max=1)
    made.handle(SaveDue())
    assert made.handle(SnapshotTaken(1)) == [DropSnapshot(1)]
    made.handle(AtEdge(ABOVE, From(0, Held(1))))
    made.handle(SaveDue())
    assert SaveSnapshot(2) in made.handle(SnapshotTaken(2))


def test_a_copy_saves_by_itself_when_it_has_taken_enough_input() -> None:
    made = working(1, 2, save_bytes_max=2)
    assert TakeSnapshot(1) in work(made, 3)
    made.handle(SnapshotTaken(1))
    made.handle(Saved(1, NOTHING))
    assert TakeSnapshot(2) not in [*work(made, 4), *work(made, 5)]
    assert TakeSnapshot(2) in work(made, 6)


def test_by_the_clock_alone_no_input_is_enough() -> None:
    made = working(save_bytes_max=0)
    assert all(TakeSnapshot(1) not in work(made, number) for number in range(1, 50))


def test_what_the_store_holds_is_repeated_to_a_producer_that_is_connected_again() -> None:
    made = working(1)
    made.handle(SaveDue())
    made.handle(SnapshotTaken(1))
    made.handle(Saved(1, 1))
    assert made.handle(AtEdge(BELOW, Attached(0))) == [
        SendTo(SOURCE, Ack(1)),
        SendTo(SOURCE, Held(1)),
        SendTo(SOURCE, Reverse(1)),
    ]


@pytest.mark.parametrize("event", [Saved(1, 9), Saved(2, 9), SaveFailed(2, "x")])
def test_an_answer_of_the_store_to_no_save_leaves_no_trace(event: object) -> None:
    made = working(1)
    if event != Saved(1, 9):
        made.handle(SaveDue())
        made.handle(SnapshotTaken(1))
    assert_rejected(made, event, "was not to be saved")


# --- beginning again -------------------------------------------------------------------------------------


def test_a_copy_begins_with_a_saved_state_and_goes_on_after_its_number() -> None:
    made = copy_of()
    assert made.begin(state(4, 7, 6, 7)) == []
    assert made.handle(AtEdge(BELOW, Attached(0, 9))) == [SendTo(SOURCE, Ack(7)), SendTo(SOURCE, Reverse(7))]
    assert made.handle(AtEdge(BELOW, From(0, Data(run(8))))) == [SendTo(SOURCE, Ack(8)), group(8)]


def test_a_copy_that_began_with_a_saved_state_has_its_output_and_believes_it_of_no_replica() -> None:
    made = copy_of()
    made.begin(state(4, 7, 6, 7))
    made.handle(AtEdge(ABOVE, Attached(0, 5)))
    assert made.handle(AtEdge(ABOVE, From(0, Reverse(5)))) == [SendTo(CONSUMER, Data(run(6, 7)))]


def test_a_copy_that_began_with_a_saved_state_is_no_newcomer_and_its_versions_go_on_rising() -> None:
    made = copy_of()
    made.begin(state(4, 7, 6, 7))
    assert not made.catching_up
    assert made.handle(SaveDue()) == [TakeSnapshot(5)]
