"""The processes of a run, as the process that started them knows them: one started, one that failed, several
ended in good order.

Each is started in a session of its own, so that Ctrl-C reaches only the process that started them, which then
ends them in good order. Each holds the reading end of a pipe from its parent and ends when that closes,
however the parent ended.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.process import END_TIMEOUT_S, failure_file, kill_with_last_words, ready_file
from understudy.runtime.process_tree import family, signal_all, signal_tree
from understudy.runtime.pulse import Pulse, pulse_file
from understudy.runtime.settings import RunSettings

log = logging.getLogger(__name__)

#: A little more than a process takes at most.
STOP_TIMEOUT_S = END_TIMEOUT_S + 1.0
LAST_WORDS = "What its threads were at is in its .out.log."
#: The pause before a process that failed is started again: it doubles from the first to the second of these.
RETRY_PAUSE_S = 1.0
RETRY_PAUSE_S_MAX = 30.0


@dataclass
class Child:
    """One process of the run."""

    name: str
    command: list[str]
    process: subprocess.Popen[bytes]
    pulse: Pulse
    incarnation: int = 1
    started_at: float = field(default_factory=time.monotonic)
    #: How often in a row it failed, this time included once it was noticed.
    failures: int = 0
    #: When it is to be started again, once its end was noticed.
    again_at: float | None = None
    #: Why its successor could not even be started.
    not_started: str = ""
    #: Why its launcher killed it.
    given_up: str = ""

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def failed(self) -> bool:
        """Whether it ended by itself and not in good order. One that was killed has not failed."""
        return (self.process.poll() or 0) > 0

    def give_up(self) -> None:
        """Kill it, because it does nothing any more."""
        self.given_up = f"It stood still for long and was killed. {LAST_WORDS}"
        log.warning("%s has stood still for long; killing it. %s", self.name, LAST_WORDS)
        kill_with_last_words(self.process)

    def why_gone(self, settings: RunSettings) -> str:
        """Why a process that has ended did."""
        if self.not_started or self.given_up:
            return self.not_started or self.given_up
        file = failure_file(settings.path, self.name)
        # On a full disk the file may be there and empty.
        reason = file.read_text().strip() if file.exists() else ""
        code, logs = self.process.returncode, settings.path / "logs"
        if code < 0:
            # What it left before, another one of this name did.
            return f"{_signal(-code)} killed it; the system does that if memory runs short. See {logs}."
        return reason or f"It gave no reason (exit code {code}); see {logs}."


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True)
class Setback:
    """A process failed so often in a row and waits to be started again; `text` says so to a person."""

    failures: int
    text: str

    @classmethod
    def of(cls, name: str, failures: int, again_at: float, why: str) -> Setback:
        times = "once" if failures == 1 else f"{failures} times in a row"
        wait_s = max(0.0, again_at - time.monotonic())
        return cls(
            failures,
            f"{name} failed, {times}, and is started again in {wait_s:.0f} s; "
            f"the other processes go on and keep their state. {why}",
        )


def started(
    settings: RunSettings, name: str, command: list[str], incarnation: int = 1, failures: int = 0
) -> Child:
    """A process of this run. Raises `EnvironmentFailed` if it cannot be started."""
    numbered = [] if name == "gateway" else ["--incarnation", str(incarnation)]
    out = settings.log_file(f"{name}.out")
    pulse = Pulse(pulse_file(settings.path, name))
    try:
        ready_file(settings.path, name).unlink(missing_ok=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "understudy.runtime.main", *command, *numbered, "--with-parent"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
    except OSError as problem:
        raise EnvironmentFailed(f"{name} cannot be started: {problem}.") from problem
    return Child(name, command, process, pulse, incarnation, failures=failures)


def end_all(children: Sequence[Child]) -> None:
    """End these processes, in good order if they do so in time."""
    running = [child for child in children if child.running]
    families = [member for child in running for member in family(child.process.pid)[1:]]
    for child in running:
        signal_tree(child.process.pid, signal.SIGCONT)
        child.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    for child in children:
        try:
            child.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            log.warning("%s does not end; killing it. %s", child.name, LAST_WORDS)
            kill_with_last_words(child.process)
    # A Java ends when it notices that its node is gone. One that is still starting takes a while to.
    signal_all(families, signal.SIGKILL)


def retry_pause_s(failures: int) -> float:
    """How long to wait after so many failures in a row; a process that was killed has not failed."""
    return 0.0 if failures == 0 else min(RETRY_PAUSE_S * 2 ** min(failures - 1, 10), RETRY_PAUSE_S_MAX)
