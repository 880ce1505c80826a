"""When the demonstration may kill: both replicas active, output regular, neither of them behind."""

from __future__ import annotations

from typing import Any

import pytest

from understudy.cli.show import flowing
from understudy.cli.watching import Seen

STEADY: dict[str, Any] = {
    "seats": {
        "PRIM": {"node": "a", "status": "ACTIVE", "epoch": 1},
        "SEC": {"node": "b", "status": "ACTIVE", "epoch": 1},
    },
    "sender": "PRIM",
    "last_output_s": 0.5,
    "latency_ms": 900.0,
    "nodes": {name: {"last_group_ms": 400.0, "queued_buckets": 3} for name in ("a", "b")},
}


def test_a_steady_run_is_flowing() -> None:
    assert flowing(Seen(status=STEADY))


@pytest.mark.parametrize(
    "change",
    [
        {"seats": {**STEADY["seats"], "SEC": {"node": "b", "status": "STDBY", "epoch": 2}}},
        {"sender": None},
        {"last_output_s": None},
        {"last_output_s": 9.0},
        {"latency_ms": 9_000.0},
        {"nodes": {"a": STEADY["nodes"]["a"]}},
        {"nodes": {**STEADY["nodes"], "b": {"last_group_ms": 400.0, "queued_buckets": 300}}},
        {"nodes": {**STEADY["nodes"], "b": {"last_group_ms": 9_000.0, "queued_buckets": 3}}},
    ],
    ids=["catching up", "no sender", "no output", "silent", "slow", "unheard", "behind", "cold"],
)
def test_one_thing_amiss_and_it_is_not(change: dict[str, Any]) -> None:
    assert not flowing(Seen(status={**STEADY, **change}))


def test_without_an_answer_nothing_flows() -> None:
    assert not flowing(Seen())
