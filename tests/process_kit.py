"""What tests ask about processes of the machine."""

from __future__ import annotations

import psutil


def runs(process: psutil.Process) -> bool:
    """Whether it still runs. One that has ended stays in the process table as a zombie until it is reaped."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
