"""The last push taken from each client, so that a repeated one is recognised.

A client numbers its pushes upwards and repeats one until it is acknowledged. The last push is kept for each
source, so that a client may number the pushes to each source on their own or all together.

A source that fetches its rows has one client, its feed. The note of the feed's last push is all that says how
far the source was read, so it is never forgotten, however long there is nothing to push. A program that gives
its client the same name pushes to other sources, and is not forgotten either: one entry for each source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: The name under which every feed pushes to its source.
READER = "reader"
#: With more clients than this, feeds aside, the client that has been silent longest is forgotten.
CLIENTS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class LastPush:
    sequence: int
    note: Any


class Clients:
    def __init__(self, limit: int = CLIENTS_MAX) -> None:
        self._limit = limit
        self._feeds: dict[tuple[str, str], LastPush] = {}
        self._others: dict[tuple[str, str], LastPush] = {}

    def last(self, source: str, client: str) -> LastPush | None:
        return self._those_like(client).get((source, client))

    def is_repeat(self, source: str, client: str, sequence: int) -> bool:
        last = self.last(source, client)
        return last is not None and sequence <= last.sequence

    def record(self, source: str, client: str, sequence: int, note: Any) -> None:
        last = self._those_like(client)
        # Removed and put back: a dict keeps the order of insertion, which makes the first the longest silent.
        last.pop((source, client), None)
        last[(source, client)] = LastPush(sequence, note)
        if len(self._others) > self._limit:
            del self._others[next(iter(self._others))]

    def state(self) -> list[list[Any]]:
        return [
            [source, client, last.sequence, last.note]
            for (source, client), last in (*self._feeds.items(), *self._others.items())
        ]

    def restore(self, state: list[list[Any]]) -> None:
        self._feeds, self._others = {}, {}
        for source, client, sequence, note in state:
            self._those_like(client)[(source, client)] = LastPush(sequence, note)

    def _those_like(self, client: str) -> dict[tuple[str, str], LastPush]:
        return self._feeds if client == READER else self._others
