"""Ctrl-C, SIGTERM and SIGHUP as a flag to look at, not an exception that may hit anywhere.

A command that has started processes must end them in good order, even if the user presses Ctrl-C again. While
an `Interruption` is entered, these signals only set a flag, also when they come again. The command then has
`END_TIMEOUT_S` to leave; after that it is killed, with all that it started.

The handler only writes to a pipe: it runs between two instructions of the main thread, which may hold the
flag's own lock. A thread reads the pipe and sets the flag.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from understudy.runtime.process import leave_at_once

T = TypeVar("T")

#: How long a command may take to end what it started, once it was asked to.
END_TIMEOUT_S = 9.0


class Interrupted(Exception):
    """The user has asked to end."""


class Interruption:
    """Enter it on the main thread."""

    def __init__(self, end_timeout_s: float = END_TIMEOUT_S) -> None:
        self._end_timeout_s = end_timeout_s
        self._event = threading.Event()
        self._over = threading.Event()
        self._granted_s = 0.0
        self._again = False
        self._former: dict[signal.Signals, Any] = {}
        self._number: signal.Signals | None = None
        self._reading, self._writing = -1, -1

    @property
    def asked(self) -> bool:
        return self._event.is_set()

    @property
    def asked_again(self) -> bool:
        """Whether the user has asked to end a second time since `grant`."""
        return self._again

    def grant(self, seconds: float) -> None:
        """The command may take so much longer to end, because it saves what it has."""
        self._granted_s += seconds
        self._again = False

    @property
    def exit_code(self) -> int:
        """What a shell expects of a command that a signal ended: 130 for Ctrl-C."""
        return 128 + (self._number or signal.SIGINT)

    def wait(self, timeout_s: float) -> bool:
        """Wait that long, or until the user asks to end; whether that was asked."""
        return self._event.wait(timeout_s)

    def unless(self, work: Callable[[], T]) -> T:
        """The result of work that cannot look at the flag itself, done by a thread of its own.

        Raises `Interrupted` as soon as the user asks to end. The thread is then left to itself; the caller
        ends what it started.
        """
        done: queue.SimpleQueue[T | BaseException] = queue.SimpleQueue()

        def do() -> None:
            try:
                done.put(work())
            except BaseException as problem:
                done.put(problem)

        threading.Thread(target=do, name="work", daemon=True).start()
        while not self.wait(0.0):
            try:
                result = done.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(result, BaseException):
                raise result
            return result
        raise Interrupted

    def __enter__(self) -> Interruption:
        self._reading, self._writing = os.pipe()
        threading.Thread(target=self._follow, name="interruption", daemon=True).start()
        heard = [signal.SIGINT, signal.SIGTERM]
        # Under nohup it is ignored, and is to stay so.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            heard.append(signal.SIGHUP)
        for number in heard:
            self._former[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._over.set()
        # The thread reads to the end of the pipe and closes its own side.
        os.close(self._writing)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self._again = True
        if self._number is None:
            self._number = signal.Signals(number)
            os.write(self._writing, b"!")

    def _follow(self) -> None:
        asked = os.read(self._reading, 1)
        os.close(self._reading)
        if asked:
            self._event.set()
            deadline = time.monotonic() + self._end_timeout_s
            while not self._over.wait(0.2):
                if time.monotonic() > deadline + self._granted_s:
                    leave_at_once(self.exit_code)
