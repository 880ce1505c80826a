"""A refill: which piece of the log is read when, and how much may be on its way."""

from __future__ import annotations

import pytest
from core_kit import run

from understudy.core.bucket import Bucket
from understudy.core.edge.messages import Refilled
from understudy.core.edge.refill import WINDOW_BYTES, Refill


def test_one_piece_is_read_at_a_time_and_the_next_follows_the_last_bucket_that_was_sent() -> None:
    refill = Refill(3)
    assert refill.due
    refill.asked = True
    assert not refill.due
    refill.sent(run(4, 6))
    assert (refill.after, refill.due) == (6, True)


def test_what_is_sent_counts_until_it_is_acknowledged() -> None:
    refill = Refill(3)
    refill.sent(run(4, 6))
    refill.sent(run(7))
    assert refill.unacknowledged_bytes == 3
    refill.acknowledged(5)
    assert refill.unacknowledged_bytes == 3, "a piece counts until all of it is acknowledged"
    refill.acknowledged(6)
    assert refill.unacknowledged_bytes == 1
    refill.acknowledged(9)
    assert refill.unacknowledged_bytes == 0


def test_no_further_piece_is_read_while_the_window_is_full() -> None:
    refill = Refill(3)
    refill.sent([Bucket(4, "many rows", WINDOW_BYTES)])
    assert not refill.due
    refill.acknowledged(4)
    assert refill.due


def test_a_log_is_read_again_only_as_far_as_it_goes() -> None:
    with pytest.raises(ValueError, match="only as far as it goes"):
        Refilled(0, 3, ())
