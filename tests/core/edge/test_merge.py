"""The order-preserving merge of a consumer's inlets."""

from __future__ import annotations

import pytest
from core_kit import rows, run, state_of
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.merge import Merge
from understudy.core.errors import BrokenInvariant
from understudy.core.shape.partition import Partition

LEFT, RIGHT = Partition("f", 0), Partition("f", 1)


def test_a_bucket_is_complete_when_every_producer_has_come_that_far() -> None:
    merge = Merge([RIGHT, LEFT])
    merge.put(LEFT, run(1, 3))
    assert not merge.ready
    merge.put(RIGHT, run(2))
    assert merge.take(10, 10) == (
        Bucket(1, ((LEFT, "rows of 1"),), 1),
        Bucket(2, ((RIGHT, "rows of 2"),), 1),
    )
    merge.put(RIGHT, run(3))
    assert merge.take(10, 10) == (Bucket(3, ((LEFT, "rows of 3"), (RIGHT, "rows of 3")), 2),)


def test_empty_stretches_are_handed_on_as_one_number() -> None:
    merge = Merge([LEFT])
    merge.put(LEFT, (rows(1), Bucket(5), Bucket(9)))
    assert [(each.number, each.empty) for each in merge.take(10, 10)] == [(1, False), (9, True)]


def test_a_group_ends_at_its_limits_and_goes_on_there() -> None:
    merge = Merge([LEFT])
    merge.put(LEFT, run(1, 2, 3, 4, 5))
    assert [each.number for each in merge.take(2, 10)] == [1, 2]
    assert [each.number for each in merge.take(10, 2)] == [3, 4]
    assert [each.number for each in merge.take(10, 0)] == [5], "at least one, however large"
    assert not merge.ready


def test_a_merge_says_how_many_wait_for_the_slowest_producer() -> None:
    merge = Merge([LEFT, RIGHT])
    merge.put(LEFT, run(1, 2, 3))
    assert (merge.waiting, merge.frontier) == (3, NOTHING)


def test_buckets_that_wait_side_by_side_count_once() -> None:
    merge = Merge([LEFT, RIGHT])
    merge.put(LEFT, run(1, 2, 3))
    merge.put(RIGHT, run(1, 2))
    assert merge.waiting == 3


def test_a_bucket_that_came_already_is_our_bug_and_leaves_no_trace() -> None:
    merge = Merge([LEFT, RIGHT])
    merge.put(LEFT, run(4))
    before = state_of(merge)
    with pytest.raises(BrokenInvariant, match="f/0 sent 4 twice"):
        merge.put(LEFT, run(4, 5))
    with pytest.raises(BrokenInvariant, match="nothing is complete"):
        merge.take(1, 1)
    assert state_of(merge) == before


def test_a_merge_has_something_to_merge() -> None:
    with pytest.raises(BrokenInvariant, match="at least one producer"):
        Merge([])


# --- against a naive model -------------------------------------------------------------------------------

Put = tuple[int, list[tuple[int, bool]]]
PUTS = st.lists(
    st.tuples(
        st.integers(0, 2), st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=4)
    ),
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3), PUTS, st.data())
def test_whatever_the_arrivals_a_merge_hands_on_every_row_once_and_in_order(
    count: int, puts: list[Put], data: st.DataObject
) -> None:
    producers = [Partition("f", index) for index in range(count)]
    merge = Merge(producers)
    last = dict.fromkeys(producers, 0)
    expected: dict[int, dict[Partition, object]] = {}
    handed: list[Bucket] = []
    reached = NOTHING
    for which, gaps in puts:
        producer, batch = producers[which % count], []
        for gap, has_rows in gaps:
            last[producer] += gap
            batch.append(rows(last[producer]) if has_rows else Bucket(last[producer]))
            if has_rows:
                expected.setdefault(last[producer], {})[producer] = f"rows of {last[producer]}"
        merge.put(producer, tuple(batch))
        merge.check()
        if merge.ready and data.draw(st.booleans()):
            group = merge.take(data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6)))
            merge.check()
            assert group[0].number > reached
            reached = group[-1].number
            assert reached == merge.handed <= merge.frontier
            handed += group
    complete = min(last.values()) or NOTHING
    while merge.ready:
        handed += merge.take(1_000, 1_000)
    assert merge.handed == merge.frontier == (complete if all(last.values()) else NOTHING)
    got = [(each.number, each.payload) for each in handed if not each.empty]
    want = [(n, tuple(sorted(parts.items()))) for n, parts in sorted(expected.items()) if n <= merge.handed]
    assert got == want
    assert [each.number for each in handed] == sorted({each.number for each in handed})
