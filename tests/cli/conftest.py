"""Folders of runs, and the commands that are given in them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from folders_kit import FLOW
from upgrade_command_kit import Commanded, answering

from understudy.cli.main import main
from understudy.runtime.local import LocalRun
from understudy.runtime.process import begun_file
from understudy.runtime.settings import RunSettings


class Started(Exception):
    """The run would start now."""

    def __init__(self, settings: RunSettings) -> None:
        super().__init__(settings.run)
        self.settings = settings


@pytest.fixture(autouse=True)
def hang_up() -> Iterator[None]:
    """SIGHUP as in a terminal. The tests may run under nohup, which has it ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.py").write_text(FLOW)
    return tmp_path


@pytest.fixture
def former(here: Path) -> RunSettings:
    """A run that had begun and was stopped."""
    made = RunSettings("run", str(here / "flow.py"), str(here / "run"), "", own_zookeeper=True, flow="copy")
    made.save()
    begun_file(made.path).touch()
    for name in ("lock", "ready/gateway", "log/1.wal", "flow.json"):
        (made.path / name).parent.mkdir(exist_ok=True)
        (made.path / name).touch()
    (made.path / "logs").mkdir()
    return made


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RunSettings]]:
    """Runs the command as far as anything would start; with which settings."""

    def start(settings: RunSettings, **_: object) -> LocalRun:
        raise Started(settings)

    monkeypatch.setattr(LocalRun, "on_own_zookeeper", start)

    def run(*options: str, flow: str = "flow.py") -> RunSettings:
        with pytest.raises(Started) as would:
            main(["run", flow, "--folder", "run", "--plain", *options])
        return would.value.settings

    yield run


@pytest.fixture
def command(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commanded]:
    """`understudy upgrade`, where the changed flow fits."""
    answering(monkeypatch)
    made = Commanded(here, monkeypatch)
    yield made
    made.lock.release()
