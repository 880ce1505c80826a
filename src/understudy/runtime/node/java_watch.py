"""Watches over a node's Java, which is a process of its own: it may hang, or pause for long, while the node's
Python goes on beating as if all were well, and then nobody would take over.

Java is asked something simple again and again, in a thread of its own. Time without an answer is counted in
ticks of the node, so a node that was stopped as a whole blames no one.

Only Java is watched. A function of the flow, or a Python worker of Spark, that never returns looks like one
that takes long.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from understudy.flow.errors import EnvironmentFailed

log = logging.getLogger(__name__)

ASK_S = 0.5


class JavaWatch:
    """Java may be silent for `limit_s`. Call `tick` every `tick_s`, from one thread."""

    def __init__(self, limit_s: float, tick_s: float) -> None:
        self._limit_s = limit_s
        self._tick_s = tick_s
        self._answers = 0
        self._answers_seen = 0
        self._silent_ticks = 0
        self._over = threading.Event()

    def start(self, ask: Callable[[], None]) -> JavaWatch:
        """Keep asking; `ask` returns when Java has answered."""
        threading.Thread(target=self._keep_asking, args=(ask,), name="java", daemon=True).start()
        return self

    def answered(self) -> None:
        self._answers += 1

    def tick(self) -> EnvironmentFailed | None:
        """What is wrong with Java, if it has not answered for too long."""
        if self._answers != self._answers_seen:
            self._answers_seen = self._answers
            self._silent_ticks = 0
            return None
        self._silent_ticks += 1
        if self._silent_ticks * self._tick_s <= self._limit_s:
            return None
        return EnvironmentFailed(f"Java has not answered for {self._limit_s:g} s: it hangs, or is gone.")

    def end(self) -> None:
        self._over.set()

    def _keep_asking(self, ask: Callable[[], None]) -> None:
        while not self._over.wait(ASK_S):
            try:
                ask()
            except Exception as problem:
                # No answer either; whoever works with Java will say more.
                log.info("Java could not be asked: %s", problem)
            else:
                self.answered()
