"""The events of a process that are not written yet: a bounded queue, and the thread that writes them down.

A thread leaves a *note* of each event: a function that makes the record. The writing thread calls it, so only
that thread spends time on the rows and the digest of a bucket. Payloads never change, so it does not matter
when that happens.

The queue is bounded in notes and in the bytes that they keep alive. When it is full, a caller waits a moment
at most, once; from then on notes are refused and counted until half of the queue is written, and a
`MissedRecord` stands where they are missing. A process that is killed loses what waits here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from understudy.history.records import MissedRecord, Record
from understudy.history.writing import PartedFile

log = logging.getLogger(__name__)

NOTES_MAX = 20_000
BYTES_MAX = 64 * 2**20
#: How long a caller waits for room, at most.
PATIENCE_S = 0.05
#: So many notes become one write.
_TOGETHER_MAX = 64

#: Makes the records of one event.
Note = Callable[[], Iterable[Record]]


class Backlog:
    """Writes notes to a file, in their order, in a thread of its own. Any thread may call it."""

    def __init__(
        self,
        file: PartedFile,
        process: str,
        *,
        notes_max: int = NOTES_MAX,
        bytes_max: int = BYTES_MAX,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._file = file
        self._process = process
        self._notes_max = notes_max
        self._bytes_max = bytes_max
        self._patience_s = patience_s
        self._notes: deque[tuple[Note, int]] = deque()
        self._bytes = 0
        self._missed = 0
        self._busy = False
        self._over = False
        self._changed = threading.Condition()
        self._file_lock = threading.Lock()
        self._complained = False
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def put(self, note: Note, size_bytes: int = 0) -> None:
        """Have this note written after those before it. Waits a moment at most."""
        with self._changed:
            if self._file.stopped or self._over:
                return
            if not self._missed and self._full(1):
                self._changed.wait_for(lambda: not self._full(1), self._patience_s)
            if self._full(2 if self._missed else 1):
                self._miss(1)
                return
            self._say_missed()
            self._notes.append((note, size_bytes))
            self._bytes += size_bytes
            self._changed.notify_all()

    def write_now(self, record: Record) -> None:
        """Write this record before returning, ahead of those that wait."""
        with self._file_lock:
            self._file.write([record])

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything that was put is written; whether that was so in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._notes or self._busy or self._missed), timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write what waits, then let go of the file."""
        if not self.flush(timeout_s):
            log.warning("the history of %s ends before all of it was written", self._process)
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        with self._file_lock:
            self._file.close()

    # --- the queue, under its lock -----------------------------------------------------------------------

    def _full(self, parts: int) -> bool:
        """Whether one of so many parts of the queue is full. A note always fits into an empty queue."""
        return bool(self._notes) and (
            len(self._notes) >= self._notes_max // parts or self._bytes >= self._bytes_max // parts
        )

    def _miss(self, notes: int) -> None:
        if not self._complained:
            self._complained = True
            log.warning("the history of %s is incomplete: it cannot be written fast enough", self._process)
        self._missed += notes

    def _say_missed(self) -> None:
        if self._missed:
            missed, self._missed = self._missed, 0
            record = MissedRecord(time.time_ns() // 1_000, self._process, missed)
            self._notes.append((lambda: (record,), 0))

    # --- the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while notes := self._next():
            records: list[Record] = []
            # Nothing is worth looking into once the file takes no more.
            for note in notes if not self._file.stopped else ():
                try:
                    records += note()
                except Exception:
                    log.exception("something could not be recorded")
                    with self._changed:
                        self._miss(1)
            with self._file_lock:
                self._file.write(records)

    def _next(self) -> list[Note]:
        """The next notes; none once it is over."""
        with self._changed:
            self._busy = False
            if not self._notes:
                self._say_missed()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._notes or self._over)
            taken = [self._notes.popleft() for _ in range(min(_TOGETHER_MAX, len(self._notes)))]
            self._bytes -= sum(size for _, size in taken)
            self._busy = bool(taken)
            self._changed.notify_all()
            return [note for note, _ in taken]
