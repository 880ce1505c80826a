"""What an operator sees and may do while two versions of a flow run side by side."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from understudy.cli import run as run_command
from understudy.cli import status as status_command
from understudy.cli.main import main
from understudy.cli.picture import node_lines
from understudy.cli.saved import SavedNews
from upgrade_kit import Upgraded


def seat(node: str, state: str = "ACTIVE") -> dict[str, Any]:
    return {"node": node, "status": state, "epoch": 1}


BESIDE: dict[str, Any] = {
    "version": 2,
    "members": ["node-3.1", "node-4.1", "node-5.1"],
    "seats": {"counts/0:0": seat("node-3.1"), "counts/0:1": seat("node-4.1", "STDBY")},
    "live": False,
}
STATUS: dict[str, Any] = {
    "at_us": 1,
    "epoch": 4,
    "flow": "small",
    "policy": "pair",
    "replicas": 2,
    "version": 1,
    "seats": {"counts/0:0": seat("node-1.1"), "counts/0:1": seat("node-2.1")},
    "members": ["node-1.1", "node-2.1"],
    "senders": {"counts/0": 0},
    "nodes": {"node-3.1": {"last_group_ms": 40.0, "last_group_buckets": 2}},
    "down": [],
    "restored": {},
    "candidate": BESIDE,
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upgraded:
    return Upgraded(tmp_path / "run", monkeypatch)


# --- status, and the view of a run --------------------------------------------------------------------------


def drawn(status: dict[str, Any], *processes: str) -> list[tuple[str, str, str]]:
    running = dict.fromkeys(processes, True)
    return [(line.node, line.place, line.state) for line in node_lines(status, running, set(processes))]


def test_the_nodes_of_the_new_version_come_last_and_their_place_is_the_version() -> None:
    assert drawn(STATUS, *(f"node-{number}" for number in range(1, 6))) == [
        ("node-1.1", "primary", "ACTIVE"),
        ("node-2.1", "secondary", "ACTIVE"),
        ("node-3.1", "v2", "ACTIVE"),
        ("node-4.1", "v2", "STDBY"),
        ("node-5.1", "v2", "STDBY (ready)"),
    ]
    assert [line.group for line in node_lines(STATUS, {})][2] == "2 buckets in 40 ms"


def test_before_its_first_view_a_node_of_the_new_version_is_ready() -> None:
    early = {**STATUS, "candidate": {"version": 2, "members": ["node-3.1"], "live": False, "open": False}}
    assert drawn(early)[2:] == [("node-3.1", "v2", "STDBY (ready)")]


def test_a_node_of_the_new_version_that_is_gone_is_dead() -> None:
    seats = {**BESIDE["seats"], "counts/0:0": seat("node-3.1", "DEAD")}
    gone = {**STATUS, "candidate": {**BESIDE, "members": ["node-4.1", "node-5.1"], "seats": seats}}
    assert drawn(gone)[2] == ("node-3.1", "v2", "DEAD")


def test_the_status_tells_versions_only_if_there_was_more_than_one(run: Upgraded) -> None:
    def versions(**changes: Any) -> list[str]:
        return status_command._header(run.fleet.settings, {**STATUS, **changes})[5:]

    assert versions(candidate=None) == []
    assert versions(candidate=None, version=3) == ["version 3"]
    assert versions() == ["version 1, and beside it version 2, which catches up"]
    delivering = {**BESIDE, "live": True}
    assert versions(candidate=delivering) == ["version 1, and beside it version 2, which delivers"]


def test_a_node_that_has_the_name_of_one_that_was_taken_back_did_not_die() -> None:
    said: list[str] = []
    children: dict[str, Any] = {}
    run: Any = SimpleNamespace(children=children, setbacks={}, upgrading=SimpleNamespace(news=list))
    view: Any = SimpleNamespace(say=said.append)
    shown = run_command._Shown(run, view, SimpleNamespace())  # type: ignore[arg-type]
    for incarnation in (1, 0, 2, 3):
        children.clear()
        if incarnation:
            children["node-3"] = SimpleNamespace(incarnation=incarnation)
        shown._tell_restarts()
    assert said == ["node-3 died and was started again"], "the third incarnation, in the place of the second"


def test_what_copies_of_the_other_version_lost_before_it_took_over_is_no_news() -> None:
    said: list[str] = []
    view: Any = SimpleNamespace(say=said.append)
    news = SavedNews(view)
    news.note({**STATUS, "nodes": {}})
    taken_over = {**STATUS, "nodes": {}, "version": 2, "restored": {"counts/0": 3}}
    news.note(taken_over)
    assert said == []
    news.note({**taken_over, "restored": {"counts/0": 9}})
    assert said == ["every copy of counts/0 is lost; it goes on from its saved state"]


# --- move and drain -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", ["node-3", "node-4.1"])
@pytest.mark.parametrize("command", [["drain"], ["move", "counts/0"]], ids=["drain", "move"])
def test_nothing_moves_on_nodes_of_a_version_that_may_be_taken_back(
    run: Upgraded, command: list[str], node: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run.reach("catching up")
    assert main([*command, node, str(run.folder)]) == 2
    said = capsys.readouterr().err
    assert f"{node} works for version 2 of the flow, which is not yet the run's own." in said
    assert "can be moved when the upgrade is done" in said
