"""A process and all that it started, directly or not: signalled, measured and ended together."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil

#: The kernel takes a moment to clear away a large process that was killed.
KILL_TIMEOUT_S = 5.0


def family(pid: int) -> list[psutil.Process]:
    """A process and all its descendants; none if it is gone."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def signal_all(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def signal_tree(pid: int, number: signal.Signals) -> None:
    """Signal a process and all its descendants; the process first, so that it starts no more."""
    signal_all(family(pid), number)


def kill_descendants() -> list[psutil.Process]:
    """Kill all that this process has started and still runs; returns them, without waiting."""
    left = family(os.getpid())[1:]
    signal_all(left, signal.SIGKILL)
    return left


def end_descendants() -> None:
    """Kill all that this process has started and still runs, and wait for their end."""
    psutil.wait_procs(kill_descendants(), timeout=KILL_TIMEOUT_S)


def memory_mb(pid: int) -> dict[str, float]:
    """Resident memory of a process and its descendants by kind: python, java."""
    total: dict[str, float] = {}
    for member in family(pid):
        with suppress(psutil.NoSuchProcess):
            kind = "java" if "java" in member.name() else "python"
            total[kind] = total.get(kind, 0.0) + member.memory_info().rss / 2**20
    return total
