"""Which partitions cannot begin with nothing any more.

Once producers were told through which number the store holds a partition's state, they let go of what came
before, and so does the log. From then on a store that holds no state of that partition is not an empty
store: it is another one, one whose disk is not mounted, or one that was emptied. A copy that began with
nothing would wait for ever for what is gone. So a mark in the run's folder says for each partition that its
state is needed, and is there before producers are told.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from understudy.core.shape.partition import Partition
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.durable import leave_mark, make_folder
from understudy.runtime.saving.layout import partition_folder, partition_of
from understudy.runtime.saving.store import SnapshotStore

FOLDER = "needed"


class Needed:
    """The marks of one version of a run. For any thread, and for several processes at once."""

    def __init__(self, version_path: Path) -> None:
        self._folder = version_path / FOLDER

    def note(self, partition: Partition) -> None:
        """From now on this partition's state is needed. Raises `EnvironmentFailed` if the disk is full."""
        mark = self._folder / partition_folder(partition)
        if not mark.exists():
            make_folder(self._folder)
            leave_mark(mark)

    def has(self, partition: Partition) -> bool:
        return (self._folder / partition_folder(partition)).exists()

    def partitions(self) -> list[Partition]:
        files = self._folder.iterdir() if self._folder.is_dir() else ()
        return sorted(filter(None, (partition_of(file.name) for file in files)))

    def keep_only(self, segments: Collection[str]) -> None:
        """Forget the partitions of other segments, which the flow does not have any more."""
        for partition in self.partitions():
            if partition.name not in segments:
                (self._folder / partition_folder(partition)).unlink(missing_ok=True)

    def drop(self) -> None:
        """Forget all: the version is over."""
        shutil.rmtree(self._folder, ignore_errors=True)


def lost(store: SnapshotStore, partitions: Collection[Partition]) -> EnvironmentFailed:
    """The store holds nothing of partitions whose state is needed."""
    names = ", ".join(map(str, partitions))
    return EnvironmentFailed(
        f"The store of snapshots {store.shown} holds no state of {names}, although this run has saved it "
        "there. Without it the run cannot go on. Check that it is the right disk or bucket, and bring the "
        "files back."
    )


def require_states(store: SnapshotStore, needed: Needed) -> None:
    """Raise `EnvironmentFailed` if the store holds nothing of a partition whose state is needed."""
    if missing := [each for each in needed.partitions() if not store.has_any(each)]:
        raise lost(store, missing)
