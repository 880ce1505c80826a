"""A node's dealings with the store: its copies save their state there, and begin again from it.

Saving runs beside the dataflow: what is saved are hard links and output that does not change any more. A save
that fails costs nothing but time: the copy goes on, and the next snapshot is saved when its time comes. The
status says since when nothing was saved.

A copy that begins needs the store. While that does not answer, the copy waits and tries again: to begin with
nothing would lose what was saved.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.replica.events import CopyState
from understudy.core.shape.partition import Copy, Partition
from understudy.engine.interface import Snapshot
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.pinning import pinned_shape, shape_mark
from understudy.runtime.saving.needed import Needed, lost
from understudy.runtime.saving.of_run import store_of
from understudy.runtime.saving.restoring import Restored
from understudy.runtime.saving.store import SnapshotStore
from understudy.runtime.settings import RunSettings

log = logging.getLogger(__name__)

#: How many copies of a node save at once: each reads its files for their digests and writes them.
SAVES_MAX = 2
#: The pause before a copy asks the store again: it doubles from the first to the second of these.
RETRY_S = 0.5
RETRY_S_MAX = 15.0


@dataclass(frozen=True)
class SavingStats:
    """How the saves of one partition on this node go."""

    #: The last input bucket that is saved, and the wall time of that save.
    through: BucketId | None = None
    at_s: float = 0.0
    seconds: float = 0.0
    bytes_written: int = 0
    size_bytes: int = 0
    #: The wall time of the first save that failed since, and why the last one did.
    failing_since_s: float | None = None
    why: str = ""
    #: What was wrong with newer snapshots when a copy began again.
    passed_over: tuple[str, ...] = ()


def saving_for(settings: RunSettings) -> Saving | None:
    """The dealings of one node with the run's store; None if the run saves nothing.

    What the state is made by must be written down before.
    """
    if not settings.saves:
        return None
    shape = pinned_shape(settings)
    mark = "" if shape is None else shape_mark(shape)
    return Saving(store_of(settings, mark), Needed(settings.version_path))


class Saving:
    """The store, as the copies of one node use it. Methods may be called from any thread."""

    def __init__(self, store: SnapshotStore, needed: Needed) -> None:
        self._store = store
        self._needed = needed
        self._turns = threading.BoundedSemaphore(SAVES_MAX)
        self._lock = threading.Lock()
        self._stats: dict[Partition, SavingStats] = {}

    def stats(self, partition: Partition) -> SavingStats:
        with self._lock:
            return self._stats.get(partition, SavingStats())

    def leave_to_others(self, partition: Partition) -> None:
        """Another copy saves this partition: what was saved from here says nothing of its newest save."""
        self._note(partition, through=None, at_s=0.0, size_bytes=0)

    def _note(self, partition: Partition, **changes: object) -> None:
        with self._lock:
            before = self._stats.get(partition, SavingStats())
            self._stats[partition] = replace(before, **changes)  # type: ignore[arg-type]

    def save(
        self,
        copy: Copy,
        snapshot: Snapshot,
        state: CopyState,
        on_saved: Callable[[BucketId], None],
        on_failed: Callable[[str], None],
    ) -> None:
        """Save a snapshot. Blocks; says one of the two when it is over."""
        with self._turns:
            try:
                saved = self._store.save(copy.partition, snapshot.directory, state)
                if saved.floor > NOTHING:
                    # Before producers let go of what came before.
                    self._needed.note(copy.partition)
            except (EnvironmentFailed, OSError) as problem:
                log.warning("the state of %s was not saved: %s", copy, problem)
                since = self.stats(copy.partition).failing_since_s
                self._note(copy.partition, failing_since_s=since or time.time(), why=str(problem))
                on_failed(str(problem))
                return
        log.info(
            "saved %s through bucket %d: %d of %d bytes in %.0f ms",
            *(copy, saved.through, saved.bytes_written, saved.size_bytes, saved.seconds * 1e3),
        )
        self._note(
            copy.partition,
            through=saved.through,
            at_s=time.time(),
            seconds=saved.seconds,
            bytes_written=self.stats(copy.partition).bytes_written + saved.bytes_written,
            size_bytes=saved.size_bytes,
            failing_since_s=None,
            why="",
        )
        on_saved(saved.floor)

    def restored(self, copy: Copy, into: Path, over: threading.Event) -> Restored | None:
        """The newest state of a partition; None if none was ever saved, or if the copy has left meanwhile."""
        pause_s = RETRY_S
        while not over.is_set():
            try:
                restored = self._store.restore(copy.partition, into)
                if restored is None and self._needed.has(copy.partition):
                    raise lost(self._store, [copy.partition])
            except (EnvironmentFailed, OSError) as problem:
                log.warning("%s waits for its saved state: %s", copy, problem)
                self._note(copy.partition, why=f"{copy} waits for its saved state: {problem}")
                over.wait(pause_s)
                pause_s = min(2 * pause_s, RETRY_S_MAX)
                continue
            self._note(copy.partition, why="")
            if restored is not None:
                for sentence in restored.passed_over:
                    log.warning("%s", sentence)
                self._note(
                    copy.partition,
                    through=restored.state.through,
                    at_s=restored.saved_at,
                    passed_over=restored.passed_over,
                )
            return restored
        return None
