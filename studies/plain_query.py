"""The query of `plain.py` as a process of a study: started, killed, and started again from its checkpoint."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from commanded import now_us
from harness import HERE, remove
from understudy.runtime.process_tree import signal_tree

POLL_S = 0.1
PATIENCE_S = 300.0

#: A line of its outputs: a micro-batch with results.
Output = dict[str, int]


class PlainQuery:
    """The query in a folder of its own, started with these options of `plain.py`. It ends with this process.

    As a context it is killed at the end, and its folder goes unless something went wrong.
    """

    def __init__(self, *options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="understudy-plain-"))
        self._options = options
        self.process = self._started()

    def __enter__(self) -> PlainQuery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()
        if error is None:
            remove(self.folder)

    def outputs(self) -> list[Output]:
        file = self.folder / "outputs.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def times_us(self) -> list[int]:
        """When each output was there."""
        return [output["at_us"] for output in self.outputs()]

    def wait(self, what: str, done: Callable[[list[Output]], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done(self.outputs()):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"{what} did not come; see {self.folder}/log")
            time.sleep(POLL_S)

    def wait_more(self, outputs: int) -> None:
        """Wait for so many more outputs."""
        wanted = len(self.outputs()) + outputs
        self.wait(f"{outputs} more outputs", lambda there: len(there) >= wanted)

    def kill(self) -> int:
        """Kill it with all that it started, and start it again at once; returns when it was killed."""
        at_us = now_us()
        self._kill()
        self.process = self._started()
        return at_us

    def _started(self) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(HERE / "plain.py"), str(self.folder), "--with-parent", *self._options],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _kill(self) -> None:
        signal_tree(self.process.pid, signal.SIGKILL)
        self.process.wait()
