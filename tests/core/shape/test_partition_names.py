"""Partitions and copies: how they are written and ordered."""

from __future__ import annotations

import pytest

from understudy.core.errors import BrokenInvariant
from understudy.core.shape.partition import Copy, Partition


@pytest.mark.parametrize("text", ["sessions/0", "a/b/12", "with:colon/3"])
def test_a_partition_is_read_back_as_it_was_written(text: str) -> None:
    assert str(Partition.of(text)) == text


@pytest.mark.parametrize("text", ["sessions/0:0", "a/b/12:2", "with:colon/3:1"])
def test_a_copy_is_read_back_as_it_was_written(text: str) -> None:
    assert str(Copy.of(text)) == text


@pytest.mark.parametrize("text", ["", "sessions", "/0", "sessions/", "sessions/-1", "sessions/x", "s/0 "])
def test_what_is_no_partition_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write it like sessions/0"):
        Partition.of(text)


@pytest.mark.parametrize("text", ["", "sessions/0", "sessions/0:", "sessions/0:x", "sessions/0:-1", "s:0"])
def test_what_is_no_copy_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write it like sessions/0"):
        Copy.of(text)


def test_partitions_order_by_name_then_index_and_copies_by_partition_then_replica() -> None:
    texts = ["a/0:0", "a/0:1", "a/2:0", "a/10:0", "b/0:0"]
    assert [str(copy) for copy in sorted(map(Copy.of, reversed(texts)))] == texts


def test_nothing_counts_below_zero_and_nothing_is_nameless() -> None:
    for wrong in (
        lambda: Partition("", 0),
        lambda: Partition("a", -1),
        lambda: Copy(Partition("a"), -1),
    ):
        with pytest.raises(BrokenInvariant):
            wrong()
