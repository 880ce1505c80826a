"""What becomes of a run that ends, and what `understudy status` says of it afterwards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from understudy.cli import run as module
from understudy.cli.interruption import Interrupted
from understudy.cli.main import main
from understudy.runtime.process import begun_file, failure_file
from understudy.runtime.settings import RunSettings
from understudy.runtime.stopped import Stopped, leave_stopped

# --- status -------------------------------------------------------------------------------------------------


@pytest.fixture
def settings(tmp_path: Path) -> RunSettings:
    made = RunSettings("run", "/flows/copy.py", str(tmp_path / "run"), "nowhere:1")
    made.save()
    begun_file(made.path).touch()
    return made


def said(settings: RunSettings, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["status", settings.folder]) == 3
    return capsys.readouterr().err.strip().removeprefix(f"understudy status: Run run in {settings.folder} ")


def go_on(settings: RunSettings) -> str:
    return f"Go on with: understudy run /flows/copy.py --folder {settings.folder}"


def test_a_run_that_was_stopped_with_all_its_state_says_so(
    settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_stopped(settings.path, Stopped(all_saved=True))
    assert said(settings, capsys) == f"is stopped, in good order: every state is saved. {go_on(settings)}"


def test_a_run_that_was_stopped_before_all_was_saved_says_from_where_it_goes_on(
    settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_stopped(settings.path, Stopped(all_saved=False))
    assert said(settings, capsys) == (
        "is stopped, in good order. Not every state was saved then: it goes on from the snapshots before and "
        f"from its log. {go_on(settings)}"
    )


def test_a_run_that_was_killed_is_not_said_to_be_stopped(
    settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(settings, capsys) == (
        "broke off: it was not stopped. It was killed, or its machine went down. Its logs are in "
        f"{settings.path / 'logs'}. {go_on(settings)}"
    )


def test_a_run_that_failed_says_why(settings: RunSettings, capsys: pytest.CaptureFixture[str]) -> None:
    failure_file(settings.path, "node-1").parent.mkdir()
    failure_file(settings.path, "node-1").write_text("column nosuch is missing.\n")
    assert said(settings, capsys) == (
        "broke off: it was not stopped. node-1 failed: column nosuch is missing. Its logs are in "
        f"{settings.path / 'logs'}. {go_on(settings)}"
    )


def test_a_run_that_saves_nothing_is_not_said_to_go_on(
    settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    forgetful = replace(settings, snapshot_every_ms=0)
    forgetful.save()
    leave_stopped(settings.path, Stopped(all_saved=False))
    assert said(settings, capsys) == (
        "is stopped, in good order. It saved no state, so it cannot go on. "
        "Start the flow again in a new folder."
    )
    begun_file(settings.path).unlink()
    assert said(settings, capsys) == f"is stopped, in good order. {go_on(settings)}"


# --- the end of a run ---------------------------------------------------------------------------------------


class Run:
    def __init__(self, *, saves: bool = True, finished: bool = False) -> None:
        self.settings = SimpleNamespace(saves=saves)
        self.finished = finished
        self.upgrading = SimpleNamespace(news=lambda: [])
        self.stopped: list[bool] = []

    def mark_as_stopped(self, *, all_saved: bool) -> None:
        self.stopped.append(all_saved)


@pytest.mark.parametrize(
    ("run", "code", "saved", "stopped"),
    [
        (Run(), 130, True, [True]),
        (Run(), 130, False, [False]),
        (Run(saves=False), 130, True, [False]),
        (Run(finished=True), 0, True, []),
        (Run(saves=False), module.LOST, False, []),
    ],
    ids=["all saved", "not all saved", "without saving", "finished", "lost"],
)
def test_a_run_that_ends_because_it_was_told_to_is_stopped(
    monkeypatch: pytest.MonkeyPatch, run: Run, code: int, saved: bool, stopped: list[bool]
) -> None:
    monkeypatch.setattr(module, "_looked_after", lambda *_: code)
    monkeypatch.setattr(module, "save_last", lambda *_: saved)
    ending: Any = run
    nothing: Any = None
    assert module._stopped(ending, nothing, nothing, None) == code
    assert run.stopped == stopped


def test_a_run_that_is_told_to_end_while_it_starts_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise Interrupted

    monkeypatch.setattr(module, "_looked_after", interrupted)
    starting: Any = Run()
    nothing: Any = None
    with pytest.raises(Interrupted):
        module._stopped(starting, nothing, nothing, None)
    assert starting.stopped == [False]


def test_a_run_that_fails_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> int:
        raise ValueError

    monkeypatch.setattr(module, "_looked_after", failing)
    failed: Any = Run()
    nothing: Any = None
    with pytest.raises(ValueError):
        module._stopped(failed, nothing, nothing, None)
    assert failed.stopped == []
