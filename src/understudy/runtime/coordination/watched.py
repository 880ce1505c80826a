"""A value in ZooKeeper that is read again only when it may have changed.

A watch fires once and is lost with its connection. So both its firing and any change of the connection mark
the value as stale and wake its reader; the next reading sets the next watch. The mark is taken away *before*
reading, so a change that comes in meanwhile is never missed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from understudy.runtime.coordination.session import Session

T = TypeVar("T")
Watch = Callable[[Any], None]


class Watched(Generic[T]):
    """`read` gets the watch to set; `wake` is called, on any thread, when `now` may have something new."""

    def __init__(self, session: Session, read: Callable[[Watch], T], wake: Callable[[], None]) -> None:
        self._read = read
        self._wake = wake
        self._stale = threading.Event()
        self._stale.set()
        self._value: T | None = None
        session.on_change(self._mark)

    def now(self) -> T:
        """The current value. Raises one of `AWAY` if it must be read and ZooKeeper is away."""
        if self._stale.is_set():
            self._stale.clear()
            try:
                self._value = self._read(self._fired)
            except BaseException:
                self._stale.set()
                raise
        return cast(T, self._value)

    def again(self) -> T:
        """The current value, read in any case. Raises one of `AWAY` if ZooKeeper is."""
        self._stale.set()
        return self.now()

    def _fired(self, _: Any) -> None:
        self._mark()

    def _mark(self) -> None:
        self._stale.set()
        self._wake()
