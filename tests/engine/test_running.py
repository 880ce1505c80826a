"""A query that Spark did not give the time to start is started again, and not for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from understudy.engine import running
from understudy.engine.feed import ChannelClosed
from understudy.engine.running import STARTS_MAX, RunningQuery


@pytest.mark.parametrize(("slow", "starts"), [(True, STARTS_MAX), (False, 1)])
def test_a_query_that_never_starts_is_given_up(
    monkeypatch: pytest.MonkeyPatch, slow: bool, starts: int
) -> None:
    tried: list[int] = []

    def fail(*_: Any) -> None:
        tried.append(1)
        raise ChannelClosed("q")

    monkeypatch.setattr(RunningQuery, "_start", fail)
    monkeypatch.setattr(running, "slow_start", lambda _problem: slow)
    query = RunningQuery(cast(Any, None), "q", "q")
    with pytest.raises(ChannelClosed):
        query.start(cast(Any, None), Path(), 0, lambda _frame, _group: None)
    assert len(tried) == starts
