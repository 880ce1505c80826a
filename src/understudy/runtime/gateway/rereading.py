"""Reading the log again for copies that begin from a saved state, beside the dataflow.

A copy that begins again asks for what follows a number from long ago. The outlet asks for it piece by piece
(`core.edge.refill`), and here each piece is read, by one thread for all copies. A reader is kept for each
copy, so that the next piece goes on where the last one ended. It keeps its segment of the log on disk, so it
goes when no piece has been asked for in a while: nobody says which one was the last.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from understudy.core.bucket import Bucket, BucketId
from understudy.core.errors import require
from understudy.core.replica.events import LogRead
from understudy.core.shape.partition import Copy, Partition
from understudy.runtime.ingest.buckets import SealedBucket
from understudy.runtime.ingest.rereading import LogReader

#: After so long without a request every reader is closed. One that is needed once more is opened again.
IDLE_S = 10.0


@dataclass
class _Open:
    """A reader of one source for one copy, and the last number that it gave."""

    reader: LogReader
    through: BucketId


class Rereading:
    """`share` gives a partition's share of a bucket. `on_read` gets a source and its buckets, `on_failure` a
    source, the copy and the number that it was to be read after; both from the thread that reads.
    """

    def __init__(
        self,
        reader: Callable[[str, BucketId], LogReader],
        share: Callable[[SealedBucket, Partition], Bucket],
        on_read: Callable[[str, LogRead], None],
        on_failure: Callable[[str, Copy, BucketId, BaseException], None],
    ) -> None:
        self._reader = reader
        self._share = share
        self._on_read = on_read
        self._on_failure = on_failure
        self._open: dict[tuple[str, Copy], _Open] = {}
        self._wanted: queue.SimpleQueue[tuple[str, Copy, BucketId, int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def read(self, source: str, consumer: Copy, after: BucketId, bytes_max: int) -> None:
        """Read about so many bytes after this number. Never blocks."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="reading the log again", daemon=True)
            self._thread.start()
        self._wanted.put((source, consumer, after, bytes_max))

    def end(self) -> None:
        self._wanted.put(None)

    def _run(self) -> None:
        while True:
            try:
                wanted = self._wanted.get(timeout=IDLE_S if self._open else None)
            except queue.Empty:
                self._close_all()
                continue
            if wanted is None:
                break
            source, consumer, after, _ = wanted
            try:
                self._read(*wanted)
            except BaseException as error:
                self._close(source, consumer)
                self._on_failure(source, consumer, after, error)
        self._close_all()

    def _read(self, source: str, consumer: Copy, after: BucketId, bytes_max: int) -> None:
        at = self._open.get((source, consumer))
        if at is None or at.through != after:
            self._close(source, consumer)
            at = self._open[source, consumer] = _Open(self._reader(source, after), after)
        buckets = at.reader.read(bytes_max)
        require(
            bool(buckets), f"the log of {source!r} ends with bucket {after}, and more of it was sent once"
        )
        at.through = buckets[-1].number
        run = tuple(self._share(bucket, consumer.partition) for bucket in buckets)
        self._on_read(source, LogRead(consumer, after, run))

    def _close_all(self) -> None:
        for source, consumer in list(self._open):
            self._close(source, consumer)

    def _close(self, source: str, consumer: Copy) -> None:
        at = self._open.pop((source, consumer), None)
        if at is not None:
            at.reader.close()
