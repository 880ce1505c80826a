"""All processes that come from one command: found by a mark in the environment, which every descendant
inherits, also after its parent is gone.
"""

from __future__ import annotations

import os
import uuid

import psutil


class Descendants:
    """Those of the commands that are started with this `environment`.

    Every mark is a variable of its own: a command that marks what it starts keeps its own mark on it.
    """

    def __init__(self) -> None:
        self._mark = f"UNDERSTUDY_STARTED_BY_{uuid.uuid4().hex}"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, self._mark: "1"}

    def running(self) -> list[psutil.Process]:
        """All that still run, except for what only waits to be reaped."""
        found = []
        for process in psutil.process_iter():
            try:
                if self._mark in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found
