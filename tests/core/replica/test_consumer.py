"""A consumer by exact instructions: what it hands to the engine, and when it acknowledges."""

from __future__ import annotations

import pytest
from core_kit import all_active, copies, rows, run

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.messages import Ack, Attached, Data, Detached, From, Reverse
from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.replica.consumer import Consumer
from understudy.core.replica.events import AtEdge, LimitGroups, Process, SendTo
from understudy.core.shape.partition import Copy, Partition

LEFT, RIGHT = Partition("left"), Partition("right")


def consumer(replicas: int = 2, **facts: object) -> Consumer:
    """A consumer of two producers, with every copy of both attached; the first copies send."""
    made = Consumer("consumer", 0, {p: all_active(replicas) for p in (RIGHT, LEFT)}, **facts)  # type: ignore[arg-type]
    for partition in (LEFT, RIGHT):
        answered = [each for r in range(replicas) for each in made.at_edge(AtEdge(partition, Attached(r)))]
        assert SendTo(Copy(partition, 0), Reverse(made.handed)) in answered
    return made


def sent(partition: Partition, *numbers: int) -> AtEdge:
    return AtEdge(partition, From(0, Data(run(*numbers))))


def acks(through: int, replicas: int = 2) -> list[SendTo]:
    return [SendTo(copy, Ack(through)) for name in ("left", "right") for copy in copies(name, replicas)]


def part(partition: Partition, number: int) -> tuple[Partition, str]:
    return partition, f"rows of {number}"


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_group_is_acknowledged_to_every_copy_of_every_producer_just_before_the_engine_gets_it(
    replicas: int,
) -> None:
    made = consumer(replicas)
    assert made.at_edge(sent(LEFT, 1, 2)) == []
    assert made.hand_out() == [], "nothing of the other producer has come"
    assert made.at_edge(sent(RIGHT, 1)) == []
    group = (Bucket(1, (part(LEFT, 1), part(RIGHT, 1)), 2),)
    assert made.hand_out() == [*acks(1, replicas), Process(group)]
    assert (made.handed, made.processed) == (1, NOTHING)
    assert made.done() == []
    assert made.processed == 1
    made.check()


@pytest.mark.parametrize(
    ("allowed", "managed"),
    [
        ({"group_buckets_max": 2}, LimitGroups()),
        ({"group_bytes_max": 2}, LimitGroups()),
        ({}, LimitGroups(buckets_max=2)),
        ({}, LimitGroups(bytes_max=2)),
        # An engine that manages much gets no more than the run allows.
        ({"group_buckets_max": 2}, LimitGroups(buckets_max=1_000)),
        ({"group_bytes_max": 2}, LimitGroups(bytes_max=1_000)),
    ],
)
def test_a_group_has_what_the_run_allows_and_the_engine_manages(
    allowed: dict[str, int], managed: LimitGroups
) -> None:
    made = consumer(**allowed)
    made.manages = managed
    made.at_edge(sent(LEFT, 1, 2, 3, 4))
    made.at_edge(AtEdge(RIGHT, From(0, Data((Bucket(4),)))))
    (*answered, process) = made.hand_out()
    assert answered == acks(2)
    assert isinstance(process, Process)
    assert [each.number for each in process.buckets] == [1, 2]


@pytest.mark.parametrize("limits", [{"buckets_max": 0}, {"bytes_max": -1}])
def test_a_group_without_anything_is_no_limit(limits: dict[str, int]) -> None:
    with pytest.raises(BrokenInvariant, match="cannot be limited"):
        LimitGroups(**limits)


def test_a_sink_acknowledges_what_was_written_and_begins_after_what_it_holds() -> None:
    made = consumer(through=4, acks_when_processed=True)
    made.at_edge(sent(LEFT, 5))
    made.at_edge(sent(RIGHT, 5))
    group = (Bucket(5, (part(LEFT, 5), part(RIGHT, 5)), 2),)
    assert made.hand_out() == [Process(group)]
    made.check()
    assert made.done() == acks(5)
    made.check()


