"""What a person reads while a run goes on, in a terminal and in a pipe."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from understudy.cli import run as run_command
from understudy.cli import view as view_module
from understudy.cli.picture import Figures, NodeLine
from understudy.cli.view import LiveView, PlainView, view_for

FIGURES = Figures(70_000, 10_000.0, 5_000, 900.0, 420.0, 0.3, 0, 12, 3 * 2**20)
PRIMARY = NodeLine("node-1.1", "primary", "ACTIVE", True, 3, 120.0, 0, 700)
STANDBY = NodeLine("node-3.1", "-", "STDBY (ready)")


def test_a_plain_view_tells_a_change_once(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView()
    view.show(1, [PRIMARY, STANDBY], FIGURES)
    view.show(1, [PRIMARY, STANDBY], FIGURES)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("  ", 1)[1] for line in printed] == [
        "node-1.1: ACTIVE as primary, sends  (epoch 1)",
        "node-3.1: STDBY (ready)  (epoch 1)",
        FIGURES.sentence,
    ]
    view.show(2, [STANDBY, NodeLine("node-1.1", "primary", "DEAD")], FIGURES)
    assert "node-1.1: DEAD as primary  (epoch 2)" in capsys.readouterr().out


def shown(width: int, *frames: tuple[list[NodeLine], Figures]) -> str:
    screen = io.StringIO()
    with LiveView("sessions, policy pair", Console(file=screen, force_terminal=True, width=width)) as view:
        view.say("node-1 failed [really]")
        for nodes, figures in frames:
            view.show(4, nodes, figures)
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\r", "", screen.getvalue())


def test_a_live_view_shows_nodes_figures_and_news() -> None:
    text = shown(80, ([PRIMARY, STANDBY], FIGURES))
    for part in ("[really]", "epoch 4", "node-1.1", "3 in   120 ms", "10000 rows/s", "420 ms", "0.3 s ago"):
        assert part in text


BUSY = NodeLine("node-12.1001", "secondary", "STDBY (ready)", True, 1_000, 99_999.0, 99_999, 99_999_999_999)
LARGE = Figures(10**11, 9_999_999.0, 10**11, 9_999_999.0, 999_999.0, 999.9, 10**9, 10**6, 2**36)


def test_a_live_view_fits_80_columns_whatever_the_numbers() -> None:
    text = shown(80, ([BUSY, STANDBY], LARGE))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_a_third_replica_has_room_for_its_place() -> None:
    text = shown(80, ([NodeLine("node-3.1", "replica 2", "ACTIVE", True, 3, 120.0, 0, 700)], FIGURES))
    assert "replica 2" in text
    assert "rows in" in text, "a role is no list of copies"


def test_nothing_moves_when_numbers_grow() -> None:
    small, large = (shown(80, ([line], figures)) for line, figures in ((PRIMARY, FIGURES), (BUSY, LARGE)))
    for column in ("place", "state", "sends", "last buckets", "waiting", "rows in", "latency", "last output"):
        first, second = (next(x for x in text.splitlines() if column in x) for text in (small, large))
        assert first.index(column) == second.index(column)


def test_at_the_end_the_view_no_longer_offers_ctrl_c() -> None:
    assert "Ctrl-C" not in shown(80, ([PRIMARY], FIGURES)).split("epoch 4")[-1]


def test_outside_a_terminal_the_view_is_plain() -> None:
    assert isinstance(view_for("sessions", plain=False), PlainView)


HOLDER = NodeLine(
    "node-12.1001",
    "sessions 0 3*, stats 0 3*~",
    "1 of 4 STDBY",
    group_buckets=1_000,
    group_ms=99_999.0,
    queued_buckets=99_999,
    holds_copies=True,
)


def test_a_live_view_of_a_partitioned_flow_has_room_for_the_copies() -> None:
    text = shown(80, ([HOLDER, STANDBY], LARGE))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "sessions 0 3*, stats 0 3*~" in text


def test_a_plain_view_tells_which_copies_a_node_holds(capsys: pytest.CaptureFixture[str]) -> None:
    PlainView().show(3, [HOLDER], FIGURES)
    assert "node-12.1001: 1 of 4 STDBY with sessions 0 3*, stats 0 3*~  (epoch 3)" in capsys.readouterr().out


def test_a_gateway_that_is_away_is_said_to_be_and_ages_what_it_last_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, said, ages = SimpleNamespace(now_s=0.0), [], []
    monkeypatch.setattr(run_command, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    view: Any = SimpleNamespace(say=said.append, show=lambda _e, _n, figures: ages.append(figures.age_s))
    upgrading = SimpleNamespace(news=list)
    run: Any = SimpleNamespace(children={}, setbacks={}, upgrading=upgrading)
    connected: Any = SimpleNamespace(session=SimpleNamespace(connected=True))
    shown = run_command._Shown(run, view, connected)
    nothing: dict[str, Any] = {"epoch": 1, "nodes": {}, "down": [], "restored": {}}
    first, later = {"at_us": 1, **nothing}, {"at_us": 2, **nothing}
    for clock.now_s, answer in ((0.0, first), (2.0, None), (4.0, None), (9.0, None), (10.0, later)):
        shown.update(answer)
    assert ages == [0.0, 0.0, 4.0, 9.0, 0.0]
    assert said == ["the gateway does not answer", "the gateway answers again"]


def test_a_plain_view_says_now_and_then_that_it_waits_for_the_first_view(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(view_module.time, "monotonic", lambda: now_s[0])
    view = PlainView()
    for now_s[0] in (100.0, 109.0, 111.0, 112.0, 122.0):
        view.show(0, [], FIGURES)
    printed = capsys.readouterr().out
    assert printed.count("... still waiting for the first view") == 2
    assert "Spark" not in printed, "all nodes may be ready, or the gateway away"
