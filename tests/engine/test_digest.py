"""One order and one digest for the same rows, however they are chunked, sliced and shuffled."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.engine.digest import canonical_order, digest_of, float_columns

INSTANT = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("flag", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        (
            "window",
            pa.struct([("start", pa.timestamp("us", tz="UTC")), ("end", pa.timestamp("us", tz="UTC"))]),
        ),
        ("sizes", pa.map_(pa.string(), pa.int32())),
    ]
)
instants = st.integers(0, 10**15)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.none() | st.text(max_size=4),
            "n": st.none() | st.integers(-3, 3),
            "x": st.none() | st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf]),
            "flag": st.none() | st.booleans(),
            "tags": st.none() | st.lists(st.none() | st.sampled_from(["a", "b"]), max_size=3),
            "window": st.none() | st.fixed_dictionaries({"start": st.none() | instants, "end": instants}),
            "sizes": st.none() | st.lists(st.tuples(st.sampled_from("pq"), st.integers(0, 9)), max_size=2),
        }
    ),
    max_size=12,
)


def table_of(values: list[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist(values, SCHEMA)


@settings(deadline=None)
@given(rows, st.randoms(), st.integers(1, 5))
def test_shuffled_and_chunked_rows_have_one_canonical_order(values, chance, size) -> None:
    shuffled = list(values)
    chance.shuffle(shuffled)
    chunks = [table_of(shuffled[i : i + size]) for i in range(0, len(shuffled), size)]
    other = pa.concat_tables(chunks) if chunks else table_of([])
    assert digest_of(canonical_order(table_of(values))) == digest_of(canonical_order(other))


@settings(deadline=None)
@given(rows, rows)
def test_a_slice_has_the_digest_of_its_rows(before, values) -> None:
    sliced = table_of(before + values).slice(len(before))
    assert digest_of(sliced) == digest_of(table_of(values))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"name": "ab", "tags": ["c"]}, {"name": "a", "tags": ["bc"]}),
        ({"name": None}, {"name": ""}),
        ({"n": None}, {"n": 0}),
        ({"tags": []}, {"tags": None}),
        ({"tags": [None]}, {"tags": []}),
        ({"flag": False}, {"flag": None}),
        ({"x": 0.0}, {"x": -0.0}),
    ],
)
def test_different_values_have_different_digests(one: dict[str, object], other: dict[str, object]) -> None:
    assert digest_of(table_of([one])) != digest_of(table_of([other]))


def test_floats_can_be_left_out_because_sums_round_differently() -> None:
    one, other = table_of([{"n": 1, "x": 0.1 + 0.2}]), table_of([{"n": 1, "x": 0.3}])
    assert digest_of(one) != digest_of(other)
    assert digest_of(one, floats=False) == digest_of(other, floats=False)


def test_without_floats_the_digest_still_covers_rows_nulls_and_the_other_fields_of_a_struct() -> None:
    def without(**columns: object) -> str:
        return digest_of(pa.table(columns), floats=False)

    assert without(v=[1.0, 2.0]) == without(v=[1.0, 2.0000000001])
    assert without(v=[1.0, 2.0]) != without(v=[1.0, 2.0, 3.0])
    assert without(v=[1.0, 2.0]) != without(v=[1.0, None])
    assert without(s=[{"n": 1, "mean": 0.5}]) == without(s=[{"n": 1, "mean": 0.6}])
    assert without(s=[{"n": 1, "mean": 0.5}]) != without(s=[{"n": 2, "mean": 0.5}])
    assert without(s=[{"n": 1, "mean": 0.5}]) != without(s=[{"n": 1, "mean": None}])
    assert without(l=[[0.5, 1.0]]) == without(l=[[0.5]])


def test_last_digits_never_decide_the_order_of_what_the_digest_covers() -> None:
    def ordered(first: float, second: float) -> str:
        rows = pa.table({"k": [1, 1], "list": [[first], [second]], "mean": [first, second], "n": [7, 8]})
        return digest_of(canonical_order(rows), floats=False)

    assert ordered(0.1 + 0.2, 0.3) == ordered(0.3, 0.1 + 0.2)


def test_columns_with_floats_in_them_are_named() -> None:
    rows = pa.table({"n": [1], "mean": [0.5], "s": [{"n": 1, "mean": 0.5}], "l": [[0.5]], "t": ["x"]})
    assert float_columns(rows.schema) == ("mean", "s", "l")
