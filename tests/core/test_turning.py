"""Two versions of a flow side by side: which of them each sink takes, by exact instructions."""

from __future__ import annotations

from itertools import permutations

import pytest
from core_kit import all_active, assert_rejected, rows, run

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.messages import Ack, Attached, Data, From, Reverse
from understudy.core.replica.consumer import Consumer
from understudy.core.replica.events import (
    AtEdge,
    Passed,
    Process,
    Processed,
    Rest,
    Rests,
    SendTo,
    Wake,
)
from understudy.core.replica.producer import Producer
from understudy.core.replica.replica import Replica
from understudy.core.shape.partition import Copy, Partition
from understudy.core.turning import Closed, Delivered, Opened, Rested, TellSink, Turn, Turning

F = Partition("f")
G = Partition("g")
SINK = Copy(Partition("sink"))


# --- a sink ----------------------------------------------------------------------------------------------


def sink(*, rests: bool = False, through: int = NOTHING) -> Replica:
    """A sink of two producers, which send."""
    below = Consumer(
        "sink",
        None,
        {F: all_active(1), G: all_active(1)},
        acks_when_processed=True,
        rests=rests,
        through=through,
    )
    made = Replica(SINK, below, None)
    assert made.begin() == []
    for producer in (F, G):
        assert SendTo(Copy(producer), Reverse(through)) in made.handle(AtEdge(producer, Attached(0)))
    return made


def sends(producer: Partition, *numbers: int) -> AtEdge:
    return AtEdge(producer, From(0, Data(run(*numbers))))


def handed(number: int) -> Process:
    parts = tuple((each, rows(number).payload) for each in (F, G))
    return Process((Bucket(number, parts, 2),))


def acks(through: int) -> list[SendTo]:
    return [SendTo(Copy(each), Ack(through)) for each in (F, G)]


def test_a_sink_that_rests_hands_out_nothing_and_acknowledges_nothing() -> None:
    made = sink(rests=True)
    assert made.handle(sends(F, 1, 2)) == []
    assert made.handle(sends(G, 1, 2)) == []
    made.check()


def test_a_sink_that_rests_drops_what_the_other_version_has_delivered_as_far_as_it_has_come() -> None:
    made = sink(rests=True)
    made.handle(sends(F, 1, 2, 3))
    made.handle(sends(G, 1, 2))
    assert made.handle(Passed(1)) == acks(1)
    assert made.handle(Passed(9)) == acks(2), "of 3 one part is missing"
    assert made.handle(sends(G, 3)) == acks(3)
    made.check()


def test_a_sink_that_wakes_goes_on_after_the_number_that_it_is_given() -> None:
    made = sink(rests=True)
    made.handle(sends(F, 1, 2, 3))
    made.handle(sends(G, 1, 2, 3))
    assert made.handle(Wake(2)) == [*acks(2), handed(3)]
    assert made.handle(Processed()) == acks(3)


def test_a_sink_that_wakes_and_is_behind_delivers_nothing_of_what_was_delivered() -> None:
    made = sink(rests=True)
    made.handle(sends(F, 1))
    made.handle(sends(G, 1))
    assert made.handle(Wake(2)) == acks(1)
    made.handle(sends(F, 2, 3))
    assert made.handle(sends(G, 2)) == acks(2)
    assert made.handle(sends(G, 3)) == [handed(3)]


def test_a_sink_at_work_finishes_its_group_before_it_rests() -> None:
    made = sink()
    made.handle(sends(F, 1, 2))
    assert made.handle(sends(G, 1)) == [handed(1)]
    assert made.handle(Rest()) == []
    assert made.handle(sends(G, 2)) == []
    assert made.handle(Processed()) == [*acks(1), Rests(1)]
    assert made.handle(Wake(1)) == [handed(2)], "what had come is not lost"


def test_a_sink_without_a_group_rests_at_once_and_only_once() -> None:
    made = sink(through=7)
    assert made.handle(Rest()) == [Rests(7)]
    assert made.handle(Rest()) == []


def test_a_sink_that_is_awake_is_not_woken_again() -> None:
    assert_rejected(sink(), Wake(1), "does not rest")


def test_an_engines_copy_neither_rests_nor_wakes() -> None:
    below, above = Consumer("c", 0, {F: all_active(1)}), Producer("p", {G: all_active(1)})
    assert_rejected(Replica(Copy(Partition("h")), below, above), Rest(), "does not take")


