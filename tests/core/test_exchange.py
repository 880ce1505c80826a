"""The two ends of an exchange and the merge between them, by exact instructions."""

from __future__ import annotations

import pytest

from understudy.core.bucket import Bucket
from understudy.core.errors import PeerError
from understudy.core.exchange import Edge
from understudy.core.inlet import Inlet
from understudy.core.instructions import CaughtUp, FoldedIn, Send, Take
from understudy.core.merge import Merge
from understudy.core.messages import (
    Ack,
    Attached,
    CSync,
    Data,
    Detached,
    Folded,
    From,
    Message,
    OutletState,
    PartitionState,
    Pause,
    Paused,
    Processed,
    Produced,
    PSync,
    Reverse,
    Taken,
)
from understudy.core.outlet import Outlet
from understudy.core.partition import Copy, Partition
from understudy.core.partition_replica import PartitionReplica
from understudy.core.topology import EGRESS, INGRESS
from understudy.core.view import Avail, Fail, Slot, Status

PRIM, SEC = Slot.PRIM, Slot.SEC
BOTH = {PRIM: Status.ACTIVE, SEC: Status.ACTIVE}


def bucket(number: int) -> Bucket:
    return Bucket(number, f"rows of {number}", 1)


def kept(outlet: Outlet) -> list[int]:
    return [each.number for each in outlet.buffer]


def outlet_with(*numbers: int) -> Outlet:
    """Both consumers are there, the primary one takes data, and this much is produced."""
    outlet = Outlet("outlet", BOTH)
    for slot in (PRIM, SEC):
        outlet.handle(Attached(slot))
    outlet.handle(From(PRIM, Reverse(0)))
    for number in numbers:
        outlet.handle(Produced(bucket(number)))
    return outlet


# --- outlet ----------------------------------------------------------------------------------------------


def test_an_outlet_sends_to_the_one_that_asked_and_keeps_until_both_have_it() -> None:
    outlet = outlet_with(1)
    assert outlet.handle(Produced(bucket(2))) == [Send(PRIM, Data(bucket(2)))]
    outlet.handle(From(PRIM, Ack(2)))
    assert kept(outlet) == [1, 2]
    outlet.handle(From(SEC, Ack(1)))
    assert kept(outlet) == [2]


def test_a_consumer_whose_own_producer_died_is_sent_the_rest_and_nothing_twice() -> None:
    outlet = outlet_with(1, 2, 3)
    outlet.handle(From(SEC, Ack(1)))
    assert outlet.handle(From(SEC, Reverse(2))) == [Send(SEC, Data(bucket(3)))]


def test_a_dead_consumer_is_no_longer_waited_for() -> None:
    outlet = outlet_with(1, 2)
    outlet.handle(From(PRIM, Ack(1)))
    outlet.handle(Fail(SEC))
    assert kept(outlet) == [2]


def test_what_the_dead_one_acknowledged_ahead_is_forgotten() -> None:
    outlet = outlet_with(1)
    outlet.handle(From(SEC, Ack(9)))
    outlet.handle(Fail(SEC))
    outlet.handle(Avail(SEC))
    outlet.handle(From(PRIM, CSync(1, 0)))
    outlet.handle(Attached(SEC, 0, 1, 0))
    outlet.handle(From(SEC, CSync(1, 0)))
    outlet.handle(Produced(bucket(2)))
    assert outlet.handle(From(SEC, Reverse(0))) == [Send(SEC, Data(bucket(1))), Send(SEC, Data(bucket(2)))]


@pytest.mark.parametrize("active_first", [True, False])
def test_a_newcomer_is_sent_nothing_before_both_have_named_its_checkpoint(active_first: bool) -> None:
    outlet = outlet_with(1, 2, 3)
    outlet.handle(Fail(SEC))
    outlet.handle(Avail(SEC))
    outlet.handle(Attached(SEC, 1, 1, 1))
    said = {PRIM: From(PRIM, CSync(1, 1)), SEC: From(SEC, CSync(1, 1))}
    order = (PRIM, SEC) if active_first else (SEC, PRIM)
    if active_first:
        outlet.handle(said[PRIM])
        outlet.handle(From(PRIM, Ack(3)))
        assert kept(outlet) == [2, 3], "kept for the newcomer"
    assert outlet.handle(From(SEC, Reverse(1))) == []
    done = [each for slot in order for each in outlet.handle(said[slot])]
    assert done[0] == FoldedIn(SEC)
    assert done[1:] == [Send(SEC, Data(bucket(2))), Send(SEC, Data(bucket(3)))]


