"""Connections that are still open when the process ends.

A thread that comes back from Flight while Python shuts down is ended by unwinding its stack, and C++ answers
that by aborting the process ("terminate called without an active exception"). So at exit every connection
that this process has opened is closed, and waited for until its threads are out of Flight. A connection that
a peer holds there by not answering is waited for `LEAVE_S` at most.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

LEAVE_S = 2.0


class Closable(Protocol):
    def close(self, reason: str) -> None: ...


class OpenConnections:
    """The connections whose threads are inside Flight. Safe to use from any thread."""

    def __init__(self) -> None:
        self._open: set[Closable] = set()
        self._changed = threading.Condition()
        self._leaving = False
        #: Whether this process was forked from one with an open connection: Flight does not work here.
        self.cut_by_fork = False

    @contextmanager
    def entered(self, connection: Closable) -> Iterator[None]:
        """Counts this connection as open within the block. Raises `ConnectionError` if the process ends."""
        with self._changed:
            if self._leaving:
                raise ConnectionError("this process ends")
            self._open.add(connection)
        try:
            yield
        finally:
            with self._changed:
                self._open.discard(connection)
                self._changed.notify_all()

    def forget(self) -> None:
        """For a process that was forked: the connections are the parent's, and so are their threads."""
        self.cut_by_fork |= bool(self._open)
        self._open = set()
        self._changed = threading.Condition()

    def leave(self, timeout_s: float = LEAVE_S) -> bool:
        """Close them all, and let none in any more. False if some are still open after this time."""
        with self._changed:
            self._leaving = True
            to_close = list(self._open)
        for connection in to_close:
            # What its owner does about it must not keep the others.
            with suppress(Exception):
                connection.close("this process ends")
        with self._changed:
            return self._changed.wait_for(lambda: not self._open, timeout_s)


OPEN = OpenConnections()
atexit.register(OPEN.leave)
os.register_at_fork(after_in_child=OPEN.forget)
