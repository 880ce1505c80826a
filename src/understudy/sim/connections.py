"""A connection between two processes, and what is on its way over it.

A connection has two queues, which keep their order. When it breaks, a first part of each queue still
arrives, then each end notices, and only then does its caller make the next one; the two may overlap at the
other end. Of two processes a fixed one calls, as in the mesh: a node calls the gateway, and of two nodes the
one with the greater name calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from understudy.core.errors import require
from understudy.core.host.parcels import Parcel
from understudy.core.host.places import GATEWAY


@dataclass(frozen=True, slots=True)
class Up:
    """The connection stands, as far as this end knows."""


@dataclass(frozen=True, slots=True)
class Down:
    """The connection is gone, and nothing more comes over it."""


Item = Up | Down | Parcel
UP, DOWN = Up(), Down()


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection with the items on their way to each end. One that is not open takes nothing more."""

    serial: int
    caller: str
    callee: str
    to_caller: tuple[Item, ...] = (UP,)
    to_callee: tuple[Item, ...] = (UP,)
    open: bool = True

    def queue(self, to: str) -> tuple[Item, ...]:
        return self.to_caller if to == self.caller else self.to_callee

    def with_queue(self, to: str, queue: tuple[Item, ...]) -> Connection:
        return replace(self, to_caller=queue) if to == self.caller else replace(self, to_callee=queue)

    def other(self, end: str) -> str:
        return self.callee if end == self.caller else self.caller

    def broken(self, keep: Callable[[int], int]) -> Connection:
        """The same, closed: of a queue so long, so much still arrives before its end is noticed."""
        connection = self
        for end in (self.caller, self.callee):
            queue = connection.queue(end)
            kept = queue[: keep(len(queue))]
            connection = connection.with_queue(end, (*kept, DOWN))
        return replace(connection, open=False)


def calls(one: str, other: str) -> bool:
    """Whether this one of two processes makes their connection."""
    require(one != other, f"{one} would call itself")
    return one != GATEWAY and (other == GATEWAY or one > other)
