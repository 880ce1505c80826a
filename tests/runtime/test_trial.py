"""When a trial may harm a run: every replica active, output regular, none of them behind."""

from __future__ import annotations

from typing import Any

import pytest

from understudy.runtime.trial import ready_processes, steady

STEADY: dict[str, Any] = {
    "seats": {
        "PRIM": {"node": "a.1", "status": "ACTIVE", "epoch": 1},
        "SEC": {"node": "b.1", "status": "ACTIVE", "epoch": 1},
    },
    "members": ["a.1", "b.1", "c.2001"],
    "sender": "PRIM",
    "last_output_s": 0.5,
    "nodes": {name: {"groups": 9, "queued_buckets": 3} for name in ("a.1", "b.1")},
}


def test_replicas_that_keep_up_and_regular_output_are_steady() -> None:
    assert steady(STEADY)


@pytest.mark.parametrize(
    "change",
    [
        {"seats": {}},
        {"seats": {**STEADY["seats"], "SEC": {"node": "b.1", "status": "STDBY", "epoch": 2}}},
        {"sender": None},
        {"last_output_s": None},
        {"last_output_s": 9.0},
        {"nodes": {"a.1": STEADY["nodes"]["a.1"]}},
        {"nodes": {**STEADY["nodes"], "b.1": {"groups": 9, "queued_buckets": 300}}},
        {"nodes": {**STEADY["nodes"], "b.1": {"groups": 1, "queued_buckets": 3}}},
    ],
    ids=["empty", "catching up", "no sender", "no output", "silent", "unheard", "behind", "cold"],
)
def test_one_thing_amiss_and_it_is_not(change: dict[str, Any]) -> None:
    assert not steady({**STEADY, **change})


PARTITIONED: dict[str, Any] = {
    **{key: value for key, value in STEADY.items() if key != "sender"},
    "seats": {
        "sessions/0:PRIM": {"node": "a.1", "status": "ACTIVE", "epoch": 1},
        "sessions/0:SEC": {"node": "b.1", "status": "ACTIVE", "epoch": 1},
        "stats/0:PRIM": {"node": "b.1", "status": "ACTIVE", "epoch": 1},
        "stats/0:SEC": {"node": "a.1", "status": "ACTIVE", "epoch": 1},
    },
}


def test_a_partitioned_flow_is_steady_without_one_sender() -> None:
    assert steady(PARTITIONED)
    seats = PARTITIONED["seats"]
    assert not steady({**PARTITIONED, "seats": {**seats, "stats/0:SEC": {"node": "c.1", "status": "STDBY"}}})
    assert not steady({**PARTITIONED, "nodes": {"a.1": STEADY["nodes"]["a.1"]}})


def test_a_process_is_ready_under_whichever_incarnation_it_joined() -> None:
    assert ready_processes(STEADY) == {"a", "b", "c"}
