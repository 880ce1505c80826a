"""What `understudy run` says by its exit code; docs/operating.md has the table."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from understudy.cli import run as module
from understudy.cli.main import main
from understudy.flow.errors import EnvironmentFailed, UserError

STATUS = {"at_us": 1, "epoch": 1, "seats": {}, "nodes": {}, "down": [], "restored": {}, "lost": None}


class Run:
    """A run without processes, and what becomes of it."""

    def __init__(self, settings: Any, becomes: Callable[[Run], dict[str, Any] | None]) -> None:
        self.settings = settings
        self.finished = False
        self.children: dict[str, Any] = {}
        self.setbacks: dict[str, Any] = {}
        self.node_names = ["node-1"]
        self.held_back: list[str] = []
        self.upgrading = SimpleNamespace(news=list)
        self.has_saved = False
        self._becomes = becomes

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self) -> None:
        pass

    def status(self) -> dict[str, Any]:
        return {**STATUS, **(self._becomes(self) or {})}

    def save_and_hold(self) -> bool:
        self.has_saved = True
        return True

    def mark_as_stopped(self, *, all_saved: bool) -> None:
        assert all_saved == self.has_saved


@pytest.fixture
def ended(here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, bool]]:
    """The exit code of a run of which this becomes, and whether it was asked to save its state."""

    def end(becomes: Callable[[Run], dict[str, Any] | None], *options: str) -> tuple[int, bool]:
        runs: list[Run] = []

        def local_run(settings: Any, *_: object) -> Run:
            runs.append(Run(settings, becomes))
            return runs[0]

        connected = SimpleNamespace(session=SimpleNamespace(connected=True))
        monkeypatch.setattr(module, "_local_run", local_run)
        monkeypatch.setattr(module, "Coordination", lambda *_: nullcontext(connected))
        monkeypatch.setattr(module, "log_into", lambda _settings: None)
        monkeypatch.setattr(module, "_PERIOD_S", 0.01)
        code = main(["run", "flow.py", "--folder", "run", "--plain", *options])
        return code, runs[0].has_saved

    return end


def finishes(run: Run) -> None:
    run.finished = True


def goes_on(_run: Run) -> None:
    pass


def is_lost(_run: Run) -> dict[str, Any]:
    return {"lost": "no copy of copy/0 is left"}


def fails_by(problem: Exception) -> Callable[[Run], None]:
    def fail(_run: Run) -> None:
        raise problem

    return fail


def hears(number: signal.Signals) -> Callable[[Run], None]:
    def hear(run: Run) -> None:
        if not run.has_saved:
            os.kill(os.getpid(), number)

    return hear


@pytest.mark.parametrize(
    ("becomes", "code", "saves"),
    [
        (finishes, 0, False),
        (hears(signal.SIGINT), 130, True),
        (hears(signal.SIGTERM), 143, True),
        (hears(signal.SIGHUP), 129, True),
        (fails_by(UserError("column nosuch is missing")), 2, False),
        (fails_by(EnvironmentFailed("there is no Java")), 3, False),
    ],
    ids=["finished", "Ctrl-C", "stop", "hung up", "mistake", "environment"],
)
def test_the_exit_code_of_a_run_tells_how_it_ended(
    becomes: Callable[[Run], None], code: int, saves: bool, ended: Callable[..., tuple[int, bool]]
) -> None:
    assert ended(becomes) == (code, saves)


def test_a_run_whose_time_is_over_saves_and_ends_well(ended: Callable[..., tuple[int, bool]]) -> None:
    assert ended(goes_on, "--seconds", "0.05") == (0, True)


def test_a_run_without_saved_state_that_loses_every_copy_of_a_partition_fails(
    ended: Callable[..., tuple[int, bool]],
) -> None:
    assert ended(is_lost, "--snapshot-every", "0") == (1, False)


def test_the_help_and_the_handbook_name_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    help_text = capsys.readouterr().out
    handbook = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    table = handbook.split("| exit code |")[1].split("\n\n")[0]
    codes = [0, 1, 2, 3, 129, 130, 143]
    assert sorted(map(int, re.findall(r"^\| (\d+) \|", table, re.MULTILINE))) == codes
    said = help_text.split("exit code:")[1].split("example:")[0]
    assert sorted(map(int, re.findall(r"\b\d+\b", said))) == codes
