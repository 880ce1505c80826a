"""Payloads: equal rows are equal bytes, and decoding copies nothing."""

from __future__ import annotations

import pyarrow as pa
import pytest

from understudy.core.errors import PeerError
from understudy.runtime.payload import decode, digest, encode

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
