"""The saves of one partition by one process.

A save writes what the shelf lacks, then the manifest, and then lets go of what is older than should be kept.
It goes on from what the last one wrote. What a save that failed has written serves the next one, unless the
store is full: then it goes, because the next one, or others who write to that disk, need the room.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.replica.events import CopyState
from understudy.engine.storing import MANIFEST, read_manifest
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.saving.adopting import adopt_newest
from understudy.runtime.saving.chains import Chains, plan
from understudy.runtime.saving.cleaning import clean
from understudy.runtime.saving.layout import SnapshotName
from understudy.runtime.saving.manifest import Manifest, Object, encode
from understudy.runtime.saving.places import Parts, digest_of
from understudy.runtime.saving.shelf import Shelf, is_full

#: How often a save begins again because another process deleted what it had found.
_ATTEMPTS_MAX = 3


@dataclass(frozen=True)
class Saved:
    """A snapshot that the store now holds."""

    through: BucketId
    floor: BucketId
    """No input through this number can be needed again, whichever snapshot of the partition is used.

    That is the `through` of the oldest one, once as many are kept as should be. Fewer may all be damaged, and
    then the partition begins with nothing; and a copy that was declared dead and does not know yet may add an
    older one.
    """
    kept: int
    """How many snapshots of the partition are kept."""
    bytes_written: int
    files_written: int
    """Its new objects and its manifest."""
    size_bytes: int
    """All that it consists of, shared with other snapshots or not."""
    seconds: float


class PartitionSaves:
    """Saves and adopts, one at a time. Methods may be called from any thread."""

    def __init__(self, shelf: Shelf, writer: str, keep: int, shape: str) -> None:
        self.shelf = shelf
        self._shape = shape
        self._writer = writer
        self._keep = keep
        self._chains: Chains = {}
        self._sequence = 0
        #: The last save failed; and what such saves have written since the last one that did not.
        self._failed = False
        self._left: set[str] = set()
        self._busy = threading.Lock()

    def save(self, folder: Path, state: CopyState) -> Saved:
        with self._alone():
            began = time.monotonic()
            files = _files_of(folder)
            self.shelf.make_folders()
            if self._failed:
                # What was written is not written again, and the rest may be the room that this save needs.
                runs = plan(state, self._chains, lambda _run: True).new
                self._clean_up({each.digest for each in (*runs, *(each for each, _ in files.values()))})
            try:
                saved = self._saved(files, state, began)
            except (EnvironmentFailed, FileNotFoundError) as problem:
                self._failed = True
                if is_full(problem):
                    # Other saves, and others who write to that disk, need the room.
                    with contextlib.suppress(EnvironmentFailed, FileNotFoundError):
                        self._clean_up()
                raise
            self._failed, self._left = False, set()
            return saved

    def _clean_up(self, wanted: Collection[str] = ()) -> None:
        """Delete what saves that failed have left, but for the objects that are wanted."""
        # Whatever is listed may replace an older snapshot; the last save may have failed to see to that.
        self.shelf.settle()
        contents = self.shelf.look()
        self._left &= contents.objects.keys()
        clean(self.shelf, contents, self._keep, self._left.difference(wanted))

    def _saved(self, files: dict[str, tuple[Object, Path | Parts]], state: CopyState, began: float) -> Saved:
        bytes_written = files_written = 0
        for _ in range(_ATTEMPTS_MAX):
            name, manifest, new, chains = self._written(files, state)
            bytes_written += sum(new)
            files_written += len(new)
            contents = self.shelf.look()
            if not contents.lacks(manifest):
                break
            self.shelf.delete_snapshots([name])
        else:
            raise EnvironmentFailed(
                f"A snapshot of {self.shelf.partition} cannot be saved to {self.shelf.shown()}: another "
                f"process deletes what this one writes. Check that only one run has this name."
            )
        self._chains = chains
        stay = clean(self.shelf, contents, self._keep, self._left)
        return Saved(
            state.through,
            self._floor(stay),
            len(stay),
            bytes_written,
            files_written,
            manifest.size_bytes,
            time.monotonic() - began,
        )

    def _floor(self, stay: Sequence[SnapshotName]) -> BucketId:
        return NOTHING if len(stay) < self._keep else min(each.through for each in stay)

    def adopt(self, source: Shelf) -> Manifest | None:
        with self._alone():
            return adopt_newest(
                source, self.shelf, lambda through: self._new_name(through, self.shelf.names())
            )

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """A second save of one partition waits for the first, as long as a transfer may stand still."""
        if not self._busy.acquire(timeout=self.shelf.place.silence_s):
            raise EnvironmentFailed(
                f"An earlier snapshot of {self.shelf.partition} is still being saved. "
                f"Check that {self.shelf.shown()} answers."
            )
        try:
            yield
        finally:
            self._busy.release()

    def _written(
        self, files: dict[str, tuple[Object, Path | Parts]], state: CopyState
    ) -> tuple[SnapshotName, Manifest, list[int], Chains]:
        """Write what the shelf lacks, then the manifest; also returns the sizes of all that was written."""
        contents = self.shelf.look()
        planned = plan(state, self._chains, contents.has)
        manifest = Manifest(
            self.shelf.partition,
            state.version,
            state.through,
            time.time(),
            tuple((name, each) for name, (each, _) in files.items()),
            planned.outlets,
            self._shape,
        )
        sources: dict[Object, Path | Parts] = {**dict(files.values()), **planned.new}
        new = {each: source for each, source in sources.items() if not contents.has(each)}
        self._left |= {each.digest for each in new}
        self.shelf.write_objects(new)
        name = self._new_name(state.through, (*contents.manifests, *contents.unreadable))
        encoded = encode(manifest)
        self.shelf.write_manifest(name, encoded)
        return name, manifest, [*(each.size_bytes for each in new), len(encoded)], planned.chains

    def _new_name(self, through: BucketId, known: Iterable[SnapshotName]) -> SnapshotName:
        """Above those that are known and its own last one, which may be gone: no name is ever given twice."""
        self._sequence = max((self._sequence, *(each.sequence for each in known))) + 1
        return SnapshotName(through, self._sequence, self._writer)


def _files_of(folder: Path) -> dict[str, tuple[Object, Path | Parts]]:
    """The files of a sealed snapshot, by their path in its folder."""
    files: dict[str, tuple[Object, Path | Parts]] = {
        name: (Object(file["digest"], file["size_bytes"]), folder / name)
        for name, file in read_manifest(folder)["files"].items()
    }
    # Its own manifest does not name itself.
    contents = (folder / MANIFEST).read_bytes()
    files[MANIFEST] = Object(digest_of([contents]), len(contents)), [contents]
    return files
