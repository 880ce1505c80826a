"""The mark of a run that was stopped in good order, and whether every state was saved then.

A run without it that does not run broke off: it was killed, it failed, or the machine went down. So the mark
is there after a loss of power, too, and it is gone for good before the run goes on.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from understudy.runtime.durable import sync, write_whole, written

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stopped:
    """How a run was stopped."""

    all_saved: bool


def leave_stopped(folder: Path, stopped: Stopped) -> None:
    """Leave the mark. A disk that does not take it leaves a run that seems to have broken off, no worse."""
    try:
        write_whole(_file(folder), json.dumps({"all_saved": stopped.all_saved}) + "\n")
    except OSError as problem:
        log.warning("that the run was stopped in good order cannot be written down: %s", problem)


def stopped_in(folder: Path) -> Stopped | None:
    """How the run in this folder was stopped last; None if it was not, or goes on since."""
    try:
        text = _file(folder).read_text()
    except OSError:
        return None
    try:
        return Stopped(json.loads(text)["all_saved"] is True)
    except (ValueError, TypeError, KeyError):
        # A disk has damaged it. It is there, so the run was stopped.
        return Stopped(all_saved=False)


def forget_stopped(folder: Path) -> None:
    """The run goes on. Raises `EnvironmentFailed` if the mark cannot be removed."""
    file = _file(folder)
    with written(file):
        if file.exists():
            file.unlink()
            sync(folder)


def _file(folder: Path) -> Path:
    return folder / "stopped.json"
