"""One order for the rows of a bucket, and one digest for its content.

Replicas produce the same rows, but Spark hands them over in any order and cut into any chunks. Sorted by
every column they have one order, so that (stream, bucket, index) names a row. The digest then covers values
only: not chunks, not buffers' offsets, not what happens to lie in memory under a null.

Floating-point values come last in the order and can be left out of the digest: sums of floats depend on the
order of additions in their last digits (see `grouping`), and that is no divergence. Without them the digest
still covers the number of rows, every other column, the other fields of a struct that has such values, and
how many values are null. A list or a map with such values inside is left out completely: its rows may be
ordered by just those last digits. For the same reason such a column orders rows only after all others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def canonical_order(table: pa.Table, time_us: pa.Array | None = None) -> pa.Table:
    """The rows of `table`, sorted by `time_us` if given, then by every column; in one chunk."""
    table = table.combine_chunks()
    if table.num_rows < 2:
        return table
    keys: dict[str, pa.Array] = {} if time_us is None else {"time": time_us}
    last: list[pa.Array] = []
    for column in table.columns:
        for key, exact in _sort_keys(_one_chunk(column)):
            if exact:
                keys[str(len(keys))] = key
            else:
                last.append(key)
    for key in last:
        keys[str(len(keys))] = key
    if not keys:
        return table
    order = pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in keys])
    return table.take(order).combine_chunks()


def digest_of(table: pa.Table, *, floats: bool = True) -> str:
    """A digest of the rows in the order they have. Two tables with equal values have equal digests."""
    state = hashlib.blake2b(digest_size=16)
    state.update(str(table.num_rows).encode())
    for name, column in zip(table.column_names, table.columns, strict=True):
        state.update(f"\0{name}\0{column.type}\0".encode())
        if floats or not _holds_floats(column.type):
            _digest_array(state, _one_chunk(column))
        else:
            _digest_without_floats(state, _one_chunk(column))
    return state.hexdigest()


def float_columns(schema: pa.Schema) -> tuple[str, ...]:
    """The columns whose values `digest_of` leaves out without `floats`, wholly or in part."""
    return tuple(field.name for field in schema if _holds_floats(field.type))


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined.combine_chunks() if isinstance(combined, pa.ChunkedArray) else combined


def _sort_keys(array: pa.Array) -> Iterator[tuple[pa.Array, bool]]:
    """Plain arrays that together order `array`, and of each whether it is exact: free of floats."""
    if pa.types.is_struct(array.type):
        yield array.is_valid(), True
        for child in array.flatten():
            yield from _sort_keys(child)
    elif pa.types.is_nested(array.type):
        texts = [None if value is None else repr(value) for value in array.to_pylist()]
        yield pa.array(texts, pa.string()), not _holds_floats(array.type)
    elif pa.types.is_null(array.type) or pa.types.is_interval(array.type):
        yield pa.array([str(value) for value in array.to_pylist()], pa.string()), True
    elif pa.types.is_floating(array.type):
        yield _float_bits(array), False
    else:
        yield array, True


def _float_bits(array: pa.Array) -> pa.Array:
    """Floats by their bits: a total order in which -0.0 differs from 0.0 and NaN has a place."""
    wide = array.cast(pa.float64())
    values = pc.fill_null(wide, 0.0).to_numpy(zero_copy_only=False).view(np.int64)
    return pa.array(values, pa.int64(), mask=wide.is_null().to_numpy(zero_copy_only=False))


def _holds_floats(kind: pa.DataType) -> bool:
    if pa.types.is_floating(kind):
        return True
    return any(_holds_floats(kind.field(i).type) for i in range(kind.num_fields))


def _digest_without_floats(state: Any, array: pa.Array) -> None:
    if not _holds_floats(array.type):
        _digest_array(state, array)
    elif pa.types.is_struct(array.type):
        state.update(np.packbits(array.is_valid().to_numpy(zero_copy_only=False)).tobytes())
        for child in array.flatten():
            _digest_without_floats(state, child)
    else:
        # Their number does not depend on the order of rows.
        state.update(f"{array.null_count}\0".encode())


def _digest_array(state: Any, array: pa.Array) -> None:
    valid = array.is_valid()
    state.update(np.packbits(valid.to_numpy(zero_copy_only=False)).tobytes())
    kept = array.filter(valid) if array.null_count else array
    kind = kept.type
    if pa.types.is_struct(kind):
        for child in kept.flatten():
            _digest_array(state, child)
    elif pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = kept.cast(pa.list_(kind.value_field if not pa.types.is_map(kind) else _entry(kind)))
        state.update(items.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64).tobytes())
        _digest_array(state, items.flatten())
    elif pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
        _digest_bytes(state, kept.cast(pa.large_binary()))
    elif pa.types.is_boolean(kind):
        state.update(np.packbits(kept.to_numpy(zero_copy_only=False)).tobytes())
    elif pa.types.is_null(kind):
        pass
    else:
        width = kind.bit_width // 8
        buffer = kept.buffers()[1]
        start = kept.offset * width
        state.update(memoryview(buffer)[start : start + len(kept) * width] if buffer is not None else b"")


def _entry(kind: pa.DataType) -> pa.DataType:
    return pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])


def _digest_bytes(state: Any, array: pa.Array) -> None:
    _, offsets_buffer, data = array.buffers()
    if not len(array) or offsets_buffer is None:
        return
    offsets = np.frombuffer(offsets_buffer, np.int64)[array.offset : array.offset + len(array) + 1]
    state.update(np.diff(offsets).tobytes())
    if data is not None:
        state.update(memoryview(data)[int(offsets[0]) : int(offsets[-1])])
