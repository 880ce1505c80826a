"""What clients may push, and what is refused with field, row and value."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import understudy as us
from understudy.runtime.ingest.rows import from_stream, read_stream, to_stream, to_table

SOURCE = us.Flow("f").source(
    "packets",
    us.Push(
        "name string NOT NULL, n int, tiny tinyint, x double, ok boolean, day date, price decimal(10, 2), "
        "tags array<int>, place struct<lat: double, hops: int>, ts timestamp"
    ),
    time="ts",
)
NOON = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)


def row(**changes: Any) -> dict[str, Any]:
    return {"name": "a", "ts": NOON, **changes}


def test_every_way_to_push_gives_the_same_table() -> None:
    expected = to_table(SOURCE, [row(n=1, x=0.5), row(n=2, x=1.5)])
    times = np.array(["2024-05-01T12:00:00"] * 2, dtype="datetime64[us]")
    columns = {"name": ["a", "a"], "n": np.array([1, 2]), "x": [0.5, 1.5], "ts": times}
    frame = pd.DataFrame({"ts": pd.to_datetime(times), "x": [0.5, 1.5], "n": [1, 2], "name": ["a", "a"]})
    assert expected.schema.equals(SOURCE.arrow_schema)
    assert to_table(SOURCE, columns) == expected
    assert to_table(SOURCE, frame) == expected
    assert to_table(SOURCE, pa.table(columns)) == expected
    assert to_table(SOURCE, pa.table(columns).to_batches()[0]) == expected


@pytest.mark.parametrize(
    "time",
    [
        "2024-05-01T12:00:00Z",
        "2024-05-01 12:00:00",
        "2024-05-01T14:00:00+02:00",
        "2024-05-01T12:00:00.000000",
        dt.datetime(2024, 5, 1, 12),
        NOON.astimezone(dt.timezone(dt.timedelta(hours=5))),
        int(NOON.timestamp() * 1_000_000),
    ],
)
def test_a_time_may_be_written_in_many_ways(time: object) -> None:
    table = to_table(SOURCE, [row(ts=time)])
    assert table.column("ts")[0].as_py() == NOON


def test_times_in_different_writings_may_stand_together() -> None:
    table = to_table(
        SOURCE, [row(ts="2024-05-01"), row(ts="2024-05-01T12:00:00Z"), row(ts="2024-05-01 12:00")]
    )
    assert table.column("ts").to_pylist() == [NOON.replace(hour=0), NOON, NOON]


def test_a_float_that_is_a_decimal_in_disguise_is_taken() -> None:
    assert to_table(SOURCE, [row(price=0.1), row(price=None)]).column("price")[0].as_py() == Decimal("0.10")


def test_values_that_keep_their_meaning_are_converted() -> None:
    given = row(n=2.0, x=3, day="2024-05-01", price="1.50", tags=[1, None], place={"lat": 1, "hops": 2})
    (got,) = to_table(SOURCE, [given]).to_pylist()
    assert (got["n"], got["x"], got["day"]) == (2, 3.0, dt.date(2024, 5, 1))
    assert (got["price"], got["tags"], got["place"]) == (Decimal("1.50"), [1, None], {"lat": 1.0, "hops": 2})
    nothing = to_table(SOURCE, pd.DataFrame({"name": ["a"], "ts": [NOON], "n": [np.nan]}))
    assert nothing.column("n").to_pylist() == [None]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 1.5),
        ("n", "1"),
        ("n", True),
        ("n", 2**31),
        ("tiny", 128),
        ("x", "0.5"),
        ("x", True),
        ("ok", 1),
        ("ok", "true"),
        ("name", 7),
        ("name", b"bytes"),
        ("day", "yesterday"),
        ("price", "1.505"),
        ("price", 1.505),
        ("tags", [1, 2.5]),
        ("tags", "12"),
        ("place", {"lat": 1.0, "hops": 1.5}),
        ("place", {"latitude": 1.0}),
        ("ts", "noon"),
        ("ts", 1.5),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_row(field: str, value: object) -> None:
    with pytest.raises(us.RowError) as raised:
        to_table(SOURCE, [row(), row(), row(**{field: value})])
    assert f"source 'packets', row 2, field '{field}': {value!r}" in str(raised.value)


def test_a_value_that_does_not_fit_is_named_in_columns_too() -> None:
    table = pa.table({"name": ["a", "b"], "ts": [NOON, NOON], "tiny": [1, 300]})
    with pytest.raises(us.RowError, match="row 1, field 'tiny': 300 does not fit the type int8"):
        to_table(SOURCE, table)


def test_nulls_are_refused_where_they_must_not_be() -> None:
    with pytest.raises(us.RowError, match="row 1, field 'ts': null, but it is the time column"):
        to_table(SOURCE, [row(), row(ts=None)])
    with pytest.raises(us.RowError, match="row 0, field 'name': null, but it is declared NOT NULL"):
        to_table(SOURCE, {"ts": [NOON]})


def test_unknown_fields_are_refused_by_name() -> None:
    with pytest.raises(us.RowError, match="row 1: there is no field 'nmae'"):
        to_table(SOURCE, [row(), row(nmae="b")])
    with pytest.raises(us.RowError, match="no field 'nmae'"):
        to_table(SOURCE, {"nmae": ["b"]})


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("text", "cannot read rows from str"),
        (7, "cannot read rows from int"),
        ([row(), "x"], "row 1: expected a dict"),
        ({"n": [1], "x": []}, "differ in length"),
        ({"n": 1}, "the column 'n' is 1, not a list"),
        ([row(ts=2**62)], "outside the years 1 to 9998"),
    ],
)
def test_what_are_no_rows_is_refused(rows: object, says: str) -> None:
    with pytest.raises(us.RowError, match=says):
        to_table(SOURCE, rows)


def address(column: pa.ChunkedArray, chunk: int) -> int:
    return int(column.chunk(chunk).buffers()[1].address)


def test_a_table_that_fits_is_checked_and_not_copied() -> None:
    once = to_table(SOURCE, [row(n=1), row(n=2)])
    pieces = pa.concat_tables([once, once]).replace_schema_metadata({"pandas": "{}"})
    table = to_table(SOURCE, pieces)
    assert table.schema.equals(SOURCE.arrow_schema, check_metadata=True)
    for at in range(2):
        assert address(table.column("n"), at) == address(pieces.column("n"), at)
    late = pa.array([2**62, 0], pa.int64()).cast(pa.timestamp("us", "UTC"))
    for wrong, says in ((late, "row 0, field 'ts'"), (pa.nulls(2, late.type), "row 0, field 'ts': null")):
        with pytest.raises(us.RowError, match=says):
            to_table(SOURCE, once.set_column(9, once.schema.field("ts"), wrong))


def stream_of(table: pa.Table) -> bytes:
    return bytes(to_stream(table))


def test_a_stream_that_fits_is_kept_and_another_is_made_to_fit() -> None:
    table = to_table(SOURCE, [row(n=1), row(n=2)])
    fitting = stream_of(pa.concat_tables([table, table]))
    assert from_stream(SOURCE, fitting)[1] is fitting
    narrow = stream_of(table.select(["ts", "name"]))
    converted, stream = from_stream(SOURCE, narrow)
    assert (converted.num_rows, converted.schema) == (2, SOURCE.arrow_schema)
    assert read_stream(SOURCE, stream) == converted


def test_a_stream_with_offsets_outside_its_text_is_refused() -> None:
    offsets = pa.py_buffer(np.array([0, 1_000_000_000, 1], np.int32))
    text = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"a")])
    table = to_table(SOURCE, [row(), row()])
    damaged = table.set_column(0, table.schema.field("name"), text)
    with pytest.raises(us.RowError, match="no Arrow stream"):
        from_stream(SOURCE, stream_of(damaged))


def test_a_stream_that_is_cut_off_is_refused_wherever_it_was_cut() -> None:
    table = to_table(SOURCE, [row(n=1), row(n=2)])
    # The last eight bytes only mark the end, which the end of the bytes does as well.
    whole = stream_of(table)[:-8]
    schema_end = len(stream_of(table.slice(0, 0))) - 8
    for cut in {*range(len(whole))} - {schema_end}:
        with pytest.raises(us.RowError, match="source 'packets': the rows are no Arrow stream"):
            from_stream(SOURCE, whole[:cut])


def test_a_time_that_python_cannot_hold_is_named_too() -> None:
    ages = pa.array([0, 2**62], pa.timestamp("s", "UTC"))
    with pytest.raises(us.RowError, match=r"row 1, field 'ts'.*does not fit"):
        to_table(SOURCE, pa.table({"ts": ages}))


def test_no_rows_are_a_push_too() -> None:
    assert to_table(SOURCE, []).num_rows == 0
    assert to_table(SOURCE, {}).schema.equals(SOURCE.arrow_schema)
    guessed = pa.table({"name": pa.array([], pa.float64()), "ts": pa.array([], pa.bool_())})
    assert to_table(SOURCE, guessed).schema.equals(SOURCE.arrow_schema)


def test_a_frame_with_two_columns_of_one_name_is_refused() -> None:
    frame = pd.DataFrame([[1, 2]], columns=["n", "n"])
    with pytest.raises(us.RowError, match="two columns of one name"):
        to_table(SOURCE, frame)
