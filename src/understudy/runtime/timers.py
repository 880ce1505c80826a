"""Timers of one process: each fires by a call with its key, in a thread of their own."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Hashable


class Timers:
    """`set` replaces an earlier timer of the same key. `on_fired` is called from the timers' thread."""

    def __init__(self, on_fired: Callable[[Hashable], None]) -> None:
        self._on_fired = on_fired
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Hashable]] = []
        self._newest: dict[Hashable, int] = {}
        self._count = itertools.count()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="timers", daemon=True)
        self._thread.start()

    def set(self, key: Hashable, delay_ms: int) -> None:
        with self._changed:
            number = next(self._count)
            self._newest[key] = number
            heapq.heappush(self._due, (time.monotonic() + delay_ms / 1_000, number, key))
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify()

    def _run(self) -> None:
        while (key := self._next()) is not None:
            self._on_fired(key)

    def _next(self) -> Hashable | None:
        """Wait for the next timer that was not replaced; None once it is over."""
        with self._changed:
            while not self._over:
                if not self._due:
                    self._changed.wait()
                    continue
                due_s, number, key = self._due[0]
                if self._newest.get(key) != number:
                    heapq.heappop(self._due)
                elif due_s <= time.monotonic():
                    heapq.heappop(self._due)
                    del self._newest[key]
                    return key
                else:
                    self._changed.wait(due_s - time.monotonic())
            return None
