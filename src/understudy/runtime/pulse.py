"""Pulse: every process of a run touches a file once a second, and the launcher looks whether it does.

A process in which no thread gets its turn any more, stopped or deadlocked, is given up by its peers within
seconds: they hear nothing. But it still exists, so nobody would start another in its place, and the run would
stay a replica short, or without a gateway. The launcher ends such a process.

ZooKeeper has no such thread: the launcher asks it once a second, and touches the file when it answers.

Time is counted in looks of the launcher, one a second at most. So a launcher that was stopped itself, or with
the whole machine, blames no one. Nor does one that cannot touch a file beside theirs: then it is the disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

BEAT_S = 1.0
#: Far more than a loaded machine makes a process wait, and than a pause from which it should come back.
STILL_LOOKS = 30
#: No process of a run has this name.
LAUNCHER = "launcher"


def pulse_file(folder: Path, name: str) -> Path:
    return folder / "pulse" / name


def keep_beating(file: Path, wait: Callable[[float], bool], alive: Callable[[], bool] = lambda: True) -> None:
    """Beat once a second while `alive`, until `wait`, which is given the seconds, says that it is over. In a
    thread of its own."""

    def work() -> None:
        over = False
        while not over:
            # A process that cannot leave a sign is not looked after, but works.
            with suppress(OSError):
                if alive():
                    file.parent.mkdir(exist_ok=True)
                    file.touch()
            over = wait(BEAT_S)

    threading.Thread(target=work, name="pulse", daemon=True).start()


class Pulse:
    """The launcher's view of one process, from its start. A file that an earlier one left is removed."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._looked_at = clock()
        self._seen_ns: int | None = None
        self._looks = 0
        with suppress(OSError):
            file.unlink()

    @property
    def stands_still(self) -> bool:
        """Whether it has not beaten for too long. To be asked about once a second, or more often."""
        now = self._clock()
        if now - self._looked_at < BEAT_S:
            return False
        self._looked_at = now
        try:
            at_ns = self._file.stat().st_mtime_ns
            self._file.with_name(LAUNCHER).touch()
        except OSError:
            # It has not begun yet, or the disk takes nothing.
            return False
        self._looks = 0 if at_ns != self._seen_ns else self._looks + 1
        self._seen_ns = at_ns
        return self._looks >= STILL_LOOKS
