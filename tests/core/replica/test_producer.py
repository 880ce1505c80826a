"""A producer by exact instructions: each outlet its share, and when the engine must wait."""

from __future__ import annotations

import pytest
from core_kit import all_active, run, state_of

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.messages import Ack, Attached, Data, From, Held, Reverse
from understudy.core.edge.refill import PIECE_BYTES
from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.replica.events import AtEdge, LogRead, Produced, ReadLog, SendTo
from understudy.core.replica.producer import Producer
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.changes import Avail, Fail

LEFT, RIGHT = Partition("left"), Partition("right")


def producer(replicas: int = 2, **limits: int) -> Producer:
    """A producer for two consumers, with every copy of both attached; the first copies take data."""
    made = Producer("producer", {p: all_active(replicas) for p in (RIGHT, LEFT)}, **limits)
    for partition in (LEFT, RIGHT):
        for replica in range(replicas):
            made.at_edge(AtEdge(partition, Attached(replica)))
        made.at_edge(AtEdge(partition, From(0, Reverse(NOTHING))))
    return made


def acked(partition: Partition, through: int, replicas: int = 2) -> list[AtEdge]:
    return [AtEdge(partition, From(replica, Ack(through))) for replica in range(replicas)]


def drive(made: Producer, events: list[AtEdge]) -> None:
    for event in events:
        made.at_edge(event)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_each_outlet_is_given_its_share(replicas: int) -> None:
    made = producer(replicas)
    sent = made.produced(Produced(((LEFT, run(1, 2)), (RIGHT, (Bucket(2),)))))
    assert sent == [SendTo(Copy(LEFT), Data(run(1, 2))), SendTo(Copy(RIGHT), Data((Bucket(2),)))]
    made.check()


@pytest.mark.parametrize("limits", [{"buckets_max": 2}, {"bytes_max": 2}])
def test_the_engine_waits_while_any_outlet_is_full(limits: dict[str, int]) -> None:
    made = producer(**limits)
    made.produced(Produced(((LEFT, run(1, 2)), (RIGHT, run(2)))))
    assert made.full
    drive(made, acked(RIGHT, 2))
    assert made.full
    drive(made, acked(LEFT, 1))
    assert not made.full
    made.check()


def test_a_source_knows_through_which_number_no_consumer_will_ask_again() -> None:
    made = producer()
    assert made.trimmed_through == NOTHING
    made.produced(Produced(((LEFT, run(1, 2)), (RIGHT, run(1, 2)))))
    drive(made, acked(LEFT, 2))
    assert made.trimmed_through == NOTHING
    drive(made, acked(RIGHT, 1))
    assert made.trimmed_through == 1
    drive(made, acked(RIGHT, 2))
    assert made.trimmed_through == 2


def test_all_rows_of_a_source_that_has_ended_are_trimmed_although_no_consumer_reaches_its_end() -> None:
    """Consumers acknowledge what all of their producers have reached; the log lets go of rows alone."""
    made = producer()
    end = (Bucket(1_000_000),)
    made.produced(Produced(((LEFT, (*run(1, 2), *end)), (RIGHT, (*run(1), Bucket(2), *end)))))
    drive(made, [*acked(LEFT, 500), *acked(RIGHT, 700)])
    assert made.trimmed_through == 2
    made.check()


def source() -> Producer:
    """A source whose consumers save their state; all copies have what it put out."""
    made = Producer("source", {p: all_active(2) for p in (LEFT, RIGHT)}, stored=(LEFT, RIGHT), backed=True)
    for partition in (LEFT, RIGHT):
        for replica in range(2):
            made.at_edge(AtEdge(partition, Attached(replica)))
    made.produced(Produced(((LEFT, run(1, 2)), (RIGHT, run(1, 2)))))
    drive(made, [*acked(LEFT, 2), *acked(RIGHT, 2)])
    return made


