"""Ctrl-C and SIGTERM as something to look at, not an exception that may hit anywhere.

A command that has started processes must end them in good order, whatever the user does meanwhile. While an
`Interruption` is entered, both signals only set a flag, also when they come again.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


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
