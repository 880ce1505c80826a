"""`understudy run` as a user gives it: a command in a folder, stopped, killed with all that it started, and
given again.

The command ends with the study that gave it, however that ends, and its processes end with the command.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from descendants import Descendants
from understudy.cli.kill import processes_of
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.process import PR_SET_PDEATHSIG
from understudy.runtime.process_tree import family, signal_all
from understudy.runtime.settings import RunSettings
from understudy.runtime.status import RunStatus, started_as

POLL_S = 0.1
PATIENCE_S = 300.0
STATUS_TIMEOUT_S = 2.0

#: Becomes the command that follows, which the kernel kills when the process that started it is gone.
WITH_STUDY = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""

Condition = Callable[[dict[str, Any]], bool]


def now_us() -> int:
    return time.time_ns() // 1_000


class Commanded:
    """A run that is started by its command, as often as it is wanted, in a folder of its own."""

    def __init__(self, flow: Path, *options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="understudy-study-"))
        self._processes = Descendants()
        output = {f"{flow.stem.upper()}_OUTPUT": str(self.folder / "out")}
        self._environment = {**self._processes.environment, **output}
        self.flow = flow
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._status: RunStatus | None = None

    def start(self) -> int:
        """Give the command; returns when that was, in microseconds. What it says goes to `said`."""
        options = () if (self.folder / "run").exists() else self._options
        command = ["-m", "understudy.cli.main", "run", str(self.flow), "--plain"]
        command += ["--folder", str(self.folder / "run")]
        at_us = now_us()
        with (self.folder / "said").open("ab") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-c", WITH_STUDY, str(os.getpid()), *command, *options],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=self._environment,
            )
        return at_us

    def upgrade(self, flow: Path, *options: str) -> tuple[int, str]:
        """Give the command that lets this flow go live; its exit code, and what it said."""
        command = ["-m", "understudy.cli.main", "upgrade", str(flow), str(self.folder / "run"), *options]
        done = subprocess.run(
            [sys.executable, "-c", WITH_STUDY, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
            timeout=PATIENCE_S,
            check=False,
        )
        return done.returncode, done.stdout

    # --- looking -----------------------------------------------------------------------------------------

    @property
    def settings(self) -> RunSettings:
        return RunSettings.load(self.folder / "run")

    def status(self) -> dict[str, Any] | None:
        try:
            self._status = self._status or RunStatus(self.settings)
            return self._status.ask(STATUS_TIMEOUT_S)
        except EnvironmentFailed:
            # Perhaps it has another port now.
            self._forget_status()
            return None

    def wait(self, what: str, condition: Condition) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            status = self.status()
            if status is not None and condition(status):
                return status
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"the run ended before {what} came; see {self.folder}/said")
            time.sleep(POLL_S)
        raise RuntimeError(f"{what} did not come in {PATIENCE_S:.0f} s; see {self.folder}")

    def nodes_of(self, status: dict[str, Any], partition: str) -> list[str]:
        """The processes that hold a copy of a partition."""
        return sorted(
            started_as(seat["node"])
            for copy, seat in status["seats"].items()
            if copy.rpartition(":")[0] == partition and seat["status"] != "DEAD"
        )

    # --- harming -----------------------------------------------------------------------------------------

    def stop(self) -> float:
        """Ctrl-C; returns how long the command then took to end, in seconds."""
        assert self._process is not None
        began = time.monotonic()
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE_S)
        self._forget_status()
        return time.monotonic() - began

    def lose_power(self) -> int:
        """Kill the command and all its processes at one instant; returns when."""
        processes = self._processes.running()
        at_us = now_us()
        signal_all(processes, signal.SIGKILL)
        psutil.wait_procs(processes, timeout=PATIENCE_S)
        if self._process is not None:
            self._process.wait()
        self._forget_status()
        return at_us

    def kill_nodes(self, names: Sequence[str]) -> int:
        """Kill these nodes at one instant, with all that they started; returns when."""
        found = processes_of(self.settings)
        processes = [each for name in names for pid in found.get(name, ()) for each in family(pid)]
        at_us = now_us()
        signal_all(processes, signal.SIGKILL)
        return at_us

    def end(self) -> None:
        """End all that still runs, in whatever order. What is on disk stays."""
        self.lose_power()

    def _forget_status(self) -> None:
        if self._status is not None:
            self._status.close()
            self._status = None
