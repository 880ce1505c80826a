"""A shelf: the folder of one partition in the store, with what is in it at a moment.

Each version of a flow has its own snapshots on it, and they share its objects. A `Shelf` shows the snapshots
of one version; only to delete an object, all versions are asked whether they name it (`named`).

Every failure of the place leaves here as `EnvironmentFailed`, with what was tried and where. Only
`FileNotFoundError` passes: that something is not there is an answer, and the caller knows what it means.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from understudy.core.shape.partition import Partition
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.saving.bounded import Bounded, Tick
from understudy.runtime.saving.layout import (
    OBJECTS,
    SET_ASIDE,
    SnapshotName,
    set_aside_name,
    set_aside_snapshot,
    snapshots_folder,
    version_of,
)
from understudy.runtime.saving.manifest import Manifest, Object, decode
from understudy.runtime.saving.places import Entry, Parts, Place, brief, digest_of_file

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

#: Damaged things that are kept for a human to look at; older ones are deleted.
SET_ASIDE_MAX = 16
#: How often all manifests are listed anew because one of them went while it was read.
_ROUNDS_MAX = 5
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Contents:
    """What a shelf held at a moment."""

    manifests: Mapping[SnapshotName, Manifest]
    unreadable: Mapping[SnapshotName, str]
    """Snapshots whose manifest is damaged, and how."""
    objects: Mapping[str, Entry]
    unfinished: Sequence[str]
    """Other files, by their path on the shelf: saves write them, and crashed saves leave them."""
    written_at: Mapping[str, float]
    """When each unfinished file was written, by the clock of the file system."""
    now: float
    """The moment, by that clock, or somewhat earlier: when the newest file was written, or after that as long
    as has passed since it was seen. While a disk is full no new file comes.
    """
    looked_at: float
    """The moment, by our monotonic clock."""

    def has(self, wanted: Object) -> bool:
        entry = self.objects.get(wanted.digest)
        return entry is not None and entry.size_bytes == wanted.size_bytes

    def lacks(self, manifest: Manifest) -> list[Object]:
        return [each for each in manifest.objects() if not self.has(each)]


@contextlib.contextmanager
def failing(what: str) -> Iterator[None]:
    """Trouble with files, as `EnvironmentFailed` that begins with `what`."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as problem:
        raise failure(what, problem) from problem


def is_full(problem: BaseException | None) -> bool:
    """Whether a failure comes from a lack of room, as far as the file system says so."""
    reason = problem.__cause__ if isinstance(problem, EnvironmentFailed) else problem
    return isinstance(reason, OSError) and reason.errno in _FULL


def failure(what: str, problem: Exception) -> EnvironmentFailed:
    """What failed, why, and what to do."""
    if is_full(problem):
        then = "Free the disk."
    elif isinstance(problem, TimeoutError):
        then = "Check that the file system answers."
    else:
        then = "Check that the file system can be reached and may be written."
    return EnvironmentFailed(f"{what}: {brief(problem)}. {then}")


def _snapshots(files: Sequence[Entry]) -> list[SnapshotName]:
    """The snapshots among files, newest first."""
    return sorted(filter(None, (SnapshotName.of(entry.name) for entry in files)), reverse=True)


