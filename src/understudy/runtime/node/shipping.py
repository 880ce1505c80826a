"""Shipping: a replica's snapshots on their way to whichever standby asked for one last.

A snapshot is taken for the standby whose mover was met at that moment. If that one is gone or another has
asked by the time it is ready, it is of no use to anybody: the other one gets a snapshot of its own.
Everything here belongs to the actor of the replica; the bytes leave in a thread of their own.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from understudy.engine.interface import Snapshot
from understudy.runtime.node.mover import State, send_state
from understudy.runtime.transport.channel import Channel


class Shipping:
    """Keeps outgoing snapshots in `folder`, each until it is sent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._standby: Channel | None = None
        self._taken_for: Channel | None = None
        self._snapshot: Snapshot | None = None

    def met(self, standby: Channel) -> None:
        """A standby's mover is there."""
        self.drop("the standby asked again")
        self._standby = standby

    def gone(self, standby: Channel) -> None:
        if self._standby is standby:
            self._standby = None

    def drop(self, why: str) -> None:
        """The standby, if there is one, gets nothing more."""
        standby, self._standby = self._standby, None
        if standby is not None:
            standby.close(why)

    def begin(self, version: int) -> Path:
        """Where the snapshot of this version goes, which is taken for the standby that is there now."""
        into = self._folder / str(version)
        shutil.rmtree(into, ignore_errors=True)
        into.parent.mkdir(parents=True, exist_ok=True)
        self._taken_for = self._standby
        return into

    def taken(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def ship(self, state: State) -> None:
        """Send the last snapshot, with what belongs to it, to whom it was taken for."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None:
            return
        if self._standby is None or self._standby is not self._taken_for:
            shutil.rmtree(snapshot.directory, ignore_errors=True)
            return
        threading.Thread(
            target=send_state,
            args=(self._standby, Path(snapshot.directory), state),
            name=f"state mover {snapshot.directory.name}",
            daemon=True,
        ).start()
