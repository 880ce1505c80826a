"""Work that another party does, done in bounded time: the caller waits, and the work has a thread of its own.

A file system may never answer: a network mount without its server, a name node that is gone, an S3 endpoint
that takes connections and says nothing. No option of a client library covers all of them, and a system call
cannot be interrupted. So each piece of work runs in a daemon thread, and the caller waits for its progress. A
piece says that it gets on by `tick`; if none of them does for `silence_s`, the caller raises `TimeoutError`.

The thread of a piece that hangs is left alone. If it ever goes on, its next `tick` ends it. So that a file
system that never answers does not collect threads without end, no new work is begun while `HANGING_MAX` of
them hang.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

Tick = Callable[[], None]

#: Pieces of work that are done at once.
WIDTH = 8
HANGING_MAX = 64


class Bounded:
    """Does work in threads, and knows how many of them hang. For any thread."""

    def __init__(self, silence_s: float) -> None:
        self.silence_s = silence_s
        self._hanging: list[threading.Thread] = []
        self._lock = threading.Lock()

    def one(self, action: Callable[[Tick], R], *, silence_s: float | None = None) -> R:
        """The result of one piece of work. Raises what the work raised, or `TimeoutError`."""
        return self.each(lambda _item, tick: action(tick), [None], silence_s=silence_s)[0]

    def each(
        self, action: Callable[[T, Tick], R], items: Sequence[T], *, silence_s: float | None = None
    ) -> list[R]:
        """The results in the order of the items, `WIDTH` at once. Raises what one of them raised first.

        By then no other is still at work, except one that hangs.
        """
        if not items:
            return []
        with self._lock:
            self._hanging = [thread for thread in self._hanging if thread.is_alive()]
            if len(self._hanging) >= HANGING_MAX:
                raise TimeoutError(f"{len(self._hanging)} earlier requests were never answered")
        work = _Work(action, items)
        threads = [
            threading.Thread(target=work.run, name="saving", daemon=True)
            for _ in range(min(WIDTH, len(items)))
        ]
        for thread in threads:
            thread.start()
        try:
            return work.wait(self.silence_s if silence_s is None else silence_s, len(threads))
        except BaseException:
            work.abandoned = True
            with self._lock:
                self._hanging += [thread for thread in threads if thread.is_alive()]
            raise


class _Abandoned(Exception):
    """The caller no longer waits for this piece of work."""


class _Work(Generic[T, R]):
    """Items that several threads share out among themselves."""

    def __init__(self, action: Callable[[T, Tick], R], items: Sequence[T]) -> None:
        self._action = action
        self._items = items
        self._next = 0
        self._results: dict[int, R] = {}
        self._trouble: BaseException | None = None
        self._finished = 0
        self._changed = threading.Condition()
        self._ticked_at = time.monotonic()
        self.abandoned = False

    def run(self) -> None:
        try:
            while (at := self._take()) is not None:
                result = self._action(self._items[at], self._tick)
                self._results[at] = result
                self._tick()
        except BaseException as problem:  # it is raised again where it is waited for
            with self._changed:
                self._trouble = self._trouble or problem
        finally:
            with self._changed:
                self._finished += 1
                self._changed.notify_all()

    def _take(self) -> int | None:
        with self._changed:
            if self._trouble is not None or self.abandoned or self._next == len(self._items):
                return None
            self._next += 1
            return self._next - 1

    def _tick(self) -> None:
        if self.abandoned:
            raise _Abandoned
        self._ticked_at = time.monotonic()

    def wait(self, silence_s: float, threads: int) -> list[R]:
        with self._changed:
            while self._finished < threads:
                left_s = self._ticked_at + silence_s - time.monotonic()
                if left_s <= 0:
                    raise self._trouble or TimeoutError(f"there was no answer for {silence_s:g} s")
                self._changed.wait(left_s)
            if self._trouble is not None:
                raise self._trouble
        return [self._results[at] for at in range(len(self._items))]
