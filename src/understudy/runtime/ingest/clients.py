"""The last push taken from each client, so that a repeated one is recognised.

A client numbers its pushes upwards and repeats one until it is acknowledged. The last push is kept for each
source, so that a client may number the pushes to each source on their own or all together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: With more clients than this, the client that has been silent longest is forgotten.
CLIENTS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class LastPush:
    sequence: int
    note: Any


class Clients:
    def __init__(self, limit: int = CLIENTS_MAX) -> None:
        self._limit = limit
        self._last: dict[tuple[str, str], LastPush] = {}

    def last(self, source: str, client: str) -> LastPush | None:
        return self._last.get((source, client))

    def is_repeat(self, source: str, client: str, sequence: int) -> bool:
        last = self._last.get((source, client))
        return last is not None and sequence <= last.sequence

    def record(self, source: str, client: str, sequence: int, note: Any) -> None:
        # Removed and put back: a dict keeps the order of insertion, which makes the first the longest silent.
        self._last.pop((source, client), None)
        self._last[(source, client)] = LastPush(sequence, note)
        if len(self._last) > self._limit:
            del self._last[next(iter(self._last))]

    def state(self) -> list[list[Any]]:
        return [[source, client, last.sequence, last.note] for (source, client), last in self._last.items()]

    def restore(self, state: list[list[Any]]) -> None:
        self._last = {(source, client): LastPush(sequence, note) for source, client, sequence, note in state}
