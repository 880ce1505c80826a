"""When a trial may harm a run: every replica active, output regular, none of them behind."""

from __future__ import annotations

from typing import Any

import pytest

from understudy.runtime.trial import ready_processes, steady

STEADY: dict[str, Any] = {
    "seats": {
        "counts/0:0": {"node": "a.1", "status": "ACTIVE", "epoch": 1},
        "counts/0:1": {"node": "b.1", "status": "ACTIVE", "epoch": 1},
    },
    "members": ["a.1", "b.1", "c.3"],
    "senders": {"counts/0": 0},
    "last_output_s": 0.5,
    "nodes": {name: {"groups": 9, "queued_buckets": 3} for name in ("a.1", "b.1")},
}


def test_replicas_that_keep_up_and_regular_output_are_steady() -> None:
    assert steady(STEADY)


@pytest.mark.parametrize(
    "change",
    [
        {"seats": {}},
        {"seats": {**STEADY["seats"], "counts/0:1": {"node": "b.1", "status": "STDBY", "epoch": 2}}},
        {"senders": {}},
        {"senders": {"counts/0": None}},
        {"last_output_s": None},
        {"last_output_s": 9.0},
        {"nodes": {"a.1": STEADY["nodes"]["a.1"]}},
        {"nodes": {**STEADY["nodes"], "b.1": {"groups": 9, "queued_buckets": 300}}},
        {"nodes": {**STEADY["nodes"], "b.1": {"groups": 1, "queued_buckets": 3}}},
    ],
    ids=[
        "empty",
        "catching up",
        "no partition sends",
        "no sender",
        "no output",
        "silent",
        "unheard",
        "behind",
        "cold",
    ],
)
def test_one_thing_amiss_and_it_is_not(change: dict[str, Any]) -> None:
    assert not steady({**STEADY, **change})


PARTITIONED: dict[str, Any] = {
    **STEADY,
    "senders": {"stats/0": 0, "stats/1": 1},
    "seats": {
        "sessions/0:0": {"node": "a.1", "status": "ACTIVE", "epoch": 1},
        "sessions/0:1": {"node": "b.1", "status": "ACTIVE", "epoch": 1},
        "stats/0:0": {"node": "b.1", "status": "ACTIVE", "epoch": 1},
        "stats/0:1": {"node": "a.1", "status": "ACTIVE", "epoch": 1},
    },
}


def test_a_flow_of_many_partitions_is_steady_when_each_of_them_sends() -> None:
    assert steady(PARTITIONED)
    assert not steady({**PARTITIONED, "senders": {"stats/0": 0, "stats/1": None}})
    seats = PARTITIONED["seats"]
    assert not steady({**PARTITIONED, "seats": {**seats, "stats/0:1": {"node": "c.1", "status": "STDBY"}}})
    assert not steady({**PARTITIONED, "nodes": {"a.1": STEADY["nodes"]["a.1"]}})


def test_a_process_is_ready_under_whichever_incarnation_it_joined() -> None:
    assert ready_processes(STEADY) == {"a", "b", "c"}
