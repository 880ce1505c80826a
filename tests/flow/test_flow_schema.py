"""Spark DDL as an Arrow schema."""

from __future__ import annotations

import pyarrow as pa
import pytest

from understudy.flow.errors import FlowError
from understudy.flow.schema import TIMESTAMP, parse_schema


def test_the_usual_types_are_understood() -> None:
    schema = parse_schema(
        "s string, i int, j INTEGER, b bigint, l LONG, t tinyint, h smallint, f float, d double, o boolean, "
        "at timestamp, day date, raw binary, m decimal(12, 2), n decimal, k decimal(5)"
    )
    assert schema.types == [
        pa.string(), pa.int32(), pa.int32(), pa.int64(), pa.int64(), pa.int8(), pa.int16(), pa.float32(),
        pa.float64(), pa.bool_(), TIMESTAMP, pa.date32(), pa.binary(), pa.decimal128(12, 2),
        pa.decimal128(10, 0), pa.decimal128(5, 0),
    ]  # fmt: skip


def test_types_nest() -> None:
    schema = parse_schema("a array<map<string, int>>, s struct<x: double, y: struct<z string NOT NULL>>")
    assert schema.field("a").type == pa.list_(pa.map_(pa.string(), pa.int32()))
    inner = pa.struct([pa.field("z", pa.string(), nullable=False)])
    assert schema.field("s").type == pa.struct([("x", pa.float64()), ("y", inner)])


def test_backquotes_not_null_and_comments_are_understood() -> None:
    schema = parse_schema("`order by` string NOT NULL COMMENT 'it\\'s', `a``b`: int, `from` timestamp")
    assert schema.names == ["order by", "a`b", "from"]
    assert [field.nullable for field in schema] == [False, True, True]


@pytest.mark.parametrize(
    ("ddl", "says"),
    [
        ("", "empty"),
        ("a strng", "field 'a': the type 'strng' is not known"),
        ("a int, b", "field 'b': expected a type"),
        ("a int b int", "field 'a': expected ',' after its type, found 'b'"),
        ("a int, a string", "'a' appears twice"),
        ("a int, A string", "appears twice"),
        ("a array<int", "field 'a': expected '>'"),
        ("s struct<x: oops>", "field 's.x': the type 'oops'"),
        ("m map<string>", "field 'm': expected ','"),
        ("a decimal(99)", "field 'a': decimal(99, 0)"),
        ("a decimal(5, 6)", "field 'a': decimal(5, 6)"),
        ("a int NOT", "field 'a': expected 'NULL'"),
        ("a int,", "expected a field's name"),
        ("a int; b int", "cannot read it from '; b int'"),
        ("1a int, b int)", "expected ',' after its type, found ')'"),
    ],
)
def test_what_is_wrong_is_named(ddl: str, says: str) -> None:
    with pytest.raises(FlowError) as raised:
        parse_schema(ddl)
    assert says in str(raised.value)
