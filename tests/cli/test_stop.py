"""`understudy stop`: the process that holds the run's folder ends the run, and nobody else is signalled."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from understudy.cli import stop
from understudy.cli.main import main
from understudy.runtime.folder_lock import lock_of_run
from understudy.runtime.settings import RunSettings
from understudy.runtime.stopped import Stopped, leave_stopped

#: Holds a run's folder, and ends in good order when it is asked to: {deed} is done then.
LAUNCHER = """
import signal, sys, time
from pathlib import Path
from understudy.runtime.folder_lock import lock_of_run

def asked(*_):
    {deed}

signal.signal(signal.SIGTERM, asked)
lock = lock_of_run(Path(sys.argv[1]))
lock.take()
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def settings(tmp_path: Path) -> RunSettings:
    made = RunSettings("run", "/flows/copy.py", str(tmp_path / "run"), "nowhere:1")
    made.save()
    return made


class Launchers:
    def __init__(self) -> None:
        self.started: list[subprocess.Popen[str]] = []

    def start(self, settings: RunSettings, deed: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", LAUNCHER.format(deed=deed), settings.folder]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        launcher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.started.append(launcher)
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "ready\n"
        return launcher


@pytest.fixture
def launchers() -> Iterator[Launchers]:
    made = Launchers()
    yield made
    for launcher in made.started:
        launcher.kill()
        launcher.communicate()


def test_a_run_is_stopped_by_the_process_that_started_it(
    settings: RunSettings, launchers: Launchers, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = launchers.start(settings, "sys.exit(143)")
    assert main(["stop", settings.folder]) == 0
    assert launcher.wait(10) == 143
    assert capsys.readouterr().out.splitlines() == [
        "stopping run run",
        f"stopped; go on with: understudy run /flows/copy.py --folder {settings.folder}",
    ]


def test_a_run_is_stopped_also_where_that_cannot_be_said(settings: RunSettings, launchers: Launchers) -> None:
    launcher = launchers.start(settings, "sys.exit(143)")
    with Path("/dev/full").open("w") as full, redirect_stdout(full):
        assert main(["stop", settings.folder]) == 0
    assert launcher.wait(10) == 143


def test_a_stop_that_saved_every_state_is_said_to_have(
    settings: RunSettings, launchers: Launchers, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_stopped(settings.path, Stopped(all_saved=True))
    launchers.start(settings, "sys.exit(143)")
    assert main(["stop", settings.folder]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "stopped, and every state is saved; "
        f"go on with: understudy run /flows/copy.py --folder {settings.folder}"
    )


def test_a_run_that_is_not_running_is_not_stopped_and_no_stranger_is_signalled(
    settings: RunSettings, launchers: Launchers, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = launchers.start(settings, "sys.exit(143)")
    launcher.kill()
    launcher.wait()
    # Its number is still in the folder, and another process may have it by now.
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        (settings.path / "lock").write_text(f"{stranger.pid}\n")
        code, alive = main(["stop", settings.folder]), stranger.poll() is None
        stranger.kill()
    assert (code, alive) == (2, True)
    assert f"Run run in {settings.folder} is not running on this machine." in capsys.readouterr().err


def test_a_run_that_does_not_end_is_reported_with_its_logs(
    settings: RunSettings,
    launchers: Launchers,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    launchers.start(settings, "pass")
    monkeypatch.setattr(stop, "LAST_SAVE_S", 0.2)
    monkeypatch.setattr(stop, "_END_S", 0.8)
    assert main(["stop", settings.folder]) == 3
    err = capsys.readouterr().err
    assert "Run run has not ended within 1 s." in err
    assert f"{settings.folder}/logs" in err


def test_the_folder_of_a_stopped_run_is_free(settings: RunSettings, launchers: Launchers) -> None:
    launchers.start(settings, "sys.exit(143)")
    assert main(["stop", settings.folder]) == 0
    lock = lock_of_run(settings.path)
    lock.take()
    lock.release()


def test_a_run_that_could_not_leave_its_number_is_said_to_run(
    settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = lock_of_run(settings.path)
    lock.take()
    lock.file.write_text("")
    assert main(["stop", settings.folder]) == 3
    lock.release()
    err = capsys.readouterr().err
    assert f"{lock.file} does not say which process started it" in err
    assert "Press Ctrl-C where it was started" in err


def test_a_run_of_another_user_is_not_stopped_and_said_to_be_that(
    settings: RunSettings,
    launchers: Launchers,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    launcher = launchers.start(settings, "sys.exit(143)")

    def refuse(_pid: int, _number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(stop.os, "kill", refuse)
    assert main(["stop", settings.folder]) == 2
    assert f"is another user's, so this user cannot stop it: its process is {launcher.pid}" in (
        capsys.readouterr().err
    )
