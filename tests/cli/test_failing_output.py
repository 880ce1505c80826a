"""Commands whose output goes to a full disk, to a reader who leaves, or to a terminal that closes."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO

import pytest
from folders_kit import FLOW
from upgrade_command_kit import Commanded

from understudy.cli.output import WAITING_CHARS_MAX, output_may_fail
from understudy.flow.errors import UserError
from upgrade_kit import DONE, LIVE, NEAR, TRIAL_S

#: `understudy run` with nothing behind it, which shows itself often. It leaves a mark for each look at the
#: run, and one when the run is asked to save its state.
RUN = """
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from understudy.cli import main, run, view

class Run:
    finished, children, setbacks = False, {}, {}
    node_names, held_back = ["node-1"], []
    upgrading = SimpleNamespace(news=list)

    def __init__(self, settings, *_):
        self.settings, self.looks = settings, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        (self.settings.path / "ended").touch()

    def start(self):
        pass

    def status(self):
        self.looks += 1
        (self.settings.path / "looks").write_text(str(self.looks))
        nothing = {"seats": {}, "nodes": {}, "down": [], "restored": {}, "lost": ""}
        return {"at_us": self.looks, "epoch": 1, **nothing}

    def save_and_hold(self):
        (self.settings.path / "saved").touch()
        return True

    def mark_as_stopped(self, *, all_saved):
        assert all_saved == (self.settings.path / "saved").exists()

run._local_run = Run
run.Coordination = lambda *_: nullcontext(SimpleNamespace(session=SimpleNamespace(connected=True)))
run._PERIOD_S, view._LINE_EVERY_S = 0.02, float(sys.argv.pop(1))
sys.exit(main.command())
"""
#: A command that has more to say than a pipe holds.
TALKATIVE = """
import sys
from understudy.cli import main as module

def execute(_arguments):
    for _ in range(100_000):
        print("a line")
    return 1

module.import_module = lambda _name: type("Command", (), {"execute": staticmethod(execute)})
sys.argv = ["understudy", "status"]
sys.exit(module.command())
"""
OFTEN, NEVER = "0", "1000"
PATIENCE_S = 30.0
NOT_WRITTEN = "standard output cannot be written, and all goes on without it: "


def full_disk() -> TextIO:
    return Path("/dev/full").open("w")


def left_pipe() -> TextIO:
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w")


def closed_terminal() -> TextIO:
    person, terminal = pty.openpty()
    os.close(person)
    return os.fdopen(terminal, "w")


class Runs:
    """Programs in a folder of their own, which end with the test."""

    def __init__(self, here: Path) -> None:
        self.here = here
        self.folder = here / "run"
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *command: str, **options: Any) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm"}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        process = subprocess.Popen(
            [sys.executable, "-c", *command], cwd=self.here, env=environment, text=True, **streams
        )
        self.processes.append(process)
        return process

    def run(self, line_every_s: str = OFTEN, *options: str, **more: Any) -> subprocess.Popen[str]:
        (self.here / "flow.py").write_text(FLOW)
        return self.start(RUN, line_every_s, "run", "flow.py", "--folder", "run", *options, **more)

    @property
    def log(self) -> str:
        file = self.folder / "logs" / "understudy.log"
        return file.read_text() if file.exists() else ""

    def looks(self) -> int:
        file = self.folder / "looks"
        return int(file.read_text() or "0") if file.exists() else 0

    def until_it_goes_on(self) -> None:
        seen = self.looks()
        until(lambda: self.looks() > seen + 5)

    def has_saved(self) -> bool:
        return (self.folder / "saved").exists() and (self.folder / "ended").exists()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.02)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()


# --- a run --------------------------------------------------------------------------------------------------


def test_a_run_goes_on_when_its_reader_leaves_and_saves_when_it_is_stopped(runs: Runs) -> None:
    run = runs.run()
    assert run.stdout is not None
    assert "run folder" in run.stdout.readline()
    run.stdout.close()
    until(lambda: NOT_WRITTEN in runs.log)
    runs.until_it_goes_on()
    run.send_signal(signal.SIGTERM)
    assert run.wait(PATIENCE_S) == 143
    assert runs.has_saved()
    assert runs.log.count(NOT_WRITTEN) == 1
    assert "Broken pipe" in runs.log
    assert run.stderr is not None
    assert run.stderr.read() == ""


def test_a_reader_that_dies_of_the_same_ctrl_c_does_not_keep_a_run_from_saving(runs: Runs) -> None:
    run = runs.run(NEVER)
    assert run.stdout is not None
    assert any("starting the gateway" in line for line in run.stdout)
    runs.until_it_goes_on()
    run.stdout.close()
    run.send_signal(signal.SIGINT)
    assert run.wait(PATIENCE_S) == 130
    assert runs.has_saved()


def test_a_full_disk_under_its_output_does_not_end_a_run(runs: Runs) -> None:
    with full_disk() as full:
        run = runs.run(stdout=full)
    until(lambda: "No space left on device" in runs.log)
    runs.until_it_goes_on()
    run.send_signal(signal.SIGINT)
    assert run.wait(PATIENCE_S) == 130
    assert runs.has_saved()
    assert runs.log.count(NOT_WRITTEN) == 1
    assert run.stderr is not None
    assert run.stderr.read() == ""


def test_a_run_without_any_output_ends_as_usual(runs: Runs) -> None:
    with full_disk() as full:
        assert runs.run(OFTEN, "--seconds", "0.2", stdout=full).wait(PATIENCE_S) == 0
    assert runs.has_saved()


def test_a_run_that_was_started_with_its_output_closed_ends_as_usual(runs: Runs) -> None:
    run = runs.run(OFTEN, "--seconds", "0.2", stdout=None, preexec_fn=lambda: os.close(1))
    assert run.communicate(timeout=PATIENCE_S) == (None, "")
    assert run.returncode == 0


def test_a_run_whose_terminal_closes_saves_and_ends_as_one_that_was_hung_up(runs: Runs) -> None:
    person, terminal = pty.openpty()

    def take_the_terminal() -> None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    run = runs.run(
        stdin=terminal, stdout=terminal, stderr=terminal, pass_fds=[terminal], preexec_fn=take_the_terminal
    )
    os.close(terminal)
    shown = b""
    while b"epoch 1" not in shown:
        shown += os.read(person, 4096)
    os.close(person)
    assert run.wait(PATIENCE_S) == 129
    assert runs.has_saved()


def full_pipe() -> tuple[int, int]:
    """Its reader is there and does not read."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"." * 4096)
    os.set_blocking(writing, True)
    return reading, writing


