"""What a person reads while a run goes on, in a terminal and in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from understudy.cli.picture import Figures, NodeLine
from understudy.cli.view import LiveView, PlainView, view_for

FIGURES = Figures(10_000.0, 900.0, 420.0, 0.3, 5_000, 0, 12, 3 * 2**20)
PRIMARY = NodeLine("node-1.1", "primary", "ACTIVE", True, 3, 120.0, 0, 700)
STANDBY = NodeLine("node-3.1", "-", "STDBY (ready)")


def test_a_plain_view_tells_a_change_once(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView()
    view.show(1, [PRIMARY, STANDBY], FIGURES)
    view.show(1, [PRIMARY, STANDBY], FIGURES)
    told = capsys.readouterr().out.splitlines()
    assert [line.split("  ", 1)[1] for line in told] == [
        "node-1.1: ACTIVE as primary, sends  (epoch 1)",
        "node-3.1: STDBY (ready)  (epoch 1)",
        FIGURES.sentence,
    ]
    view.show(2, [STANDBY, NodeLine("node-1.1", "primary", "DEAD")], FIGURES)
    assert "node-1.1: DEAD as primary  (epoch 2)" in capsys.readouterr().out


def test_a_live_view_shows_nodes_figures_and_news() -> None:
    screen = io.StringIO()
    with LiveView("sessions, policy pair", Console(file=screen, force_terminal=True, width=150)) as view:
        view.say("starting ZooKeeper")
        view.show(4, [PRIMARY, STANDBY], FIGURES)
    shown = screen.getvalue()
    for text in ("starting ZooKeeper", "epoch 4", "node-1.1", "3 buckets in 120 ms", "latency 420 ms"):
        assert text in shown


def test_outside_a_terminal_the_view_is_plain() -> None:
    assert isinstance(view_for("sessions", plain=False), PlainView)
