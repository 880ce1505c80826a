"""An actor: one thread that owns some machines, and a mailbox through which all other threads reach them.

Machines have no locks. A thread that has an event for a machine posts a call to the actor that owns it; calls
run one at a time, in the order in which they were posted. A call that raises ends the actor, which passes the
exception to `on_failure`: a machine that has found its own state impossible must not go on.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Actor:
    """Runs posted calls one after the other in a thread of its own."""

    def __init__(self, name: str, on_failure: Callable[[BaseException], None]) -> None:
        self.name = name
        self._on_failure = on_failure
        self._mailbox: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._ended = threading.Event()
        self._thread.start()

    def post(self, call: Callable[..., object], *arguments: Any) -> None:
        """Run the call later, in order. After the actor has ended this does nothing."""
        self._mailbox.put(lambda: call(*arguments))

    def ask(self, call: Callable[[], Result], timeout_s: float = 30.0) -> Result:
        """Run the call in order and wait for its result. Must not be used from the actor itself."""
        done = threading.Event()
        box: list[Result] = []

        def answer() -> None:
            box.append(call())
            done.set()

        self._mailbox.put(answer)
        if not done.wait(timeout_s) or not box:
            raise TimeoutError(f"{self.name} did not answer within {timeout_s:g} s")
        return box[0]

    def end(self) -> None:
        """Finish what was posted before, then stop."""
        self._mailbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        while (call := self._mailbox.get()) is not None:
            try:
                call()
            except BaseException as error:
                log.exception("%s failed and stops", self.name)
                self._on_failure(error)
                return
