"""Snapshots that were shipped to a backup: the one that it holds, and those that its host may want next.

Producers let go of what a backup holds, so a snapshot is verified before the host hears that it is here. It
takes the place of the one before when the host says so. If one was not received, a file that is held may be
damaged: the next one comes whole.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from understudy.core.replica.events import CopyState
from understudy.engine.interface import Snapshot
from understudy.engine.storing import Digests, open_snapshot, verify_snapshot
from understudy.runtime.node.mover import StateFetch


@dataclass(frozen=True)
class Lent:
    """A snapshot that is kept for a standby, or by a backup."""

    snapshot: Snapshot
    state: CopyState


class Shipped:
    """What one backup has. `over` is set when its copy leaves its seat. Its folder then goes as a whole."""

    def __init__(self, folder: Path, over: threading.Event) -> None:
        self._folder = folder
        self._over = over
        self._lock = threading.Lock()
        self.held: Lent | None = None
        self._received: dict[int, Lent] = {}
        self._took_over = False
        self._digests = Digests()
        #: Whether the last snapshot was not received.
        self._comes_whole = False
        #: How much has come in all.
        self.size_bytes = 0

    @property
    def to_build_on(self) -> Lent | None:
        """What is held already and need not come again."""
        return None if self._comes_whole else self.held

    def receive(self, attempt: int, fetch: StateFetch, progress: Callable[[], None]) -> CopyState | None:
        """Fetch the snapshot of this attempt. Blocks.

        Returns its state, or None if the copy has left or taken over meanwhile. Raises if it did not come or
        is not sound, and then leaves nothing of it.
        """
        into = self._folder / f"held-{attempt}"
        try:
            state = fetch.run(into, progress)
            received = Lent(open_snapshot(into), state)
            verify_snapshot(received.snapshot, self._digests)
            self._digests.keep_only(into)
        except Exception:
            shutil.rmtree(into, ignore_errors=True)
            self._comes_whole = True
            raise
        self._comes_whole = False
        self.size_bytes += fetch.received_bytes + fetch.output_bytes
        with self._lock:
            wanted = not self._took_over and not self._over.is_set()
            if wanted:
                self._received[attempt] = received
        if not wanted:
            shutil.rmtree(into, ignore_errors=True)
        return state if wanted else None

    def hold(self, attempt: int) -> bool:
        """Keep the snapshot of this attempt in the place of the one before; whether it is the first."""
        with self._lock:
            before, self.held = self.held, self._received.pop(attempt)
            # The host did not want them: they came when it had begun anew.
            stale, self._received = self._received, {}
        _drop(before, *stale.values())
        return before is None

    def drop(self) -> None:
        """The copy has taken over, and holds no snapshots any more."""
        with self._lock:
            self._took_over = True
            dropped, self.held, self._received = (self.held, *self._received.values()), None, {}
        _drop(*dropped)


def _drop(*snapshots: Lent | None) -> None:
    for each in snapshots:
        if each is not None:
            shutil.rmtree(each.snapshot.directory, ignore_errors=True)
