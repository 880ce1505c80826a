"""The channel between an engine and its query."""

from __future__ import annotations

import pytest

from understudy.core.errors import BrokenInvariant
from understudy.engine.feed import GroupChannel


def test_a_group_out_of_turn_is_our_bug() -> None:
    """The query would take its rows for those of the group that it asked for."""
    channel = GroupChannel("counts")
    with pytest.raises(BrokenInvariant, match="group 3 offered, but the query stands at None"):
        channel.offer(3, {})
