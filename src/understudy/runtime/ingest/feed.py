"""Feeds: rows that a source's reader fetches are pushed to the ingest as if by a client.

A feed numbers its pushes, and each push's note in the log is the position behind its rows. So a feed keeps
nothing of its own: after a crash it asks the ingest for its last note and goes on exactly behind it.

`step` does one piece of work and says when the next is due; it never waits. `run_feed` is the loop around it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import Event

from understudy.flow.errors import UserError, blamed
from understudy.flow.kinds import Batch, Reader
from understudy.flow.model import Source
from understudy.runtime.ingest.clients import READER
from understudy.runtime.ingest.ingest import Ingest
from understudy.runtime.ingest.rows import to_table

#: A reader without rows is not asked again before this.
_PAUSE_US_MIN = 10_000
#: How soon a feed that rests notices that its source is closed.
_NAP_S = 0.2


def open_feed(ingest: Ingest, source: Source) -> Feed | None:
    """The feed of a source that fetches its rows; None for one that clients push to."""
    last = ingest.last(source.name, READER)
    with blamed(f"source {source.name!r}: its reader could not be opened"):
        reader = source.kind.open(source, last.note if last else None)
    return None if reader is None else Feed(ingest, source, reader, last.sequence + 1 if last else 0)


class Feed:
    """Reads one source and pushes what it reads."""

    def __init__(self, ingest: Ingest, source: Source, reader: Reader, sequence: int) -> None:
        self._ingest = ingest
        self._source = source
        self._reader = reader
        self._sequence = sequence
        self._finishing = False
        self._to_finish = Event()
        #: Whether the source ends with the next batch without rows.
        self._ends_when_empty = False

    def finish(self) -> None:
        """A client says that no more rows will come: end behind those that are there. From any thread.

        A client may repeat it.
        """
        if not self._finishing:
            self._finishing = True
            self._to_finish.set()

    @property
    def to_finish(self) -> bool:
        """Whether its reader is still to be told that the source is closed."""
        return self._to_finish.is_set()

    def step(self, now_us: int) -> int | None:
        """Read once; push and commit the rows, if there are any.

        Returns the time at which the next step is due (now or earlier: at once), or None after the source was
        closed. A UserError says what is wrong with reader or rows; the source cannot go on.
        """
        name = self._source.name
        if self._ingest.closed(name):
            return None
        with blamed(f"source {self._source.name!r}: its reader failed"):
            if self.to_finish:
                self._to_finish.clear()
                self._ends_when_empty = not self._reader.finish()
            batch = self._reader.read(now_us)
        rows = self._push(batch, now_us)
        ended = batch.ended or (self._ends_when_empty and not rows)
        if ended:
            self._ingest.close_source(name)
        self._ingest.commit()
        if ended:
            return None
        return batch.again_us if rows else max(batch.again_us, now_us + _PAUSE_US_MIN)

    def close(self) -> None:
        with blamed(f"source {self._source.name!r}: its reader could not be closed"):
            self._reader.close()

    def _push(self, batch: Batch, now_us: int) -> int:
        """How many rows the batch had."""
        name = self._source.name
        if not isinstance(batch, Batch):
            raise UserError(f"source {name!r}: its reader returned {batch!r}, not a Batch.")
        if batch.rows is None:
            return 0
        try:
            json.dumps(batch.position)
        except (TypeError, ValueError, RecursionError) as problem:
            raise UserError(
                f"source {name!r}: the position of its reader is no JSON: {batch.position!r}: {problem}."
            ) from problem
        table = to_table(self._source, batch.rows)
        self._ingest.push(name, table, READER, self._sequence, batch.position, now_us=now_us)
        self._sequence += 1
        return int(table.num_rows)


def run_feed(
    feed: Feed,
    may_push: Callable[[], bool],
    clock_us: Callable[[], int],
    stop: Event,
    asking: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Step until the source ends, `stop` is set, or `may_push` says no; then close.

    `may_push` blocks while the flow cannot take more (back pressure) and returns False when it never will.
    Each step is made within `asking`.
    """
    while not stop.is_set() and may_push():
        with asking():
            due_us = feed.step(clock_us())
        if due_us is None:
            break
        rest_s = (due_us - clock_us()) / 1e6
        while rest_s > 0 and not feed.to_finish and not stop.wait(min(rest_s, _NAP_S)):
            rest_s -= _NAP_S
    feed.close()
