"""A command that owns processes, as `understudy run` does: watched and killed with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psutil

from descendants import Descendants
from understudy.runtime.process_tree import signal_all

LEFT_AFTER_S = 10.0


class Owner:
    """A command, and all that it started."""

    def __init__(self, *command: str) -> None:
        self._processes = Descendants()
        environment = {**self._processes.environment, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    def family(self) -> list[psutil.Process]:
        return self._processes.running()

    def commands(self) -> list[str]:
        return [" ".join(process.cmdline()) for process in self.family() if process.is_running()]

    def left_after(self, number: signal.Signals) -> list[str]:
        """Kill the command itself; what still runs when it should all be gone."""
        self.process.send_signal(number)
        deadline = time.monotonic() + LEFT_AFTER_S
        while self.family() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.commands()

    def lose_power(self) -> None:
        """Kill the command and all that it started at one instant: none of them can do anything about it."""
        signal_all(self.family(), signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        self.lose_power()
        assert self.process.stdout is not None
        self.process.stdout.close()


def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.01)
