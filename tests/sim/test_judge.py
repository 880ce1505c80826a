"""A simulated run's history is judged clean, and damage done to it is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from understudy.core.buffer import Acks
from understudy.core.history import HistoryWriter
from understudy.sim.judge import judge
from understudy.sim.random_schedules import run_seed

Lines = list[dict[str, Any]]


def history(path: Path, seed: int, acks: Acks = Acks.CUMULATIVE) -> Path:
    with path.open("w") as stream:
        run_seed("pair", seed, acks, history=HistoryWriter(stream, "simulated"))
    return path


@pytest.mark.parametrize("acks", list(Acks))
def test_the_history_of_a_sound_run_is_clean(tmp_path: Path, acks: Acks) -> None:
    for seed in range(20):
        verdict = judge(history(tmp_path / f"{seed}.jsonl", seed, acks))
        assert verdict.findings == []
        assert verdict.delivered > 0


def of(lines: Lines, kind: str) -> list[int]:
    return [at for at, line in enumerate(lines) if line["kind"] == kind]


def with_rows(lines: Lines) -> int:
    return next(at for at in of(lines, "delivered")[1:] if any(rows for _, rows, _ in lines[at]["buckets"]))


def remove_a_delivery(lines: Lines) -> None:
    del lines[of(lines, "delivered")[1]]


def repeat_a_delivery(lines: Lines) -> None:
    at = of(lines, "delivered")[1]
    lines.insert(at + 1, lines[at])


def turn_a_delivery_round(lines: Lines) -> None:
    at = next(at for at in of(lines, "delivered") if len(lines[at]["buckets"]) > 1)
    lines[at]["buckets"].reverse()


def drop_a_bucket_with_rows(lines: Lines) -> None:
    at = with_rows(lines)
    lines[at]["buckets"] = [bucket for bucket in lines[at]["buckets"] if not bucket[1]]


def change_delivered_rows(lines: Lines) -> None:
    at = with_rows(lines)
    lines[at]["buckets"] = [[number, rows, "0" * 16] for number, rows, _ in lines[at]["buckets"]]


def change_what_one_replica_made(lines: Lines) -> None:
    made: dict[int, str] = {}
    for at in of(lines, "produced"):
        if made.setdefault(lines[at]["number"], lines[at]["by"]) != lines[at]["by"]:
            lines[at]["digest"] = "0" * 16
            return


def repeat_a_group(lines: Lines) -> None:
    at = of(lines, "handed")[0]
    lines.insert(at + 1, lines[at])


def seal_twice(lines: Lines) -> None:
    at = of(lines, "sealed")[1]
    lines.insert(at + 1, lines[at])


def end_without_the_last_deliveries(lines: Lines) -> None:
    by = lines[of(lines, "delivered")[0]]["by"]
    last_result = max(lines[at]["number"] for at in of(lines, "produced") if lines[at]["rows"])
    for at in reversed(of(lines, "delivered")):
        if lines[at]["through"] >= last_result:
            del lines[at]
    lines.append({"kind": "ended", "at_us": lines[-1]["at_us"], "by": by})


@pytest.mark.parametrize(
    ("damage", "invariant"),
    [
        (remove_a_delivery, "loss-free"),
        (repeat_a_delivery, "dup-free"),
        (turn_a_delivery_round, "in-order"),
        (drop_a_bucket_with_rows, "loss-free"),
        (end_without_the_last_deliveries, "loss-free"),
        (change_delivered_rows, "contents"),
        (change_what_one_replica_made, "replicas-agree"),
        (repeat_a_group, "input-dup-free"),
        (seal_twice, "sealed-once"),
    ],
)
def test_damage_to_a_history_is_found(
    tmp_path: Path, damage: Callable[[Lines], None], invariant: str
) -> None:
    path = history(tmp_path / "history.jsonl", 1)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    damage(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert invariant in {finding.invariant for finding in judge(path).findings}
