"""What must not grow faster than its input."""

from __future__ import annotations

import sys
from collections.abc import Callable

from core_kit import all_active
from host_kit import SINK, SOURCE, F, gateway, parcels, working

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.buffer import Buffer
from understudy.core.edge.inlet import Inlet
from understudy.core.edge.messages import Ack, Attached, Data, From, Reverse, Take, Taken
from understudy.core.host.parcels import Attach, Inside, ParcelFrom, Say
from understudy.core.host.places import GATEWAY
from understudy.core.replica.events import Produced
from understudy.core.shape.partition import Copy

MANY = 100_000
FIRST = Copy(F)


def lines_run(act: Callable[[], object]) -> int:
    """How many lines of Python an act runs: a measure of its work that no other process disturbs."""
    count = 0

    def trace(frame: object, event: str, arg: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        act()
    finally:
        sys.settrace(before)
    return count


def many(count: int = MANY) -> tuple[Bucket, ...]:
    return tuple(Bucket(number, number, 1) for number in range(count))


def test_a_reverse_over_everything_kept_is_answered_with_one_parcel_that_holds_one_run() -> None:
    host = working()
    host.handle(Inside(FIRST, 1, Produced(((SINK.partition, many()),))))
    (said,) = parcels(host.handle(ParcelFrom(GATEWAY, 1, Say(SINK, FIRST, 70, Reverse(NOTHING)))), GATEWAY)
    assert isinstance(said, Say)
    assert isinstance(said.message, Data)
    assert len(said.message.buckets) == MANY


def test_the_work_of_a_reverse_does_not_grow_with_what_is_kept() -> None:
    work = {}
    for count in (1_000, MANY):
        host = working()
        host.handle(Inside(FIRST, 1, Produced(((SINK.partition, many(count)),))))
        event = ParcelFrom(GATEWAY, 1, Say(SINK, FIRST, 70, Reverse(NOTHING)))
        work[count] = lines_run(lambda: host.handle(event))  # noqa: B023
    assert work[MANY] < 2 * work[1_000], "a run is cut out at once, not bucket by bucket"


def test_a_long_run_is_taken_in_a_few_steps_for_each_bucket() -> None:
    work = {}
    for count in (1_000, 10_000):
        inlet = Inlet("inlet", all_active(2), own=0)
        inlet.handle(Attached(0))
        work[count] = lines_run(lambda: inlet.handle(From(0, Data(many(count)))))  # noqa: B023
        assert inlet.handle(Taken(count - 1))
        assert inlet.received == count - 1
    assert work[10_000] < 12 * work[1_000]


def test_trimming_in_steps_is_linear_in_what_is_trimmed() -> None:
    def trimmed(count: int) -> int:
        buffer = Buffer([0, 1])
        buffer.put(many(count), [0, 1])

        def act() -> None:
            for through in range(99, count, 100):
                for destination in (0, 1):
                    buffer.ack(destination, through)
                    buffer.trim([0, 1])

        lines = lines_run(act)
        assert len(buffer) == 0
        return lines

    assert trimmed(MANY) < 12 * trimmed(10_000)


def test_acknowledging_one_by_one_costs_the_same_however_much_is_kept() -> None:
    work = {}
    for kept in (1_000, MANY):
        host = gateway(1)
        host.handle(ParcelFrom("a", 1, Attach(FIRST, 1, SOURCE, 0, 9, NOTHING)))
        host.handle(Inside(SOURCE, 0, Produced(((F, many(kept)),))))
        acks = [ParcelFrom("a", 1, Say(FIRST, SOURCE, 9, Ack(number))) for number in range(100)]
        work[kept] = lines_run(lambda: [host.handle(ack) for ack in acks])  # noqa: B023
    assert work[MANY] < 1.5 * work[1_000]


def test_of_a_long_run_that_is_known_but_for_its_end_only_the_end_is_taken() -> None:
    inlet = Inlet("inlet", all_active(2), own=1)
    inlet.handle(Attached(0))
    inlet.handle(Attached(1))
    inlet.handle(From(0, Data(many(1_000)[:999])))
    take, _ = inlet.handle(From(1, Data(many(1_000))))
    assert take == Take((Bucket(999, 999, 1),))