def test_the_buffer_of_a_producer_moves_with_its_marks_to_its_standby() -> None:
    outlet = outlet_with(1, 2, 3)
    outlet.handle(From(PRIM, Ack(2)))
    outlet.handle(From(SEC, Ack(1)))
    newcomer = Outlet("newcomer", BOTH)
    newcomer.install(outlet.state())
    assert kept(newcomer) == [2, 3]
    newcomer.handle(Attached(SEC, 1))
    assert newcomer.handle(From(SEC, Reverse(1))) == [Send(SEC, Data(bucket(2))), Send(SEC, Data(bucket(3)))]
    newcomer.handle(From(SEC, Ack(2)))
    assert kept(newcomer) == [3], "the other one's mark moved too"


def test_an_outlet_refuses_to_send_again_what_was_acknowledged() -> None:
    outlet = outlet_with(1, 2, 3)
    outlet.handle(From(SEC, Ack(2)))
    with pytest.raises(PeerError, match="has acknowledged 2"):
        outlet.handle(From(SEC, Reverse(1)))


# --- inlet -----------------------------------------------------------------------------------------------


def inlet() -> Inlet:
    """An inlet of the secondary dataflow with both producers attached."""
    made = Inlet("inlet", BOTH, own=SEC)
    assert made.handle(Attached(PRIM)) == [Send(PRIM, Reverse(made.received))]
    assert made.handle(Attached(SEC)) == [Send(SEC, Reverse(made.received))]
    assert made.handle(From(SEC, Data(bucket(0)))) == [Take(bucket(0)), Send(PRIM, Pause())]
    made.handle(From(PRIM, Paused()))
    return made


def test_a_copy_of_the_own_dataflow_that_is_behind_takes_over_with_its_first_news() -> None:
    made = Inlet("inlet", BOTH, own=SEC)
    made.handle(Attached(PRIM))
    made.handle(From(PRIM, Data(bucket(4))))
    assert made.handle(Attached(SEC)) == [Send(SEC, Reverse(4))]
    assert made.handle(From(PRIM, Data(bucket(5)))) == [Take(bucket(5))], "the other goes on sending"
    assert made.handle(From(SEC, Data(bucket(5)))) == []
    assert made.sender is PRIM
    assert made.handle(From(SEC, Data(bucket(6)))) == [Take(bucket(6)), Send(PRIM, Pause())]
    assert made.sender is SEC
    assert made.handle(From(PRIM, Data(bucket(7)))) == [], "sent before it heard of the pause"


def test_if_the_sender_dies_while_another_is_courted_that_one_need_not_be_asked_again() -> None:
    made = Inlet("inlet", BOTH, own=SEC)
    made.handle(Attached(PRIM))
    made.handle(Attached(SEC))
    made.handle(From(PRIM, Data(bucket(4))))
    assert made.handle(Detached(PRIM)) == []
    assert made.handle(From(SEC, Data(bucket(4)))) == [], "it is here already"
    assert made.handle(From(SEC, Data(bucket(5)))) == [Take(bucket(5))]


def test_numbers_of_one_sender_rise() -> None:
    made = inlet()
    made.handle(From(SEC, Data(bucket(4))))
    with pytest.raises(PeerError, match="sent bucket 3 after 4"):
        made.handle(From(SEC, Data(bucket(3))))


def test_an_inlet_takes_from_its_own_dataflow_and_acknowledges_to_both_when_handed_on() -> None:
    made = inlet()
    assert made.sender is SEC
    assert made.handle(From(PRIM, Data(bucket(1)))) == []
    assert made.handle(From(SEC, Data(bucket(1)))) == [Take(bucket(1))]
    assert made.handle(Taken(1)) == [Send(PRIM, Ack(1)), Send(SEC, Ack(1))]


def test_when_the_sender_is_gone_the_other_is_asked_for_the_rest() -> None:
    made = inlet()
    made.handle(From(SEC, Data(bucket(4))))
    assert made.handle(Detached(SEC)) == [Send(PRIM, Reverse(4))]
    assert made.handle(From(PRIM, Data(bucket(5)))) == [Take(bucket(5))]


def test_what_was_sent_before_a_pause_is_not_looked_at_even_if_the_sender_was_asked_again() -> None:
    made = inlet()
    made.handle(From(SEC, Data(bucket(4))))
    made.handle(Detached(SEC))
    made.handle(Attached(SEC))
    assert made.handle(From(SEC, Data(bucket(5)))) == [Take(bucket(5)), Send(PRIM, Pause())]
    assert made.handle(Detached(SEC)) == [Send(PRIM, Reverse(5))]
    # Of the first request; 6 came while the other one was to send.
    assert made.handle(From(PRIM, Data(bucket(7)))) == []
    made.handle(From(PRIM, Paused()))
    assert made.handle(From(PRIM, Data(bucket(6)))) == [Take(bucket(6))]


