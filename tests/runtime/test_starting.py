"""Which nodes of a run start at once, and which are held back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from understudy.flow.errors import EnvironmentFailed
from understudy.flow.policy import policy_named
from understudy.runtime import local
from understudy.runtime.local import LocalRun
from understudy.runtime.settings import RunSettings, node_names
from understudy.runtime.starting import HELD_BACK_S_MAX, start_order

FLOW = """
import understudy as us
flow = us.Flow("small")
rows = flow.source("rows", us.Push("n int, ts timestamp"), time="ts")

@flow.fragment(rows, time="ts")
def same(rows):
    return rows

flow.sink(same, us.Console())
"""


def settings(policy: str, nodes: int, standby: int = 0, *, generation: int = 2) -> RunSettings:
    made = RunSettings("run", "flow.py", "run", "", policy=policy_named(policy))
    return replace(made, nodes=nodes, standby=standby, generation=generation)


def order(of: RunSettings, cores: int = 2) -> tuple[list[str], list[str]]:
    return start_order(of, node_names(of.nodes + of.standby), cores)


@pytest.mark.parametrize(("policy", "nodes"), [("pair", 2), ("flux", 2), ("passive", 2)])
def test_one_node_is_enough_to_begin_where_each_holds_a_copy_of_everything(policy: str, nodes: int) -> None:
    assert order(settings(policy, nodes, 1)) == (["node-1"], ["node-2", "node-3"])


def test_nodes_that_share_the_partitions_start_together_and_standbys_later() -> None:
    assert order(settings("flux", 3, 1)) == (["node-1", "node-2", "node-3"], ["node-4"])
    assert order(settings("none", 1, 1)) == (["node-1"], ["node-2"])


def test_a_machine_with_cores_to_spare_starts_all_at_once() -> None:
    assert order(settings("pair", 2, 1), cores=6) == (["node-1", "node-2", "node-3"], [])
    assert order(settings("pair", 2, 1), cores=5)[1] == ["node-2", "node-3"]


def test_a_run_that_begins_starts_all_at_once() -> None:
    assert order(settings("pair", 2, 1, generation=1)) == (["node-1", "node-2", "node-3"], [])


def test_a_run_that_saves_nothing_waits_for_all_its_nodes() -> None:
    assert order(replace(settings("pair", 2), snapshot_every_ms=0))[1] == []


# --- the launcher keeps to it -----------------------------------------------------------------------------


class Recorded(LocalRun):
    """A run that only writes down which nodes it starts."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.nodes_started: list[str] = []
        self.cannot_start: set[str] = set()
        super().__init__(*arguments, **named)

    def start_node(self, name: str, version: int) -> None:
        if name in self.cannot_start:
            raise EnvironmentFailed(f"{name} cannot be started")
        self.nodes_started.append(name)

    def _start(self, *_: Any, **__: Any) -> None:
        """Nor any other process."""


@pytest.fixture
def resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    """A pair with a standby that goes on, on two cores."""
    monkeypatch.setattr(local.os, "cpu_count", lambda: 2)
    (tmp_path / "flow.py").write_text(FLOW)
    made = settings("pair", 2)
    made = replace(made, flow_path=str(tmp_path / "flow.py"), folder=str(tmp_path / "run"), gateway_port=1)
    with Recorded(made, nodes=2, standby=1) as run:
        run.start()
        yield run


def answers(run: LocalRun, rows_out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    status = {"rows_out": rows_out, "epoch": 0, "version": 1, "candidate": None, "waiting_for_room": []}
    monkeypatch.setattr(run, "_status", SimpleNamespace(ask=lambda _: status, close=lambda: None))
    run.status()


def test_the_others_start_when_output_flows_and_only_once(
    resumed: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resumed.nodes_started == ["node-1"]
    answers(resumed, 0, monkeypatch)
    assert resumed.nodes_started == ["node-1"]
    answers(resumed, 5, monkeypatch)
    answers(resumed, 6, monkeypatch)
    assert resumed.nodes_started == ["node-1", "node-2", "node-3"]


def test_the_others_start_in_the_end_also_when_no_output_comes(
    resumed: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    began_s = time.monotonic()
    monkeypatch.setattr(local.time, "monotonic", lambda: began_s + HELD_BACK_S_MAX - 1)
    resumed.check()
    assert resumed.nodes_started == ["node-1"]
    monkeypatch.setattr(local.time, "monotonic", lambda: began_s + HELD_BACK_S_MAX + 1)
    resumed.check()
    assert resumed.nodes_started == ["node-1", "node-2", "node-3"]


def test_a_node_that_cannot_be_started_is_tried_again_and_the_run_goes_on(
    resumed: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed.cannot_start = {"node-3"}
    answers(resumed, 5, monkeypatch)
    assert resumed.nodes_started == ["node-1", "node-2"]
    resumed.cannot_start = set()
    answers(resumed, 5, monkeypatch)
    assert resumed.nodes_started == ["node-1", "node-2", "node-3"]
