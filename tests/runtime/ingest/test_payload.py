"""Payloads: equal rows are equal bytes, and decoding copies nothing."""

from __future__ import annotations

import pyarrow as pa
import pytest

from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.shape.partition import Partition
from understudy.runtime.payload import Part, decode, digest, encode, merged

TABLE = pa.table({"n": pa.array([1, None, 3], pa.int32()), "s": ["a", None, "ccc"], "b": [True, None, False]})


def test_what_is_decoded_is_what_was_encoded() -> None:
    empty = TABLE.slice(0, 0)
    assert decode(encode({"b": TABLE, "a": empty})) == {"a": empty, "b": TABLE}
    assert decode(encode({})) == {}


def test_bytes_do_not_depend_on_chunks_order_of_names_or_metadata() -> None:
    chunked = pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1, 0), TABLE.slice(1)])
    tagged = chunked.replace_schema_metadata({"pandas": "was here"})
    one, other = encode({"x": TABLE, "y": TABLE}), encode({"y": tagged, "x": chunked})
    assert one == other
    assert digest(one) == digest(other)


def test_different_rows_have_different_digests() -> None:
    assert digest(encode({"x": TABLE})) != digest(encode({"x": TABLE.slice(1)}))
    assert digest(encode({"x": TABLE})) != digest(encode({"y": TABLE}))
    assert len(digest(b"")) == 32


def test_decoding_shares_the_payloads_memory() -> None:
    numbers = pa.table({"n": pa.array(range(100_000), pa.int64())})
    payload = pa.py_buffer(encode({"x": numbers}))
    values = decode(payload)["x"].column("n").chunk(0).buffers()[1]
    assert payload.address <= values.address < payload.address + payload.size


@pytest.mark.parametrize("payload", [b"", b"UBK1", b"something else entirely", encode({"x": TABLE})[:-40]])
def test_what_is_not_a_payload_is_refused(payload: bytes) -> None:
    with pytest.raises(PeerError):
        decode(payload)


MICROS = pa.timestamp("us", "UTC")


def part(index: int, **streams: pa.Table) -> Part:
    return Partition("sessions", index), encode(streams)


def rows(*values: tuple[int, str]) -> pa.Table:
    """Rows of a time and a name. The name comes first, so the columns alone would order them otherwise."""
    return pa.table({"name": [name for _, name in values], "ts": pa.array([at for at, _ in values], MICROS)})


def test_parts_are_merged_by_time_and_then_by_every_column_whatever_their_order() -> None:
    parts = [part(0, out=rows((1, "z"), (5, "a"))), part(2, out=rows((1, "b"), (4, "c"))), part(10)]
    expected = rows((1, "b"), (1, "z"), (4, "c"), (5, "a"))
    assert merged(parts, {"out": "ts"}) == {"out": expected}
    assert merged(parts[::-1], {"out": "ts"}) == {"out": expected}


def test_each_stream_is_merged_by_its_own_time_column() -> None:
    window = pa.StructArray.from_arrays([pa.array([9, 3], MICROS)], ["end"])
    windows = pa.table({"n": [1, 2], "window": window})
    parts = [part(0, a=rows((2, "x")), b=windows), part(1, a=rows((1, "y")), b=windows)]
    both = merged(parts, {"a": "ts", "b": "window.end"})
    assert both["a"] == rows((1, "y"), (2, "x"))
    assert both["b"].column("n").to_pylist() == [2, 2, 1, 1]


def test_rows_that_one_part_alone_has_keep_their_order() -> None:
    unsorted = rows((7, "z"), (1, "a"))
    parts = [part(0, own=unsorted, shared=rows((2, "x"))), part(1, shared=rows((1, "x")))]
    assert merged(parts, {"own": "ts", "shared": "ts"})["own"] == unsorted
    assert merged([], {}) == {}


def test_parts_with_different_columns_are_refused() -> None:
    with pytest.raises(PeerError, match="'out' do not have the same columns"):
        merged([part(0, out=TABLE), part(1, out=rows((1, "a")))], {"out": "ts"})


def test_parts_of_a_stream_without_a_known_time_are_refused() -> None:
    with pytest.raises(BrokenInvariant, match="time column of 'out'"):
        merged([part(0, out=rows((1, "a"))), part(1, out=rows((1, "a")))], {"other": "ts"})


@pytest.mark.parametrize(
    "directory", [b"[" * 5_000, b"7", b"[7]", b'{"abc": 1}', b'[["a", "x", 1]]', b'[["a", 1e999, 1]]']
)
def test_a_malformed_directory_is_the_peers_fault(directory: bytes) -> None:
    payload = b"UBK1" + len(directory).to_bytes(4, "little") + directory + bytes(200)
    with pytest.raises(PeerError, match="cannot be read"):
        decode(payload)