@pytest.mark.parametrize("order", [(PRIM, SEC), (SEC, PRIM)])
def test_a_newcomer_of_the_own_dataflow_sends_once_both_have_named_its_checkpoint(
    order: tuple[Slot, Slot],
) -> None:
    made = inlet()
    made.handle(From(SEC, Data(bucket(4))))
    made.handle(Taken(4))
    made.handle(Fail(SEC))
    made.handle(Avail(SEC))
    assert made.handle(Attached(SEC, 4, 1, 4)) == []
    first, second = order
    assert made.handle(From(first, PSync(1))) == []
    assert made.handle(From(second, PSync(1))) == [
        Send(SEC, Ack(4)),
        FoldedIn(SEC),
        Send(SEC, Reverse(4)),
    ]
    assert made.sender is PRIM
    assert made.courted is SEC


# --- merge -----------------------------------------------------------------------------------------------


def test_a_bucket_is_complete_when_every_producer_has_come_that_far() -> None:
    left, right = Partition("f", 0), Partition("f", 1)
    merge = Merge([right, left])
    merge.put(left, bucket(1))
    merge.put(left, bucket(3))
    assert not merge.ready
    merge.put(right, bucket(2))
    taken = merge.take(10, 10)
    assert [each.number for each in taken] == [1, 2]
    assert taken[0].payload == ((left, "rows of 1"),)
    merge.put(right, bucket(3))
    (third,) = merge.take(10, 10)
    assert third.payload == ((left, "rows of 3"), (right, "rows of 3"))


def test_empty_stretches_are_handed_on_as_one_number() -> None:
    merge = Merge([Partition("f", 0)])
    merge.put(Partition("f", 0), bucket(1))
    merge.put(Partition("f", 0), Bucket(9))
    assert [(each.number, each.empty) for each in merge.take(10, 10)] == [(1, False), (9, True)]


def test_a_group_ends_at_its_limits_and_goes_on_there() -> None:
    merge = Merge([Partition("f", 0)])
    for number in (1, 2, 3, 4, 5):
        merge.put(Partition("f", 0), bucket(number))
    assert [each.number for each in merge.take(2, 10)] == [1, 2]
    assert [each.number for each in merge.take(10, 2)] == [3, 4]
    assert [each.number for each in merge.take(10, 10)] == [5]


# --- a newcomer ------------------------------------------------------------------------------------------


def newcomer() -> PartitionReplica:
    """A copy with the state of checkpoint 1, which holds the input through 10; both neighbours know it."""
    ends = {Slot.PRIM: Status.ACTIVE}
    made = PartitionReplica(Copy(Partition("f"), SEC), Status.STDBY, {INGRESS: ends}, {EGRESS: ends})
    made.handle(PartitionState(1, 10, ((EGRESS, OutletState((), 10, ((PRIM, 10),))),)))
    for end in (INGRESS, EGRESS):
        made.handle(Edge(end, Attached(PRIM, 10)))
    return made


def told(made: PartitionReplica, *events: object) -> bool:
    """Whether the newcomer says, at one of these events, that it has caught up."""
    return any(isinstance(done, CaughtUp) for event in events for done in made.handle(event))


def from_ingress(message: Message) -> Edge:
    return Edge(INGRESS, From(PRIM, message))


def test_a_newcomer_has_caught_up_once_its_engine_holds_what_its_producers_had_put_out() -> None:
    made = newcomer()
    folded = from_ingress(Folded(1, 12)), Edge(EGRESS, From(PRIM, Folded(1)))
    assert not told(made, *folded), "everybody has folded it in, but it is two buckets behind"
    assert not told(made, from_ingress(Data(bucket(11))), Processed())
    assert not told(made, from_ingress(Data(bucket(12)))), "its engine has only begun with it"
    assert told(made, Processed())


def test_a_newcomer_that_never_runs_out_of_input_has_caught_up_all_the_same() -> None:
    made = newcomer()
    made.handle(from_ingress(Folded(1, 11)))
    made.handle(Edge(EGRESS, From(PRIM, Folded(1))))
    made.handle(from_ingress(Data(bucket(11))))
    made.handle(from_ingress(Data(bucket(12))))
    assert told(made, Processed()), "the next group begins in the same moment"
    assert made.below.busy


def test_a_newcomer_that_one_neighbour_has_not_folded_in_has_not_caught_up() -> None:
    made = newcomer()
    assert not told(made, from_ingress(Folded(1, 10)))
    assert told(made, Edge(EGRESS, From(PRIM, Folded(1))))