class Shelf:
    """The snapshots of one partition by one version of the flow. For any thread."""

    def __init__(
        self, place: Place, bounded: Bounded, folder: str, partition: Partition, version: int
    ) -> None:
        self.place = place
        self.partition = partition
        self.version = version
        #: The folder of this version's snapshots, on the shelf.
        self.snapshots = snapshots_folder(version)
        self._bounded = bounded
        self._folder = folder
        #: A snapshot is never written again, so its manifest need not be read again to know what it names.
        self._manifests: dict[int, dict[SnapshotName, Manifest]] = {}
        #: A moment by the clock of the file system, and by ours.
        self._moment = 0.0, 0.0

    def path(self, *parts: str) -> str:
        return "/".join((self._folder, *parts))

    def shown(self, *parts: str) -> str:
        return self.place.path(self.path(*parts))

    # --- looking -----------------------------------------------------------------------------------------

    def names(self) -> list[SnapshotName]:
        """The snapshots, newest first."""
        return _snapshots(self._files(self.snapshots))

    def manifests(self) -> list[Manifest]:
        """Of the snapshots, newest first, without those that are damaged."""
        found, _ = self._read_manifests(self.version, self._files(self.snapshots))
        return [found[name] for name in sorted(found, reverse=True)]

    def has_object(self, wanted: Object) -> bool:
        """Whether there is an object of this name, whatever its contents are."""
        return any(entry.name == wanted.digest for entry in self._files(OBJECTS))

    def look(self) -> Contents:
        """Snapshots first, then objects: whatever a listed snapshot names was there before."""
        looked_at = time.monotonic()
        files = self._files(self.snapshots)
        manifests, unreadable = self._read_manifests(self.version, files)
        objects = self._files(OBJECTS)
        strange = [entry for entry in files if SnapshotName.of(entry.name) is None]
        others = {
            **{f"{self.snapshots}/{entry.name}": entry for entry in strange},
            **{f"{OBJECTS}/{entry.name}": entry for entry in objects if entry.name.startswith(".")},
        }
        newest = max((entry.written_at for entry in (*files, *objects)), default=0.0)
        earlier, seen_at = self._moment
        # A file system that tells no times tells nothing.
        now = max(newest, earlier + looked_at - seen_at) if newest else 0.0
        self._moment = now, time.monotonic()
        return Contents(
            manifests,
            unreadable,
            {entry.name: entry for entry in objects if not entry.name.startswith(".")},
            tuple(others),
            {name: entry.written_at for name, entry in others.items()},
            now,
            looked_at,
        )

    def versions(self) -> list[int]:
        """The versions that have a folder for their snapshots, earliest first."""
        with failing(f"Snapshots cannot be listed in {self.shown()}"):
            folders = self._bounded.one(lambda _tick: self.place.folders(self.path()))
        return sorted(version for folder in folders if (version := version_of(folder)) is not None)

    def named(self) -> set[str]:
        """The digests that snapshots of any version name.

        Earlier versions are looked at first: a later one adopts from them, so an object that passes to it in
        the meantime is seen here or there. Raises `EnvironmentFailed` if more objects may be named than can
        be told: a manifest is damaged, or manifests are replaced faster than they can be read.
        """
        for _ in range(_ROUNDS_MAX):
            digests: set[str] = set()
            gone = False
            for version in self.versions():
                files = self._files(snapshots_folder(version))
                manifests, unreadable = self._read_manifests(version, files)
                if unreadable:
                    name, why = next(iter(unreadable.items()))
                    raise EnvironmentFailed(
                        f"No object of {self.partition} can be deleted, because it is not known what "
                        f"{self.shown(snapshots_folder(version), str(name))} names: {why}."
                    )
                digests.update(each.digest for found in manifests.values() for each in found.objects())
                # The snapshot that replaced it may name the same objects, and is not in this listing.
                gone = gone or len(manifests) < len(_snapshots(files))
            if not gone:
                return digests
        raise EnvironmentFailed(
            f"No object of {self.partition} can be deleted, because the snapshots in {self.shown()} are "
            f"replaced faster than they can be read."
        )

    def _read_manifests(
        self, version: int, files: Sequence[Entry]
    ) -> tuple[dict[SnapshotName, Manifest], dict[SnapshotName, str]]:
        """Of the listed snapshots of a version; of the damaged ones, what is wrong with them."""
        known = self._manifests.get(version, {})
        found: dict[SnapshotName, Manifest] = {}
        unreadable: dict[SnapshotName, str] = {}
        for name in _snapshots(files):
            # One that is gone by now was deleted by another process: it is as if it had not been listed.
            with contextlib.suppress(FileNotFoundError):
                try:
                    found[name] = known[name] if name in known else self._manifest(version, name)
                except ValueError as problem:
                    unreadable[name] = str(problem)
        self._manifests[version] = found
        return found, unreadable

    def _files(self, folder: str) -> list[Entry]:
        with failing(f"Snapshots cannot be listed in {self.shown(folder)}"):
            return self._bounded.one(lambda _tick: self.place.files(self.path(folder)))

    def manifest(self, name: SnapshotName) -> Manifest:
        """What a snapshot says. Raises `FileNotFoundError`, or `ValueError` if its manifest is damaged."""
        return self._manifest(self.version, name)

    def _manifest(self, version: int, name: SnapshotName) -> Manifest:
        return decode(self.read(snapshots_folder(version), str(name)))

    def was_ever_used(self) -> bool:
        """Whether damaged snapshots were set aside, if there are no others."""
        return bool(self._set_aside_snapshots())

    def _set_aside_snapshots(self) -> list[str]:
        files = self._files(SET_ASIDE)
        return [entry.name for entry in files if set_aside_snapshot(entry.name, self.version) is not None]

    # --- reading -----------------------------------------------------------------------------------------

    def read(self, *parts: str) -> bytes:
        with failing(f"{self.shown(*parts)} cannot be read"):
            return self._bounded.one(lambda tick: self.place.read(self.path(*parts), tick))

    def each(self, what: str, action: Callable[[T, Tick], R], items: Sequence[T]) -> list[R]:
        """Several at once, in bounded time."""
        with failing(what):
            return self._bounded.each(action, items)

    # --- writing -----------------------------------------------------------------------------------------

    def make_folders(self) -> None:
        with failing(f"The folder {self.shown()} cannot be made"):
            self._bounded.one(lambda _tick: self.place.make_folder(self.path(OBJECTS)))
            self._bounded.one(lambda _tick: self.place.make_folder(self.path(self.snapshots)))

    def write_objects(self, objects: Mapping[Object, Path | Parts]) -> None:
        """Write objects, which count only once this has returned."""
        if not objects:
            return

        def write(item: tuple[Object, Path | Parts], tick: Tick) -> None:
            wanted, source = item
            name = self.path(OBJECTS, wanted.digest)
            if not isinstance(source, Path):
                self.place.write(name, source, tick)
                return
            # A link costs nothing, so its contents are not read for it: they were when it was sealed.
            if self.place.links:
                same = source.stat().st_size == wanted.size_bytes
            else:
                same = digest_of_file(source, tick) == (wanted.size_bytes, wanted.digest)
            if not same:
                raise EnvironmentFailed(
                    f"{source} is not what its snapshot says, so it was not saved. Check the disk."
                )
            self.place.upload(name, source, tick)

        self.each(f"Snapshots cannot be written to {self.shown(OBJECTS)}", write, list(objects.items()))
        self._settle(OBJECTS)

    def write_manifest(self, name: SnapshotName, manifest: bytes) -> None:
        """From now on the snapshot is listed."""
        with failing(f"Snapshots cannot be written to {self.shown(self.snapshots)}"):
            path = self.path(self.snapshots, str(name))
            self._bounded.one(lambda tick: self.place.write(path, [manifest], tick))
            self._settle(self.snapshots)

    def settle(self) -> None:
        """Every snapshot that is listed is listed after a loss of power, too."""
        self._settle(self.snapshots)

    def _settle(self, folder: str) -> None:
        with failing(f"Snapshots cannot be written to {self.shown(folder)}"):
            self._bounded.one(lambda _tick: self.place.settle(self.path(folder)))

    # --- removing ----------------------------------------------------------------------------------------

    def delete(self, folder: str, names: Sequence[str]) -> None:
        """Delete files of a folder for good; those that are gone already are no trouble."""
        if not names:
            return

        def delete(name: str, _tick: Tick) -> None:
            with contextlib.suppress(FileNotFoundError):
                self.place.delete(self.path(folder, name))

        self.each(f"What is no longer needed cannot be deleted in {self.shown(folder)}", delete, names)
        self._settle(folder)

    def delete_snapshots(self, names: Sequence[SnapshotName]) -> None:
        """Delete manifests of this version, and nothing of what they name."""
        self.delete(self.snapshots, [str(name) for name in names])

    def drop(self) -> None:
        """Delete every manifest of this version, also those set aside: as if it had never saved."""
        self.delete_snapshots(self.names())
        self.delete(SET_ASIDE, self._set_aside_snapshots())

    def drop_objects(self) -> None:
        """Delete every object, also those set aside. For a shelf on which no version has a snapshot."""
        for folder in (OBJECTS, SET_ASIDE):
            self.delete(folder, [entry.name for entry in self._files(folder)])

    def set_aside_snapshot(self, name: SnapshotName) -> None:
        """Move a damaged manifest out of the way."""
        self._set_aside(self.snapshots, str(name), set_aside_name(name, self.version))

    def set_aside_object(self, digest: str) -> None:
        """Move a damaged object out of the way, of every version that names it."""
        self._set_aside(OBJECTS, digest, digest)

    def _set_aside(self, folder: str, name: str, to: str) -> None:
        """What another process moved or deleted before is no trouble."""

        def move(tick: Tick) -> None:
            self.place.make_folder(self.path(SET_ASIDE))
            with contextlib.suppress(FileNotFoundError):
                self.place.move(self.path(folder, name), self.path(SET_ASIDE, to))
            tick()
            self.place.settle(self.path(SET_ASIDE))
            self.place.settle(self.path(folder))

        with failing(f"{self.shown(folder, name)} is damaged and cannot be set aside"):
            self._bounded.one(move)
        kept = sorted(self._files(SET_ASIDE), key=lambda entry: entry.written_at)
        self.delete(SET_ASIDE, [entry.name for entry in kept[:-SET_ASIDE_MAX]])
