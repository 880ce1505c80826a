"""The durable store of a run's snapshots: what a run goes on from after all copies of a partition are gone.

A node saves what its engine has linked (`engine.storing`), with the state of the copy beside it. The store
keeps contents by their digest, so a save writes what is new, and snapshots share what they have in common. A
manifest comes last and makes the snapshot exist; a save that fails before leaves nothing that is listed.

While a run is upgraded, two versions of its flow save side by side. A store is that of one version: it saves,
lists and restores that version's snapshots. It adopts one of an earlier version, or drops all of a version.

Which files there are is in `layout`, what is deleted and how two processes on one partition get along in
`cleaning`, and what a reader does about damage in `restoring`. Every method blocks, and none for ever: one
that makes no progress for a time raises `EnvironmentFailed`.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from understudy.core.bucket import BucketId
from understudy.core.errors import require
from understudy.core.replica.events import CopyState
from understudy.core.shape.partition import Partition
from understudy.runtime.saving.bounded import Bounded, Tick
from understudy.runtime.saving.layout import partition_folder, partition_of, quoted
from understudy.runtime.saving.manifest import Manifest
from understudy.runtime.saving.opening import OPENING_S, open_place
from understudy.runtime.saving.partition_saves import PartitionSaves, Saved
from understudy.runtime.saving.places import UNFINISHED, Place
from understudy.runtime.saving.restoring import Restored, restore_newest
from understudy.runtime.saving.shelf import Shelf, failing, failure


@dataclass(frozen=True)
class Listed:
    """A snapshot in the store, as its manifest describes it."""

    through: BucketId
    saved_at: float
    """Wall time of the process that saved it, in seconds."""
    size_bytes: int
    shape: str = ""
    """The mark of the flow's shape by which the state was made; nothing if that is not known."""

    @classmethod
    def of(cls, manifest: Manifest) -> Listed:
        return cls(manifest.through, manifest.saved_at, manifest.size_bytes, manifest.shape)


