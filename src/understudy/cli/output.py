"""Standard output that may fail without harm.

A run outlives its terminal, the reader of its pipe and the room on the disk that its output goes to, and so
do an upgrade and a stop. Their output is for a person who may have left: what cannot be written is lost, or
kept until it can be, and the work goes on. Every write is tried, because a full disk has room again some day.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO, cast

log = logging.getLogger(__name__)


@contextmanager
def output_may_fail() -> Iterator[None]:
    """Meanwhile no write to standard output raises; the first one that fails is said in the log."""
    if sys.stdout is None:
        # It was closed before this process began: Python drops what is printed.
        yield
        return
    output = _Output(sys.stdout)
    with redirect_stdout(cast(TextIO, output)):
        try:
            yield
        finally:
            output.end()


class _Output:
    """A stream that takes everything. What it is asked, such as whether it is a terminal, the real one
    answers.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._failed = False
        self._is_said = False

    def write(self, text: str) -> int:
        with self._noted():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._noted():
            self._stream.flush()

    def end(self) -> None:
        """Give up what could not be written: Python would fail on it when it closes the stream."""
        self._failed = False
        self.flush()
        if self._failed:
            with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            self._failed = True
            # The run's log begins a little after its output.
            if not self._is_said and log.hasHandlers():
                self._is_said = True
                log.warning("standard output cannot be written, and all goes on without it: %s", problem)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
