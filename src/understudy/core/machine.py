"""What all machines share: one way in, and a story to tell when something is wrong.

A machine is a participant of a protocol. `handle(event)` is the only thing that changes it, and it answers
with the instructions that a driver must carry out, in order. A machine has no clock, no thread, no I/O and
no randomness, so the simulator and a real process drive the very same objects.

An event that the protocol does not allow raises and leaves no trace: every machine first decides, then
changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.instructions import Instruction

#: How many of its last events a machine can tell of.
STORY_EVENTS_MAX = 24


class Machine(ABC):
    """A participant of a protocol. Subclasses write `_handle` and `check`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._story: deque[tuple[int, object, Sequence[Instruction]]] = deque(maxlen=STORY_EVENTS_MAX)
        self._events_handled = 0

    def handle(self, event: object) -> list[Instruction]:
        """Take one event; return what is to be done. An event not allowed raises and changes nothing."""
        try:
            instructions = self._handle(event)
        except (PeerError, BrokenInvariant) as error:
            raise type(error)(f"{self.name}: {error}\n{self.story(event)}") from error
        self._events_handled += 1
        self._story.append((self._events_handled, event, tuple(instructions)))
        return instructions

    def story(self, rejected: object | None = None) -> str:
        """The last events with what came of them, oldest first."""
        lines = [f"  {number:>6} {event} -> {list(done)}" for number, event, done in self._story]
        if rejected is not None:
            lines.append(f"  {self._events_handled + 1:>6} {rejected} -> rejected")
        return "\n".join([f"the story of {self.name}:", *lines])

    @abstractmethod
    def _handle(self, event: object) -> list[Instruction]:
        """Decide, then change, then say what is to be done."""

    @abstractmethod
    def check(self) -> None:
        """Raise `BrokenInvariant` unless the state is one that the protocol allows."""
