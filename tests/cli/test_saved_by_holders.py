"""What `understudy run` makes of saved state: only the nodes that hold a copy now speak of it."""

from __future__ import annotations

from typing import Any

import pytest

from understudy.cli import saved
from understudy.cli.saved import SavedNews, save_last


class Said:
    """A view that keeps its sentences."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def say(self, text: str) -> None:
        self.sentences.append(text)


class Unhurried:
    asked_again = False

    def grant(self, _seconds: float) -> None:
        pass


class Run:
    """A run that saves what its copy has taken each time it is asked to."""

    def __init__(self, *taken: int) -> None:
        self._taken = list(taken)
        self.asked = 0
        self._saved = -1

    def save_and_hold(self) -> bool:
        self.asked += 1
        self._saved = self._taken[0]
        return True

    def status(self) -> dict[str, Any]:
        if len(self._taken) > 1:
            self._taken.pop(0)
        return status({"node-2.1": copy_stats(self._saved, self._taken[0])})


def copy_stats(saved_through: int, handed_through: int) -> dict[str, Any]:
    return {
        "begun": True,
        "groups": 1,
        "queued_buckets": 0,
        "saved_through": saved_through,
        "handed_through": handed_through,
        "saving_trouble": "",
        "not_saved_since_s": None,
    }


def status(told: dict[str, dict[str, Any]], restored: int = 0) -> dict[str, Any]:
    """The only copy sits on node-2.1; nodes have told this of it."""
    return {
        "seats": {"f/0:0": {"node": "node-2.1", "status": "ACTIVE", "epoch": 2}},
        "nodes": {node: {"copies": {"f/0:0": stats}} for node, stats in told.items()},
        "down": [],
        "restored": {"f/0": restored} if restored else {},
    }


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "_POLL_S", 0.0)
    monkeypatch.setattr(saved, "_ASK_AGAIN_S", 0.0)


def test_a_copy_that_has_taken_more_since_its_last_snapshot_is_asked_for_another() -> None:
    run, view = Run(5, 6, 7, 8), Said()
    save_last(run, view, Unhurried())  # type: ignore[arg-type]
    assert view.sentences[-1] == "every state is saved"
    assert run.asked > 1


@pytest.mark.parametrize("order", [("node-1.1", "node-2.1"), ("node-2.1", "node-1.1")])
def test_what_a_dead_node_told_last_does_not_hold_a_stop_up(order: tuple[str, str]) -> None:
    class Bereaved(Run):
        def status(self) -> dict[str, Any]:
            told = {"node-1.1": copy_stats(3, 4), "node-2.1": copy_stats(9, 9)}
            return status({node: told[node] for node in order})

    view = Said()
    run = Bereaved(9)
    save_last(run, view, Unhurried())  # type: ignore[arg-type]
    assert view.sentences[-1] == "every state is saved"
    assert run.asked == 1


def test_a_partition_goes_on_when_its_new_holder_works_and_not_before() -> None:
    view = Said()
    news = SavedNews(view)  # type: ignore[arg-type]
    dead = {"node-1.1": copy_stats(4, 4)}
    news.note(status(dead, restored=2))
    assert view.sentences == ["every copy of f/0 is lost; it goes on from its saved state"]
    news.note(status({**dead, "node-2.1": copy_stats(4, 5)}, restored=2))
    assert "f/0 goes on" in view.sentences[-1]