# --- all sinks of all versions ---------------------------------------------------------------------------


def turning(*, wanted: int = 1, opened: tuple[int, ...] = (1,), **delivered: int) -> Turning:
    made = Turning(wanted, delivered or {"x": 5})
    for version in opened:
        made.handle(Opened(version))
    return made


def test_the_first_version_is_awake_from_the_start() -> None:
    made = Turning(1, {"x": 5, "y": NOTHING})
    assert made.handle(Opened(1)) == [
        TellSink(1, "x", Passed(5)),
        TellSink(1, "y", Passed(NOTHING)),
        TellSink(1, "x", Wake(5)),
        TellSink(1, "y", Wake(NOTHING)),
    ]
    assert made.turned


def test_a_version_that_comes_later_rests_and_hears_what_is_delivered() -> None:
    made = turning()
    assert made.handle(Opened(2)) == [TellSink(2, "x", Passed(5))]
    assert made.handle(Delivered("x", 8)) == [TellSink(2, "x", Passed(8))]


def test_a_sink_turns_when_the_version_before_rests_and_goes_on_at_its_number() -> None:
    made = turning(opened=(1, 2))
    assert made.handle(Turn(2)) == [TellSink(1, "x", Rest())]
    assert not made.turned
    assert made.takes(1)
    assert made.handle(Delivered("x", 8)) == [TellSink(2, "x", Passed(8))], "its last group"
    assert made.handle(Rested(1, "x", 8)) == [TellSink(2, "x", Wake(8))]
    assert made.turned
    assert not made.takes(1)
    assert made.handle(Delivered("x", 9)) == [TellSink(1, "x", Passed(9))]


def test_each_sink_turns_by_itself() -> None:
    made = turning(opened=(1, 2), x=5, y=6)
    assert made.handle(Turn(2)) == [TellSink(1, "x", Rest()), TellSink(1, "y", Rest())]
    assert made.handle(Rested(1, "y", 6)) == [TellSink(2, "y", Wake(6))]
    assert not made.turned
    assert made.handle(Rested(1, "x", 7)) == [TellSink(2, "x", Wake(7))]
    assert made.turned


def test_a_turn_that_is_taken_back_before_the_sink_rests_wakes_the_old_version_again() -> None:
    made = turning(opened=(1, 2))
    made.handle(Turn(2))
    assert made.handle(Turn(1)) == [], "it was told to rest, and will say when it does"
    assert made.handle(Rested(1, "x", 6)) == [TellSink(1, "x", Wake(6))]
    assert made.turned


def test_a_version_is_taken_back_at_the_number_that_it_came_to() -> None:
    made = turning(opened=(1, 2))
    made.handle(Turn(2))
    made.handle(Rested(1, "x", 6))
    assert made.handle(Turn(1)) == [TellSink(2, "x", Rest())]
    assert made.handle(Rested(2, "x", 9)) == [TellSink(1, "x", Wake(9))]
    made.handle(Closed(2))
    assert made.handle(Delivered("x", 11)) == []


def test_after_a_restart_the_wanted_version_is_woken_when_it_is_there_whichever_comes_first() -> None:
    for order in permutations((1, 2)):
        made = Turning(2, {"x": 5})
        told = [each for version in order for each in made.handle(Opened(version))]
        assert told.count(TellSink(2, "x", Wake(5))) == 1
        assert TellSink(1, "x", Wake(5)) not in told
        assert made.turned


def test_a_turn_to_a_version_that_is_not_open_waits_for_it() -> None:
    made = turning()
    made.handle(Turn(2))
    assert made.handle(Rested(1, "x", 5)) == []
    assert not made.turned
    assert made.handle(Opened(2)) == [TellSink(2, "x", Passed(5)), TellSink(2, "x", Wake(5))]


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (Opened(1), "twice"),
        (Closed(1), "takes its output"),
        (Closed(3), "not open"),
        (Rested(1, "x", 5), "not told to"),
        (Rested(2, "x", 5), "not told to"),
        (Delivered("z", 5), "no sink"),
    ],
)
def test_what_cannot_be_changes_nothing(event: object, why: str) -> None:
    assert_rejected(turning(opened=(1, 2)), event, why)


def test_a_version_is_not_closed_while_its_last_group_may_be_on_its_way() -> None:
    made = turning(opened=(1, 2))
    made.handle(Turn(2))
    assert_rejected(made, Closed(1), "takes its output")
