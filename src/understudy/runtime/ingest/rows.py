"""Rows that a client pushes, checked and converted to their source's Arrow schema.

All rows of a push are taken, or none. Conversions that keep the value are allowed (a narrower integer that
fits, an ISO time as text, an integer as microseconds since 1970); those that would change it are refused, and
the RowError names field, row and value. A field that is left out is null; a field that the source does not
have is refused, which also catches misspelled names. A table that has the source's schema already is checked
for nulls and times, and nothing of it is converted or copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from understudy.flow.errors import RowError
from understudy.flow.model import Source
from understudy.flow.schema import TIMESTAMP
from understudy.runtime.ingest.buckets import END_US

# The year 1: Spark and Python can both hold it.
_TIME_MIN_US = -62_135_596_800_000_000
#: Bytes of an Arrow IPC stream.
Encoded = bytes | memoryview
_PROBLEMS = (pa.ArrowException, TypeError, ValueError, OverflowError)


def to_table(source: Source, rows: object) -> pa.Table:
    """`rows` as a table of the source's schema.

    Accepts a list of dicts, a dict of columns, a pandas frame, an Arrow table or record batch.
    """
    schema = source.arrow_schema
    if isinstance(rows, pa.Table) and rows.schema.equals(schema):
        # Equal but for metadata, which rows of one source must not differ in.
        return _checked(source, pa.Table.from_arrays(rows.columns, schema=schema))
    columns, count = _columns(source, rows)
    for name in columns:
        if name not in schema.names:
            raise RowError(f"source {source.name!r} has no field {name!r}. It has {', '.join(schema.names)}.")
    arrays = [_array(source, field, columns[field.name], count) for field in schema if field.name in columns]
    present = iter(arrays)
    filled = [next(present) if field.name in columns else pa.nulls(count, field.type) for field in schema]
    return _checked(source, pa.Table.from_arrays(filled, schema=schema))


def from_stream(source: Source, body: Encoded) -> tuple[pa.Table, Encoded]:
    """The rows of an Arrow IPC stream from outside, and a stream of the source's schema that holds them.

    That is `body` itself where its schema fits. Bytes that are no such stream raise a RowError.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            given = stream.read_all()
        # Offsets that point outside their buffer would end the process, not raise.
        given.validate(full=True)
    # Arrow tells of bytes that are damaged or missing by an OSError, too; nothing is read from a disk here.
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise RowError(f"source {source.name!r}: the rows are no Arrow stream: {problem}.") from problem
    table = to_table(source, given)
    return table, body if given.schema.equals(source.arrow_schema) else to_stream(table)


def to_stream(table: pa.Table) -> memoryview:
    """The table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue())


def read_stream(source: Source, body: Encoded) -> pa.Table:
    """The rows of a stream that `from_stream` or `to_stream` gave."""
    with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
        return pa.Table.from_arrays(stream.read_all().columns, schema=source.arrow_schema)


def _checked(source: Source, table: pa.Table) -> pa.Table:
    _check_nulls(source, table)
    _check_times(source, table)
    return table


def _columns(source: Source, rows: object) -> tuple[Mapping[str, Any], int]:
    where = f"source {source.name!r}"
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        _require_distinct(where, rows.column_names)
        return {name: rows.column(name) for name in rows.column_names}, rows.num_rows
    if type(rows).__module__.split(".")[0] == "pandas" and hasattr(rows, "columns"):
        _require_distinct(where, [str(name) for name in rows.columns])
        return {str(name): rows[name] for name in rows.columns}, len(rows)  # type: ignore[index, arg-type]
    if isinstance(rows, Mapping):
        single = [name for name, column in rows.items() if not hasattr(column, "__len__")]
        if single:
            raise RowError(f"{where}: the column {single[0]!r} is {rows[single[0]]!r}, not a list of values.")
        lengths = {name: len(column) for name, column in rows.items()}
        if len(set(lengths.values())) > 1:
            raise RowError(f"{where}: the pushed columns differ in length: {lengths}.")
        return rows, next(iter(lengths.values()), 0)
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
        return _from_dicts(source, rows), len(rows)
    raise RowError(
        f"{where}: cannot read rows from {type(rows).__name__}. Push a list of dicts, a dict of columns, "
        "a pandas frame or an Arrow table."
    )


def _require_distinct(where: str, names: list[str]) -> None:
    if len(set(names)) != len(names):
        raise RowError(f"{where}: the pushed table has two columns of one name: {names}.")


def _from_dicts(source: Source, rows: Sequence[Any]) -> dict[str, list[Any]]:
    names = source.arrow_schema.names
    known = set(names)
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise RowError(f"source {source.name!r}, row {index}: expected a dict, not {row!r}.")
        if not known.issuperset(row):
            extra = next(name for name in row if name not in known)
            raise RowError(
                f"source {source.name!r}, row {index}: there is no field {extra!r} (value {row[extra]!r}). "
                f"The source has {', '.join(names)}."
            )
    return {name: [row.get(name) for row in rows] for name in names}


def _array(source: Source, field: pa.Field, values: Any, count: int) -> pa.Array:
    if not count:
        # An empty column has whatever type its maker guessed, and no value that could not fit.
        return pa.array([], field.type)
    try:
        array = _converted(values, field.type)
    except _PROBLEMS:
        index, value = _culprit(values, field.type, count)
        raise RowError(
            f"source {source.name!r}, row {index}, field {field.name!r}: {value!r} does not fit "
            f"the type {field.type}."
        ) from None
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _culprit(values: Any, kind: pa.DataType, count: int) -> tuple[int, object]:
    """The first value that does not convert alone; if all do, the first that does not fit its neighbours."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        # All values of an array are of one type: no neighbour is to blame.
        alone = (values.slice(index, 1) for index in range(count))
        index = next((index for index, one in enumerate(alone) if not _converts(one, kind)), 0)
        return index, _plain(values.slice(index, 1))
    plain = list(values)
    for index, value in enumerate(plain):
        if not _converts([value], kind):
            return index, value
    different = (index for index in range(1, count) if type(plain[index]) is not type(plain[0]))
    index = next(different, 0)
    return index, plain[index]


