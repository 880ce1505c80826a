"""Standard output that may fail, or stand still, without harm.

A run outlives its terminal, the reader of its pipe and the room on the disk that its output goes to, and so
do an upgrade and a stop. Their output is for a person who may have left: what cannot be written is lost, or
kept until it can be, and the work goes on. Every write is tried, because a full disk has room again some day.

A reader may also stay and not read: a pager, a terminal after Ctrl-S or behind a network that is gone. A
write to it does not return. So a thread writes, and the work never waits for it but a moment at the end.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO, cast

log = logging.getLogger(__name__)

#: What waits for a reader at most. It sees this first when it reads again, and then what is said then.
WAITING_CHARS_MAX = 64 * 1024
#: How long the end waits for a reader.
LAST_WORDS_S_MAX = 2.0


@contextmanager
def output_may_fail() -> Iterator[None]:
    """Meanwhile no write to standard output raises or waits; the first one that fails is said in the log."""
    stream = sys.stdout
    if stream is None:
        # It was closed before this process began: Python drops what is printed.
        yield
        return
    output = _Output(stream)
    try:
        with redirect_stdout(cast(TextIO, output)):
            yield
    finally:
        if not output.end():
            # Whatever else is done with it would wait, too.
            sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115


class _Output:
    """A stream that takes everything. What it is asked, such as whether it is a terminal, the real one
    answers.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._changed = threading.Condition()
        #: Until it is flushed; then it is lost or written as a whole.
        self._unflushed: list[str] = []
        self._waiting: list[str] = []
        self._waiting_chars = 0
        self._ending = False
        #: Whether the last write failed, so that some of it may still be in the stream.
        self._failed = False
        self._is_said = False
        self._writer = threading.Thread(target=self._write_on, name="standard output", daemon=True)
        self._writer.start()

    def write(self, text: str) -> int:
        with self._changed:
            self._unflushed.append(text)
        if text.endswith("\n"):
            self.flush()
        return len(text)

    def flush(self) -> None:
        with self._changed:
            text = "".join(self._unflushed)
            self._unflushed.clear()
            fits = self._waiting_chars + len(text) <= WAITING_CHARS_MAX
            if fits and text:
                self._waiting.append(text)
                self._waiting_chars += len(text)
                self._changed.notify()
        if not fits:
            self._note("nobody reads it")

    def end(self) -> bool:
        """Give up what could not be written: Python would fail on it when it closes the stream. False if a
        write has not returned yet.
        """
        self.flush()
        with self._changed:
            self._ending = True
            self._changed.notify()
        self._writer.join(LAST_WORDS_S_MAX)
        if self._writer.is_alive():
            return False
        if self._failed:
            with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
        return True

    def _write_on(self) -> None:
        is_over = False
        while not is_over:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ending)
                text, is_over = "".join(self._waiting), self._ending
                self._waiting.clear()
                self._waiting_chars = 0
            try:
                self._stream.write(text)
                self._stream.flush()
                self._failed = False
            except OSError as problem:
                self._failed = True
                self._note(problem)

    def _note(self, problem: object) -> None:
        # The run's log begins a little after its output.
        if not self._is_said and log.hasHandlers():
            self._is_said = True
            log.warning("standard output cannot be written, and all goes on without it: %s", problem)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
