"""Ctrl-C and SIGTERM as something to look at, not an exception that may hit anywhere.

A command that has started processes must end them in good order, whatever the user does meanwhile. While an
`Interruption` is entered, both signals only set a flag, also when they come again.
"""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


class Interrupted(Exception):
    """Somebody has asked to end."""


class Interruption:
    """Enter it on the main thread."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._former: dict[signal.Signals, Any] = {}
        self._number = signal.SIGINT

    @property
    def asked(self) -> bool:
        return self._event.is_set()

    @property
    def exit_code(self) -> int:
        """What a shell expects of a command that a signal ended: 130 for Ctrl-C."""
        return 128 + self._number

    def wait(self, timeout_s: float) -> bool:
        """Wait that long, or until somebody asked to end; whether somebody did."""
        return self._event.wait(timeout_s)

    def unless(self, work: Callable[[], T]) -> T:
        """The result of work that cannot look at the flag itself, done by a thread of its own.

        Raises `Interrupted` as soon as somebody asks to end. The thread is then left to itself; whoever asked
        for the work ends what it started.
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
        for number in (signal.SIGINT, signal.SIGTERM):
            self._former[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if not self._event.is_set():
            self._number = signal.Signals(number)
        self._event.set()