def test_a_copy_that_attaches_later_gets_the_acknowledgement() -> None:
    made = consumer()
    made.at_edge(sent(LEFT, 1))
    made.at_edge(sent(RIGHT, 1))
    made.at_edge(AtEdge(LEFT, Detached(1)))
    made.hand_out()
    assert made.at_edge(AtEdge(LEFT, Attached(1))) == [SendTo(Copy(LEFT, 1), Ack(1))]


def test_an_installed_consumer_asks_for_what_follows_its_state() -> None:
    made = Consumer("consumer", 1, {LEFT: all_active(2)})
    made.install(7)
    assert (made.handed, made.processed) == (7, 7)
    answered = made.at_edge(AtEdge(LEFT, Attached(1, 9)))
    assert answered == [SendTo(Copy(LEFT, 1), Ack(7)), SendTo(Copy(LEFT, 1), Reverse(7))]
    assert made.inlets[LEFT].own == 1
    made.check()


def test_a_state_is_not_installed_into_a_consumer_that_is_attached() -> None:
    made = consumer()
    made.at_edge(sent(LEFT, 1))
    merge = made.merge
    with pytest.raises(BrokenInvariant, match="after consumer from left/0 was attached"):
        made.install(7)
    assert made.merge is merge
    assert made.processed == NOTHING


def test_an_engine_gets_one_group_at_a_time_and_finishes_only_what_it_got() -> None:
    made = consumer()
    with pytest.raises(BrokenInvariant, match="never given"):
        made.done()
    made.at_edge(sent(LEFT, 1))
    made.at_edge(sent(RIGHT, 1))
    made.hand_out()
    with pytest.raises(BrokenInvariant, match="while the engine works"):
        made.hand_out()


def test_a_partition_that_is_no_producer_is_refused() -> None:
    with pytest.raises(PeerError, match="other/0 is no producer"):
        consumer().at_edge(AtEdge(Partition("other"), Attached(0)))


def test_rows_of_a_bucket_stay_apart_by_producer() -> None:
    made = consumer()
    made.at_edge(AtEdge(LEFT, From(0, Data((rows(1), Bucket(3))))))
    made.at_edge(sent(RIGHT, 2, 3))
    *_, process = made.hand_out()
    assert process == Process(
        (
            Bucket(1, (part(LEFT, 1),), 1),
            Bucket(2, (part(RIGHT, 2),), 1),
            Bucket(3, (part(RIGHT, 3),), 1),
        )
    )


# --- backups ---------------------------------------------------------------------------------------------


def backup(through: int = 5) -> Consumer:
    """A backup of two producers whose snapshot holds everything through a number."""
    made = Consumer("backup", 0, {p: all_active(2) for p in (RIGHT, LEFT)}, passive=True)
    assert made.hold(through) == []
    for partition in (LEFT, RIGHT):
        for replica in range(2):
            attached = made.at_edge(AtEdge(partition, Attached(replica)))
            assert attached == [SendTo(Copy(partition, replica), Ack(through))]
    return made


def test_a_backup_acknowledges_its_snapshot_to_every_copy_of_every_producer() -> None:
    made = backup()
    assert made.hold(8) == acks(8)
    assert (made.handed, made.processed) == (8, 8)
    made.check()


def test_a_backup_that_takes_over_goes_on_from_its_snapshot_with_every_producer() -> None:
    made = backup()
    assert made.take_over() == [SendTo(Copy(p, 0), Reverse(5)) for p in (LEFT, RIGHT)]
    made.at_edge(sent(LEFT, 6, 7))
    made.at_edge(sent(RIGHT, 6))
    assert made.hand_out() == [*acks(6), Process((Bucket(6, (part(LEFT, 6), part(RIGHT, 6)), 2),))]
    made.check()


def test_a_backup_is_given_no_work() -> None:
    made = backup()
    made.at_edge(sent(LEFT, 6))
    made.at_edge(sent(RIGHT, 6))
    assert made.hand_out() == []