def test_a_reader_that_does_not_read_does_not_keep_a_run_from_going_on_and_saving(runs: Runs) -> None:
    reading, writing = full_pipe()
    run = runs.run(stdout=writing)
    os.close(writing)
    until(lambda: runs.looks() > 0)
    runs.until_it_goes_on()
    run.send_signal(signal.SIGINT)
    assert run.wait(PATIENCE_S) == 130
    os.close(reading)
    assert runs.has_saved()


@pytest.mark.timeout(60)
def test_a_reader_that_reads_again_gets_what_was_said_meanwhile_as_far_as_there_was_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reading, writing = full_pipe()
    with os.fdopen(writing, "w") as output, redirect_stdout(output), output_may_fail():
        print("first")
        for _ in range(10_000):
            print("later, or lost")
        seen = b""
        while b"later, or lost" not in seen:
            seen += os.read(reading, 65_536)
        os.set_blocking(reading, False)
    with suppress(BlockingIOError):
        while read := os.read(reading, 65_536):
            seen += read
    os.close(reading)
    first, *others = seen.lstrip(b".").splitlines()
    assert (first, set(others)) == (b"first", {b"later, or lost"})
    assert len(others) < 10_000
    assert [record.message for record in caplog.records] == [f"{NOT_WRITTEN}nobody reads it"]


def test_a_mistake_keeps_its_exit_code_where_it_cannot_be_said(runs: Runs) -> None:
    with full_disk() as full:
        run = runs.start(RUN, OFTEN, "run", "missing.py", stdout=full, stderr=full)
        assert run.wait(PATIENCE_S) == UserError.exit_code


# --- other commands -----------------------------------------------------------------------------------------


def test_a_command_that_only_tells_something_ends_in_silence_with_its_reader(runs: Runs) -> None:
    command = runs.start(TALKATIVE)
    assert command.stdout is not None
    assert command.stdout.readline() == "a line\n"
    command.stdout.close()
    assert command.wait(PATIENCE_S) == 0
    assert command.stderr is not None
    assert command.stderr.read() == ""


class Disk(io.RawIOBase):
    """Takes what is written to it, unless it is full."""

    def __init__(self, problem: int = errno.ENOSPC) -> None:
        super().__init__()
        self.problem: int | None = problem
        self.refused = 0
        self.taken = b""

    def writable(self) -> bool:
        return True

    def write(self, given: Any) -> int:
        if self.problem is not None:
            self.refused += 1
            raise OSError(self.problem, os.strerror(self.problem))
        self.taken += bytes(given)
        return len(bytes(given))


def onto(disk: Disk) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedWriter(disk))


def test_output_comes_back_when_the_disk_has_room_again() -> None:
    disk = Disk()
    with redirect_stdout(onto(disk)), output_may_fail():
        print("kept", flush=True)
        until(lambda: disk.refused > 0)
        disk.problem = None
        print("later", flush=True)
    assert disk.taken == b"kept\nlater\n"


def test_output_that_waits_for_room_on_the_disk_is_bounded_and_whole() -> None:
    disk = Disk()
    with redirect_stdout(onto(disk)), output_may_fail():
        for _ in range(10_000):
            print("lost or kept", flush=True)
        until(lambda: disk.refused > 0)
        disk.problem = None
    assert 0 < len(disk.taken) <= 2 * WAITING_CHARS_MAX + io.DEFAULT_BUFFER_SIZE
    assert set(disk.taken.splitlines()) == {b"lost or kept"}


def test_an_error_that_is_not_of_the_output_is_raised() -> None:
    with pytest.raises(OSError, match="of the work"), output_may_fail():
        raise OSError("of the work")


@pytest.mark.parametrize("opened", [full_disk, left_pipe, closed_terminal])
def test_an_upgrade_is_followed_to_its_end_without_a_reader(
    command: Commanded, opened: Callable[[], TextIO]
) -> None:
    def on_trial_long_enough() -> None:
        command.run.now_s += TRIAL_S

    command.until_catching_up()
    command.then(NEAR, NEAR, LIVE, LIVE, on_trial_long_enough, LIVE, DONE, command.run.fleet.nodes_ended)
    command.then(DONE)
    with opened() as output, redirect_stdout(output), redirect_stderr(io.StringIO()):
        code = command.upgrade()
    assert (code, command.settings.version) == (0, 2)