class SnapshotStore:
    """The snapshots of one run by one version of its flow. Methods may be called from any thread.

    What is saved gets the mark of the flow's `shape`.
    """

    def __init__(self, place: Place, run: str, *, keep: int = 2, version: int = 1, shape: str = "") -> None:
        require(keep >= 1, f"a store keeps at least one snapshot of each partition, not {keep}")
        require(bool(run), "a run has a name")
        require(version >= 1, f"versions of a flow count from 1, so there is no version {version}")
        self._place = place
        self._run = quoted(run)
        self._keep = keep
        self._version = version
        self._shape = shape
        self._writer = uuid.uuid4().hex[:12]
        self._bounded = Bounded(place.silence_s)
        self._shelves: dict[Partition, PartitionSaves] = {}
        self._lock = threading.Lock()

    @classmethod
    def open(cls, url: str, run: str, *, keep: int = 2, version: int = 1, shape: str = "") -> SnapshotStore:
        """The store at a URL. Raises `UserError` or `EnvironmentFailed`, as `open_place` does."""
        return cls(open_place(url), run, keep=keep, version=version, shape=shape)

    @property
    def url(self) -> str:
        """Where the store is, without keys and passwords."""
        return self._place.url

    @property
    def shown(self) -> str:
        """The run's part of the store, as a user would name it."""
        return self._place.path(self._run)

    # --- small files of the run itself, beside the folders of its partitions --------------------------------

    def read_note(self, name: str, silence_s: float | None = None) -> bytes | None:
        """The contents of such a file; None if there is none. Raises `EnvironmentFailed`."""
        path = f"{self._run}/{name}"
        with failing(f"{self._place.path(path)} cannot be read"):
            try:
                return self._bounded.one(lambda tick: self._place.read(path, tick), silence_s=silence_s)
            except FileNotFoundError:
                return None

    def write_note(self, name: str, contents: bytes) -> None:
        """Write such a file, in place of one that has its name. Raises `EnvironmentFailed`."""
        path = f"{self._run}/{name}"

        def write(tick: Tick) -> None:
            self._place.make_folder(self._run)
            self._place.write(path, [contents], tick)

        what = f"{self._place.path(path)} cannot be written"
        try:
            with failing(what):
                self._bounded.one(write)
        except FileNotFoundError as problem:
            # Its folder went while it was written.
            raise failure(what, problem) from problem

    def delete_note(self, name: str, silence_s: float | None = None) -> None:
        """Delete such a file, if it is there. Raises `EnvironmentFailed`."""
        path = f"{self._run}/{name}"
        with failing(f"{self._place.path(path)} cannot be deleted"), contextlib.suppress(FileNotFoundError):
            self._bounded.one(lambda _tick: self._place.delete(path), silence_s=silence_s)

    def delete_half_notes(self) -> None:
        """Delete what a loss of power has left of such files. Only for who alone writes them."""
        with failing(f"{self.shown} cannot be tidied up"):
            names = [entry.name for entry in self._bounded.one(lambda _tick: self._place.files(self._run))]
        for name in names:
            if name.startswith(UNFINISHED):
                self.delete_note(name)

    # --- snapshots ------------------------------------------------------------------------------------------

    def probe(self) -> None:
        """Raise `EnvironmentFailed`, in bounded time, unless the store can be written, read and deleted."""
        name = f"{self._run}/{UNFINISHED}probe-{uuid.uuid4().hex}"
        word = name.encode()
        step = "written"

        def try_all(_tick: Tick) -> None:
            nonlocal step
            self._place.make_folder(self._run)
            self._place.write(name, [word], lambda: None)
            step = "read"
            if self._place.read(name, lambda: None) != word:
                raise OSError("a file did not have the contents that were written")
            step = "deleted from"
            self._place.delete(name)

        try:
            self._bounded.one(try_all, silence_s=OPENING_S)
        except (OSError, pa.ArrowException) as problem:
            raise failure(f"The store of snapshots {self.url} cannot be {step}", problem) from problem

    def save(self, partition: Partition, folder: Path, state: CopyState) -> Saved:
        """Save a sealed snapshot and the state that belongs to it.

        When this returns, the snapshot outlives the loss of this machine's power, or of this machine if the
        store is elsewhere. Raises `EnvironmentFailed` if it was not saved; the next save may succeed.
        """
        try:
            return self._saving(partition).save(folder, state)
        except FileNotFoundError as problem:
            where = self._place.path(self._run)
            raise failure(f"A snapshot of {partition} cannot be saved to {where}", problem) from problem

    def adopt(self, partition: Partition, from_version: int) -> Listed | None:
        """Make the newest whole snapshot of an earlier version one of this version's, without a copy of it.

        Whole means that its manifest can be read and that every object is there in its size; only a restore
        reads the contents. When this returns, the snapshot outlives that the earlier version expires its own,
        or is dropped. None if that version never saved this partition. Raises `EnvironmentFailed` if it did
        and no snapshot is whole, or if they expire faster than one can be adopted.
        """
        require(
            1 <= from_version < self._version,
            f"version {self._version} of a flow adopts from an earlier one, not from version {from_version}",
        )
        try:
            manifest = self._saving(partition).adopt(self._shelf(partition, from_version))
        except FileNotFoundError as problem:
            where = self._place.path(self._run)
            raise failure(f"A snapshot of {partition} cannot be adopted in {where}", problem) from problem
        return None if manifest is None else Listed.of(manifest)

    def restore(self, partition: Partition, into: Path) -> Restored | None:
        """Bring back the newest snapshot that is whole into a folder, which is emptied first.

        None if there never was any. Raises `EnvironmentFailed` if there are some and none is whole, or if the
        store does not answer.
        """
        return restore_newest(self._shelf(partition, self._version), into)

    def listed(self, partition: Partition) -> list[Listed]:
        """The snapshots of a partition, newest first, without those whose manifest is damaged."""
        return [Listed.of(manifest) for manifest in self._saving(partition).shelf.manifests()]

    def has_any(self, partition: Partition) -> bool:
        """Whether this version has a snapshot of a partition, whole or not, or had one that was set aside."""
        shelf = self._shelf(partition, self._version)
        return bool(shelf.names()) or shelf.was_ever_used()

    def versions(self) -> set[int]:
        """The versions of the flow that have a snapshot of any partition, whole or not."""
        found: set[int] = set()
        for partition in self.partitions():
            there = set(self._shelf(partition, self._version).versions())
            found |= {version for version in there - found if self._shelf(partition, version).names()}
        return found

    def drop_version(self, version: int) -> None:
        """Delete the snapshots of a version, of every partition. What is gone already is no trouble.

        Only manifests are deleted. Objects that no other version names go with the next save of their
        partition, once they are older than `cleaning.GRACE_S`. Of a partition that no version saves any more
        they stay until `keep_only` deletes them.
        """
        require(version >= 1, f"versions of a flow count from 1, so there is no version {version}")
        for partition in self.partitions():
            self._shelf(partition, version).drop()

    def keep_only(self, segments: Collection[str], through_version: int) -> None:
        """Delete all that was saved of partitions of other segments: the flow does not have them any more.

        Else one that comes back under its name would begin with a state that its producers know nothing of.
        What a version after `through_version` has snapshots of stays: it is being begun.
        """
        for partition in self.partitions():
            versions = self._shelf(partition, self._version).versions()
            shelves = [self._shelf(partition, version) for version in versions]
            begins = any(shelf.version > through_version and shelf.names() for shelf in shelves)
            if partition.name in segments or begins:
                continue
            for shelf in shelves:
                shelf.drop()
            self._shelf(partition, self._version).drop_objects()

    def partitions(self) -> list[Partition]:
        """The partitions that the store has a folder of, by whichever version."""
        with failing(f"The store of snapshots {self._place.path(self._run)} cannot be listed"):
            folders = self._bounded.one(lambda _tick: self._place.folders(self._run))
        return sorted(filter(None, map(partition_of, folders)))

    def _shelf(self, partition: Partition, version: int) -> Shelf:
        folder = f"{self._run}/{partition_folder(partition)}"
        return Shelf(self._place, self._bounded, folder, partition, version)

    def _saving(self, partition: Partition) -> PartitionSaves:
        with self._lock:
            if partition not in self._shelves:
                shelf = self._shelf(partition, self._version)
                self._shelves[partition] = PartitionSaves(shelf, self._writer, self._keep, self._shape)
            return self._shelves[partition]
