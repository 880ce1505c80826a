"""Runs of buckets as bytes: exact both ways, and anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.core.bucket import NOTHING, Bucket
from understudy.runtime.saving.runs import decode_run, encode_run

BUCKETS = st.lists(
    st.builds(
        Bucket,
        st.integers(NOTHING, 2**62),
        st.one_of(st.none(), st.binary(max_size=50)),
        st.integers(0, 2**40),
    ),
    max_size=8,
)


@given(BUCKETS)
def test_a_run_comes_back_as_it_was(buckets: list[Bucket]) -> None:
    assert decode_run(b"".join(encode_run(buckets))) == buckets


@pytest.mark.parametrize(
    "change", [lambda run: run[:-1], lambda run: run + b"x", lambda run: b"X" + run[1:], lambda _: b""]
)
def test_anything_else_is_refused(change) -> None:
    run = b"".join(encode_run([Bucket(1, b"one", 3), Bucket(2), Bucket(3, b"three", 5)]))
    with pytest.raises(ValueError, match="run"):
        decode_run(change(run))