def _converts(values: Any, kind: pa.DataType) -> bool:
    try:
        _converted(values, kind)
    except _PROBLEMS:
        return False
    return True


def _plain(one: pa.Array | pa.ChunkedArray) -> object:
    """The only value of an array, as Python's; as Arrow writes it if Python cannot hold it."""
    try:
        return one[0].as_py()
    except (ValueError, OverflowError):
        return " ".join(one.to_string().split())


def _converted(values: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return _cast(values, kind)
    if pa.types.is_nested(kind):
        plain = list(values)
        if not all(value is None or _fits(value, kind) for value in plain):
            raise ValueError("a nested value does not fit")
        return pa.array(plain, type=kind)
    from_pandas = type(values).__module__.split(".")[0] == "pandas"
    # Converted by inference first: asked for integers directly, Arrow would cut 1.5 down to 1.
    array = pa.array(values, from_pandas=from_pandas)
    # Among times, a number would be cut down all the same.
    listed = isinstance(values, Sequence) and pa.types.is_temporal(array.type)
    if listed and any(isinstance(value, float) for value in values):
        raise TypeError("a number among times")
    return _cast(array, kind)


def _cast(array: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    given = array.type
    if pa.types.is_dictionary(given):
        array, given = array.cast(given.value_type), given.value_type
    if given == kind or pa.types.is_null(given):
        return array.cast(kind)
    if _is_text(given) and kind == TIMESTAMP:
        return times_from_text(array)
    if not _may_cast(given, kind):
        raise TypeError(f"{given} is not {kind}")
    cast = array.cast(kind, safe=True)
    # A float becomes a decimal by rounding; it may, as long as it can come back.
    if pa.types.is_decimal(kind) and pa.types.is_floating(given) and not cast.cast(given).equals(array):
        raise ValueError("digits would be lost")
    return cast


def _may_cast(given: pa.DataType, kind: pa.DataType) -> bool:
    is_int, is_float, is_decimal = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal
    if is_int(given) or is_float(given):
        if pa.types.is_timestamp(kind):
            return bool(is_int(given))
        return bool(is_int(kind) or is_float(kind) or is_decimal(kind))
    if _is_text(given):
        return bool(pa.types.is_string(kind) or pa.types.is_date(kind) or is_decimal(kind))
    same_kind = (
        is_decimal,
        pa.types.is_timestamp,
        pa.types.is_date,
        pa.types.is_nested,
        lambda each: pa.types.is_binary(each) or pa.types.is_large_binary(each),
    )
    return any(test(given) and test(kind) for test in same_kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def times_from_text(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """ISO times; without a zone they are UTC."""
    array = array.cast(pa.string())
    zoned = pc.match_substring_regex(array, r"(Z|[+-]\d\d(:?\d\d)?)$")
    with_time = pc.match_substring_regex(array, ":")
    if pc.all(pc.and_(zoned, with_time)).as_py() is not False:
        return array.cast(TIMESTAMP)
    complete = pc.if_else(pc.and_(zoned, with_time), array, pc.binary_join_element_wise(array, "Z", ""))
    midnight = pc.binary_join_element_wise(array, "T00:00:00Z", "")
    return pc.if_else(with_time, complete, midnight).cast(TIMESTAMP)


def _fits(value: Any, kind: pa.DataType) -> bool:
    """Whether a Python value inside a nested one keeps its meaning; the conversion itself checks the rest."""
    if value is None:
        return True
    if pa.types.is_map(kind):
        pairs = list(value.items()) if isinstance(value, Mapping) else list(value)
        return all(_fits(key, kind.key_type) and _fits(item, kind.item_type) for key, item in pairs)
    if pa.types.is_struct(kind):
        names = {kind.field(index).name: kind.field(index).type for index in range(kind.num_fields)}
        return isinstance(value, Mapping) and all(
            name in names and _fits(item, names[name]) for name, item in value.items()
        )
    if pa.types.is_list(kind):
        return not isinstance(value, str | bytes) and all(_fits(item, kind.value_type) for item in value)
    if isinstance(value, float | np.floating):
        return not pa.types.is_integer(kind)
    return not (isinstance(value, bool) and pa.types.is_floating(kind))


def _check_nulls(source: Source, table: pa.Table) -> None:
    for field in source.arrow_schema:
        column = table.column(field.name)
        if column.null_count and (field.name == source.time or not field.nullable):
            index = pc.index(column.is_null(), True).as_py()
            why = "the time column" if field.name == source.time else "declared NOT NULL"
            raise RowError(
                f"source {source.name!r}, row {index}, field {field.name!r}: null, but it is {why}."
            )


def _check_times(source: Source, table: pa.Table) -> None:
    times = table.column(source.time).cast(pa.int64()).to_numpy()
    wrong = np.flatnonzero((times < _TIME_MIN_US) | (times >= END_US))
    if len(wrong):
        index = int(wrong[0])
        raise RowError(
            f"source {source.name!r}, row {index}, field {source.time!r}: {int(times[index])} microseconds "
            "since 1970 lie outside the years 1 to 9998. Integers are read as microseconds."
        )
