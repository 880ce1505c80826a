"""What all machines share: one way in, and a story to tell when something is wrong.

A machine is a participant of a protocol. Only `handle(event)` changes it, and it answers with the
instructions that a driver must carry out, in order. A machine has no clock, no thread, no I/O and no
randomness, so the simulator and a real process drive the very same objects.

An event that the protocol does not allow raises and leaves no trace: every machine first decides, then
changes.

The two machines that a process drives, the host and the controller, keep a **story**: their last events, each
with a number. The number travels with every parcel as its *cause*, so the stories of two processes can be
read side by side. A story holds no rows: it shows a run of buckets by its numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Generic, TypeVar

from understudy.core.errors import BrokenInvariant, PeerError

#: How many of its last events a machine keeps in its story.
STORY_EVENTS_MAX = 32

Event = TypeVar("Event")
Instruction = TypeVar("Instruction")


class Machine(ABC, Generic[Event, Instruction]):
    """A participant of a protocol that a process drives. Subclasses write `_handle`, `_told` and `check`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events_handled = 0
        self._story: deque[tuple[int, object]] = deque(maxlen=STORY_EVENTS_MAX)

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; return what the driver must do. An event not allowed raises and changes nothing."""
        try:
            instructions = self._handle(event)
        except (PeerError, BrokenInvariant) as error:
            raise type(error)(f"{self.name}: {error}\n{self.story(event)}") from error
        self.events_handled += 1
        self._story.append((self.events_handled, self._told(event)))
        return instructions

    def story(self, rejected: Event | None = None) -> str:
        """The last events, oldest first."""
        lines = [f"  {number:>8} {event}" for number, event in self._story]
        if rejected is not None:
            lines.append(f"  {self.events_handled + 1:>8} {self._told(rejected)} -> rejected")
        return "\n".join([f"the story of {self.name}:", *lines])

    @abstractmethod
    def _handle(self, event: Event) -> list[Instruction]:
        """Decide, then change, then say what the driver must do."""

    def _told(self, event: Event) -> object:
        """The event as the story keeps it: without rows, which a story must not keep in memory."""
        return event

    @abstractmethod
    def check(self) -> None:
        """Raise `BrokenInvariant` unless the state is one that the protocol allows."""