def test_a_log_goes_back_as_far_as_the_consumer_whose_saved_state_is_oldest_needs_it() -> None:
    made = source()
    assert (made.trimmed_through, made.log_needed) == (2, NOTHING)
    made.at_edge(AtEdge(LEFT, From(0, Held(2))))
    assert made.log_needed == NOTHING
    made.at_edge(AtEdge(RIGHT, From(0, Held(1))))
    assert made.log_needed == 1


def test_a_log_is_read_again_for_one_copy_of_one_consumer() -> None:
    made = source()
    for change in (Fail(1), Avail(1), Attached(1, NOTHING)):
        made.at_edge(AtEdge(RIGHT, change))
    again = made.at_edge(AtEdge(RIGHT, From(1, Reverse(NOTHING))))
    assert again == [ReadLog(Copy(RIGHT, 1), NOTHING, PIECE_BYTES)]
    sent = made.log_read(LogRead(Copy(RIGHT, 1), NOTHING, run(1, 2)))
    assert sent == [SendTo(Copy(RIGHT, 1), Data(run(1, 2)))]
    assert made.log_read(LogRead(Copy(LEFT, 1), NOTHING, run(1, 2))) == [], "that one did not ask"


def test_a_log_that_was_read_for_no_consumer_is_our_bug() -> None:
    with pytest.raises(BrokenInvariant, match="which is no consumer"):
        source().log_read(LogRead(Copy(Partition("other")), NOTHING, run(1)))


def test_a_producer_has_a_gap_if_one_of_its_outlets_has() -> None:
    made = Producer("p", {p: all_active(1) for p in (LEFT, RIGHT)}, stored=(RIGHT,), buckets_max=1)
    for partition in (LEFT, RIGHT):
        made.at_edge(AtEdge(partition, Attached(0)))
        made.at_edge(AtEdge(partition, From(0, Ack(2))))
    made.produced(Produced(((LEFT, run(1, 2)), (RIGHT, run(1)))))
    assert not made.gap
    made.produced(Produced(((RIGHT, run(2)),)))
    assert made.gap
    assert not made.full
    made.at_edge(AtEdge(RIGHT, From(0, Held(1))))
    assert not made.gap


def test_a_producer_moves_with_all_its_outlets() -> None:
    made = producer(buckets_max=1)
    made.produced(Produced(((LEFT, run(1)), (RIGHT, run(1)))))
    drive(made, acked(LEFT, 1))
    newcomer = Producer("newcomer", {p: all_active(2) for p in (LEFT, RIGHT)}, buckets_max=1)
    newcomer.install(made.state())
    assert newcomer.state() == made.state()
    assert newcomer.full
    newcomer.check()


def test_all_of_a_state_of_other_consumers_is_refused() -> None:
    made = producer()
    newcomer = Producer("newcomer", {LEFT: all_active(2)})
    before = state_of(newcomer)
    with pytest.raises(BrokenInvariant, match="other consumers"):
        newcomer.install(made.state())
    assert state_of(newcomer) == before


@pytest.mark.parametrize(
    ("shares", "why"),
    [
        (((LEFT, run(3)), (Partition("other"), run(3))), "other/0, which is no consumer"),
        (((LEFT, run(3)), (RIGHT, run(1))), "numbers must rise"),
        (((LEFT, run(3)), (RIGHT, ())), "at least one bucket"),
        (((LEFT, run(3)), (LEFT, run(4))), "twice"),
    ],
)
def test_all_of_an_output_that_makes_no_sense_is_refused(
    shares: tuple[tuple[Partition, tuple[Bucket, ...]], ...], why: str
) -> None:
    made = producer()
    made.produced(Produced(((LEFT, run(1)), (RIGHT, run(1)))))
    before = state_of(made)
    with pytest.raises(BrokenInvariant, match=why):
        made.produced(Produced(shares))
    assert state_of(made) == before


def test_a_partition_that_is_no_consumer_is_refused() -> None:
    with pytest.raises(PeerError, match="other/0 is no consumer"):
        producer().at_edge(AtEdge(Partition("other"), Attached(0)))
