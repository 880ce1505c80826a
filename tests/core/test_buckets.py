"""Buckets: which time belongs to which number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from understudy.core.bucket import NOTHING, Bucket, bucket_of, end_of


@given(st.integers(-(2**55), 2**55), st.integers(1, 10**9))
def test_every_time_lies_in_its_bucket_also_before_1970(time_us: int, width_us: int) -> None:
    number = bucket_of(time_us, width_us)
    assert end_of(number - 1, width_us) <= time_us < end_of(number, width_us)
    assert number > NOTHING


def test_a_bucket_without_rows_is_empty_and_one_with_rows_does_not_show_them() -> None:
    assert Bucket(3).empty
    assert not Bucket(3, b"", 0).empty, "only None means no rows"
    assert "secret" not in repr(Bucket(3, "secret", 6))
