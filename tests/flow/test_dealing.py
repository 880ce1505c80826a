"""Dealing rows out by their keys, where no Spark runs. That Spark deals alike is tested beside the engine."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from understudy.flow.dealing import deal, partition_numbers
from understudy.flow.errors import FlowError

LONGS = st.integers(-(2**63), 2**63 - 1)


def by_definition(hashes: list[int], count: int) -> int:
    seed = 42
    for each in hashes:
        seed = xxh64_intdigest(struct.pack("<Q", each), seed)
    signed = seed - 2**64 if seed >= 2**63 else seed
    return signed % count


def long_hash(value: int) -> int:
    return xxh64_intdigest(struct.pack("<q", value), 42)


@settings(deadline=None)  # a busy machine is no failure
@given(
    st.lists(st.tuples(st.none() | st.text(), st.none() | LONGS), max_size=20),
    st.integers(2, 7),
)
def test_a_row_belongs_where_the_definition_says(rows: list[tuple[Any, Any]], count: int) -> None:
    table = pa.table(
        {"s": pa.array([r[0] for r in rows], pa.string()), "n": pa.array([r[1] for r in rows], pa.int64())}
    )
    expected = [
        by_definition(
            [42 if s is None else xxh64_intdigest(s.encode(), 42), 42 if n is None else long_hash(n)], count
        )
        for s, n in rows
    ]
    assert partition_numbers(table, ["s", "n"], count).tolist() == expected


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), max_size=60), st.integers(1, 60))
def test_shares_hold_every_row_once_in_the_order_they_had(numbers: list[int], cut: int) -> None:
    whole = pa.table({"at": pa.array(range(len(numbers)), pa.int64()), "n": pa.array(numbers, pa.int64())})
    chunked = pa.concat_tables([whole.slice(0, cut), whole.slice(cut)])
    shares = deal(chunked, np.array(numbers, np.int64), 5)
    assert [share.column("at").to_pylist() for share in shares] == [
        [at for at, number in enumerate(numbers) if number == n] for n in range(5)
    ]


def test_equal_keys_of_different_widths_and_chunks_meet() -> None:
    values = [-128, -1, 0, 5, 127, None]
    kinds = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    numbers = [partition_numbers(pa.table({"k": pa.array(values, kind)}), ["k"], 5) for kind in kinds]
    assert all(np.array_equal(numbers[0], each) for each in numbers)
    text = pa.chunked_array([["a", "b"], [], [None, "a"]], pa.string())
    assert partition_numbers(pa.table({"k": text}), ["k"], 97).tolist() == (
        partition_numbers(pa.table({"k": text.combine_chunks().cast(pa.large_binary())}), ["k"], 97).tolist()
    )


def test_a_thousand_keys_are_spread_over_all_partitions() -> None:
    table = pa.table({"k": [f"10.0.0.{n}" for n in range(1000)]})
    counts = np.bincount(partition_numbers(table, ["k"], 4), minlength=4)
    assert counts.min() > 200


def test_numbers_with_a_point_are_refused() -> None:
    with pytest.raises(FlowError, match="'k' of type double"):
        partition_numbers(pa.table({"k": [1.5]}), ["k"], 2)
