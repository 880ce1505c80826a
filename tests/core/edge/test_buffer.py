"""The buffer of an outlet against a naive model of the Flux paper's figure 3."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
from core_kit import numbers, rows, run, state_of
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.buffer import Buffer
from understudy.core.errors import BrokenInvariant


class Naive:
    """Every bucket ever produced, looked through from the start each time."""

    def __init__(self, destinations: int) -> None:
        self.produced: list[int] = []
        self.kept: list[int] = []
        self.acked = [NOTHING] * destinations
        self.sent = [NOTHING] * destinations
        self.required = set(range(destinations))

    def evict(self) -> None:
        if self.required:
            self.kept = [n for n in self.kept if any(self.acked[d] < n for d in self.required)]

    def gone(self) -> int:
        return max((n for n in self.produced if n not in self.kept), default=NOTHING)

    def unsent(self, destination: int) -> list[int]:
        already = max(self.acked[destination], self.sent[destination])
        return [n for n in self.kept if n > already]


def operations(destinations: int) -> st.SearchStrategy[list[tuple[object, ...]]]:
    one = st.integers(0, destinations - 1)
    return st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.lists(st.integers(1, 3), min_size=1, max_size=5)),
            st.tuples(st.just("ack"), one, st.integers(1, 40)),
            st.tuples(st.just("send"), one),
            st.tuples(st.just("rewind"), one, st.integers(0, 5)),
            st.tuples(st.just("lose"), one),
            st.tuples(st.just("reserve"), one),
        ),
        max_size=60,
    )


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3).flatmap(lambda count: st.tuples(st.just(count), operations(count))))
def test_a_buffer_keeps_and_sends_what_the_naive_one_keeps_and_sends(
    case: tuple[int, list[tuple[object, ...]]],
) -> None:
    count, steps = case
    buffer, model = Buffer(range(count)), Naive(count)
    for step in steps:
        match step:
            case ("put", list(gaps)):
                new = []
                for gap in gaps:
                    new.append((model.produced[-1] if model.produced else 0) + gap)
                    model.produced.append(new[-1])
                buffer.put(run(*new), model.required)
                model.kept += new
            case ("ack", int(one), int(through)):
                buffer.ack(one, through)
                model.acked[one] = max(model.acked[one], through)
            case ("send", int(one)):
                expected = model.unsent(one)
                assert numbers(buffer.unsent(one)) == expected
                model.sent[one] = max([model.sent[one], *expected])
            case ("rewind", int(one), int(ahead)):
                buffer.rewind(one, model.acked[one] + ahead)
                model.sent[one] = model.acked[one] + ahead
            case ("lose", int(one)):
                model.required.discard(one)
            case ("reserve", int(one)) if one not in model.required:
                buffer.reserve(one, sorted(model.required))
                others = [model.acked[other] for other in model.required]
                model.acked[one] = min(others, default=model.gone())
                model.sent[one] = NOTHING
                model.required.add(one)
        buffer.trim(model.required)
        model.evict()
        buffer.check(model.required)
        assert numbers(buffer) == model.kept
        assert (len(buffer), buffer.size_bytes) == (len(model.kept), len(model.kept))
        assert buffer.gone_through == model.gone()


def test_a_number_acknowledged_before_it_is_produced_is_dropped_when_put() -> None:
    buffer = Buffer([0])
    buffer.ack(0, 5)
    buffer.put(run(5), [0])
    assert numbers(buffer) == []
    assert buffer.unsent(0) == ()
    assert buffer.gone_through == buffer.produced_through == 5


def test_what_was_received_is_not_sent_again_but_kept_until_it_is_acknowledged() -> None:
    buffer = Buffer([0])
    buffer.put(run(1), [0])
    buffer.rewind(0, 2)
    buffer.put(run(2, 3), [0])
    assert numbers(buffer) == [1, 2, 3]
    assert numbers(buffer.unsent(0)) == [3]
    assert buffer.unsent(0) == ()


def test_without_a_destination_that_counts_everything_is_kept() -> None:
    buffer = Buffer([0])
    buffer.ack(0, 9)
    buffer.put(run(1, 2), [])
    assert numbers(buffer) == [1, 2]


def test_a_destination_that_begins_anew_is_kept_what_the_slowest_of_the_others_lacks() -> None:
    buffer = Buffer([0, 1, 2])
    buffer.put(run(1, 2, 3, 4), [0, 1, 2])
    for one, through in enumerate((3, 2, 4)):
        buffer.ack(one, through)
    buffer.unsent(2)
    buffer.reserve(2, [0, 1])
    buffer.trim([0, 1, 2])
    assert buffer.floor[2] == 2
    assert numbers(buffer.unsent(2)) == [3, 4]


def test_a_destination_that_begins_anew_has_been_sent_nothing() -> None:
    buffer = Buffer([0, 1])
    buffer.put(run(1, 2), [0, 1])
    buffer.unsent(1)
    buffer.reserve(1, [0])
    assert numbers(buffer.unsent(1)) == [1, 2]


def test_a_destination_that_begins_anew_alone_is_kept_all_that_is_left() -> None:
    buffer = Buffer([0])
    buffer.put(run(1, 2, 3), [0])
    buffer.ack(0, 2)
    buffer.trim([0])
    buffer.ack(0, 9)
    buffer.reserve(0, [])
    assert (buffer.floor[0], numbers(buffer.unsent(0))) == (2, [3])


def test_a_buffer_is_full_at_either_limit() -> None:
    by_count, by_size = Buffer([0], buckets_max=2), Buffer([0], bytes_max=10)
    by_count.put([Bucket(1), Bucket(2)], [0])
    by_size.put([Bucket(1, "many", 10)], [0])
    assert by_count.full
    assert by_size.full
    by_count.ack(0, 1)
    by_count.trim([0])
    assert not by_count.full


# --- reserves --------------------------------------------------------------------------------------------

STORE = -1


def reserved(**limits: int) -> Buffer:
    """Destination 0 is required and the store has a reserve."""
    return Buffer([0, STORE], **limits)


def fill(buffer: Buffer, *produced: int) -> None:
    """Destination 0 acknowledges each bucket as it comes."""
    for number in produced:
        buffer.put(run(number), [0], [STORE])
        buffer.ack(0, number)
        buffer.trim([0], [STORE])
        buffer.check([0], [STORE])


def test_a_reserve_keeps_what_its_destination_lacks_and_does_not_fill_the_buffer() -> None:
    buffer = reserved(buckets_max=3)
    fill(buffer, 1, 2, 3)
    assert (numbers(buffer), buffer.full) == ([1, 2, 3], False)
    buffer.put(run(4, 5, 6), [0], [STORE])
    assert (numbers(buffer), buffer.full) == ([1, 2, 3, 4, 5, 6], True)
    buffer.ack(STORE, 2)
    buffer.trim([0], [STORE])
    assert (numbers(buffer), buffer.gone_through) == ([3, 4, 5, 6], 2)
    buffer.check([0], [STORE])


def test_what_is_wanted_again_by_a_destination_that_begins_anew_counts_as_full_again() -> None:
    buffer = reserved(bytes_max=3)
    fill(buffer, 1, 2, 3)
    assert not buffer.full
    buffer.reserve(0, [STORE])
    buffer.trim([0], [STORE])
    assert (buffer.floor[0], buffer.full) == (NOTHING, True)
    buffer.check([0], [STORE])


@pytest.mark.parametrize("limits", [{"buckets_max": 2}, {"bytes_max": 2}])
def test_of_a_reserve_beyond_the_limits_the_oldest_goes(limits: dict[str, int]) -> None:
    buffer = reserved(**limits)
    fill(buffer, 1, 2, 3, 4, 5)
    assert (numbers(buffer), buffer.gone_through) == ([4, 5], 3)
    assert not buffer.full


def test_what_is_required_never_goes_however_large_the_reserve_is() -> None:
    buffer = reserved(buckets_max=1)
    buffer.put(run(1, 2, 3), [0], [STORE])
    assert numbers(buffer) == [1, 2, 3]
    buffer.ack(0, 1)
    buffer.trim([0], [STORE])
    assert numbers(buffer) == [1, 2, 3], "one bucket of reserve, and two that are required"
    buffer.ack(0, 2)
    buffer.trim([0], [STORE])
    assert numbers(buffer) == [2, 3]


def test_if_no_destination_is_required_all_that_the_reserve_lacks_is_wanted() -> None:
    buffer = reserved(buckets_max=2)
    fill(buffer, 1, 2)
    buffer.trim([], [STORE])
    assert buffer.full
    buffer.put(run(3), [], [STORE])
    assert numbers(buffer) == [1, 2, 3]
    buffer.check([], [STORE])


def test_a_reserve_that_is_ahead_of_a_required_destination_lets_nothing_go() -> None:
    buffer = reserved()
    buffer.put(run(1, 2), [0], [STORE])
    buffer.ack(STORE, 2)
    buffer.trim([0], [STORE])
    assert numbers(buffer) == [1, 2]


def test_the_room_of_a_long_reserve_is_given_back_too() -> None:
    buffer = reserved(buckets_max=10)
    for number in range(5_000):
        buffer.put([rows(number)], [0], [STORE])
        buffer.ack(0, number)
        buffer.trim([0], [STORE])
    assert len(buffer) == 10
    assert sys.getsizeof(buffer._buckets) < 50_000
    buffer.check([0], [STORE])


def test_a_buffer_may_begin_where_an_earlier_one_ended() -> None:
    buffer = Buffer([0], through=5)
    assert (buffer.produced_through, buffer.gone_through, buffer.floor) == (5, 5, {0: 5})
    with pytest.raises(BrokenInvariant, match="numbers must rise"):
        buffer.put(run(5), [0])
    buffer.put(run(6), [0])
    assert numbers(buffer.unsent(0)) == [6]


def test_an_adopted_buffer_goes_on_where_the_other_one_stood() -> None:
    buffer = Buffer([0, 1])
    buffer.adopt(run(4, 6), produced_through=8, gone_through=3, floors={0: 3, 1: 4})
    assert numbers(buffer) == [4, 6]
    assert numbers(buffer.unsent(1)) == [6]
    with pytest.raises(BrokenInvariant, match="numbers must rise"):
        buffer.put(run(8), [0, 1])
    buffer.check([0, 1])


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"produced_through": 5}, "buckets never produced"),
        ({"floors": {7: 1}}, "a floor is of no destination here"),
    ],
)
def test_a_state_that_contradicts_itself_is_not_adopted_and_leaves_no_trace(
    facts: dict[str, object], why: str
) -> None:
    buffer = Buffer([0, 1])
    before = state_of(buffer)
    whole: dict[str, object] = {"produced_through": 8, "gone_through": 3, "floors": {0: 3}}
    with pytest.raises(BrokenInvariant, match=why):
        buffer.adopt(run(4, 6), **{**whole, **facts})  # type: ignore[arg-type]
    assert state_of(buffer) == before


def test_a_used_buffer_adopts_nothing() -> None:
    buffer = Buffer([0])
    buffer.put(run(1), [0])
    with pytest.raises(BrokenInvariant, match="a used buffer"):
        buffer.adopt((), produced_through=8, gone_through=3, floors={})
    assert numbers(buffer) == [1]


@pytest.mark.parametrize("wrong", [(3,), (4, 4), (5, 6, 2)])
def test_all_of_a_run_that_does_not_rise_is_refused(wrong: tuple[int, ...]) -> None:
    buffer = Buffer([0])
    buffer.put(run(1, 3), [0])
    before = state_of(buffer)
    with pytest.raises(BrokenInvariant, match="numbers must rise"):
        buffer.put(run(*wrong), [0])
    assert state_of(buffer) == before


class Rows:
    """A payload that can be watched."""


def test_the_payload_of_a_removed_bucket_is_let_go_at_once() -> None:
    buffer = Buffer([0])
    watched = []
    for number in range(100):
        payload = Rows()
        watched.append(weakref.ref(payload))
        buffer.put([Bucket(number, payload, 1)], [0])
        del payload
    buffer.ack(0, 89)
    buffer.trim([0])
    gc.collect()
    assert [number for number, each in enumerate(watched) if each() is not None] == list(range(90, 100))


def test_the_room_of_removed_buckets_is_given_back() -> None:
    buffer = Buffer([0])
    for number in range(20_000):
        buffer.put([rows(number)], [0])
        buffer.ack(0, number - 10)
        buffer.trim([0])
    assert len(buffer) == 10
    assert sys.getsizeof(buffer._buckets) < 50_000


class Counted(int):
    """A bucket number that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: object) -> bool:
        Counted.compared += 1
        return int(self) < int(other)  # type: ignore[call-overload]

    def __gt__(self, other: object) -> bool:
        Counted.compared += 1
        return int(self) > int(other)  # type: ignore[call-overload]


def test_trimming_in_steps_compares_a_few_numbers_for_each_step() -> None:
    buffer = Buffer([0])
    buffer.put([Bucket(Counted(number)) for number in range(100_000)], [0])
    Counted.compared = 0
    for through in range(100, 100_001, 100):
        buffer.ack(0, through)
        buffer.trim([0])
    assert len(buffer) == 0
    assert Counted.compared < 1_000 * 25, "a step looks for its cut by halves"
