"""Backups on real processes: the node with the working copies dies, and again, and the output is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from counting import PUSHED, Flowing, account

from understudy.history.judging import judge
from understudy.runtime.trial import Trial

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def whole(status: dict[str, Any]) -> bool:
    """Whether every partition has a copy that works and one that holds its snapshots."""
    by_partition: dict[str, list[str]] = {}
    for copy, seat in status["seats"].items():
        by_partition.setdefault(copy.rpartition(":")[0], []).append(seat["status"])
    return bool(by_partition) and all(sorted(each) == ["ACTIVE", "BACKUP"] for each in by_partition.values())


def working(status: dict[str, Any]) -> list[str]:
    """The processes with copies that work, the one with most of them first."""
    nodes = [seat["node"].split(".")[0] for seat in status["seats"].values() if seat["status"] == "ACTIVE"]
    return sorted(set(nodes), key=lambda node: (-nodes.count(node), node))


def test_the_node_with_the_working_copies_dies_twice_and_nothing_is_lost_or_repeated(
    start: Any, tmp_path: Path
) -> None:
    trial: Trial = start(PUSHED, nodes=2, standby=1, policy="passive")
    trial.wait("every node", lambda status: len(status["members"]) == 3)
    with Flowing(f"127.0.0.1:{trial.run.settings.gateway_port}") as flowing:
        for _ in range(2):
            status = trial.wait("backups of all partitions", whole)
            trial.wait_output(20)
            victim = working(status)[0]
            trial.kill(victim)
            trial.wait(
                "the take-over", lambda s, victim=victim: victim not in working(s) and bool(working(s))
            )
            trial.wait_output(20)
            trial.restart(victim)
        trial.wait("backups of all partitions", whole)
        trial.wait_output(20)
    trial.wait_finished()
    assert account(tmp_path) == flowing.account()
    verdict = judge(sorted((tmp_path / "run" / "history").glob("*.jsonl")))
    assert verdict.findings == []
    assert verdict.partitions == 4
