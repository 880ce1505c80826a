"""Lanes: a few threads that run tasks side by side and hand the results to one thread.

The threads are daemons and keep their connections to the JVM from task to task. With one lane there is no
thread: a task runs in `next`.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from understudy.flow.errors import EnvironmentFailed

Result = TypeVar("Result")
Task = Callable[[], Result]


class Lanes(Generic[Result]):
    """Runs at most `count` tasks at once. All methods but `close` belong to one thread."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._inline: deque[tuple[str, Task[Result]]] = deque()
        self._tasks: queue.SimpleQueue[tuple[str, Task[Result]] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[str, Result | BaseException]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._open = 0
        self._lock = threading.Lock()
        self._closed = False

    def add(self, key: str, task: Task[Result]) -> None:
        """Begin a task, as soon as a lane is free."""
        if self._count == 1:
            self._inline.append((key, task))
            return
        # Under the lock, so that no task comes to stand behind the order to end.
        with self._lock:
            if self._closed:
                raise EnvironmentFailed(f"{self._name} was closed")
            self._open += 1
            if len(self._threads) < min(self._count, self._open):
                name = f"{self._name}-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
                self._threads[-1].start()
            self._tasks.put((key, task))

    def next(self) -> tuple[str, Result]:
        """The key and the result of a task that is done; waits for one. Raises what the task raised."""
        if self._inline:
            key, task = self._inline.popleft()
            return key, task()
        key, result = self._done.get()
        self._open -= 1
        if isinstance(result, BaseException):
            raise result
        return key, result

    def settle(self) -> None:
        """Wait for the tasks that have begun, and forget them and all others."""
        self._inline.clear()
        with suppress(queue.Empty):
            while self._tasks.get_nowait() is not None:
                self._open -= 1
            self._tasks.put(None)
        while self._open:
            self._done.get()
            self._open -= 1

    def close(self) -> None:
        """Let the threads end, after the tasks that they have. From any thread, and more than once."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for _ in self._threads:
                    self._tasks.put(None)

    def _run(self) -> None:
        while (given := self._tasks.get()) is not None:
            key, task = given
            try:
                self._done.put((key, task()))
            except BaseException as problem:
                self._done.put((key, problem))
