"""Bringing back the newest snapshot that is whole.

Every byte is read and compared with its digest. Damage means that the file system answered, and the answer is
wrong: an object is missing, or twice in a row it did not have its size and digest. That snapshot is passed
over and set aside, and so is the damaged object; otherwise the next save would find the object and take it
for good. A file system that does not answer damages nothing: then the restore fails, and may be tried again.

Saves of another process may expire a snapshot while it is read. Its manifest goes first, so a snapshot whose
manifest is gone was not damaged: the reader begins again with the newest one that is listed then.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from understudy.core.bucket import Bucket
from understudy.core.edge.outlet import OutletState
from understudy.core.errors import BrokenInvariant
from understudy.core.replica.events import CopyState
from understudy.core.shape.partition import Partition
from understudy.engine.interface import Snapshot
from understudy.engine.storing import open_snapshot
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.saving.bounded import Tick
from understudy.runtime.saving.layout import OBJECTS, SnapshotName
from understudy.runtime.saving.manifest import Manifest, Object, SavedOutlet
from understudy.runtime.saving.places import digest_of, digest_of_file
from understudy.runtime.saving.runs import decode_run
from understudy.runtime.saving.shelf import Shelf

log = logging.getLogger(__name__)

#: How often a reader begins again because snapshots expire while it reads.
_ROUNDS_MAX = 100
_READS = 2


@dataclass(frozen=True)
class Restored:
    """A snapshot that was brought back."""

    snapshot: Snapshot
    """The engine's files, in the folder that the caller named."""
    state: CopyState
    saved_at: float
    """Wall time of the process that saved it, in seconds."""
    passed_over: tuple[str, ...]
    """A sentence for each newer snapshot that was not whole: which one, and what is wrong with it."""
    seconds: float


class Damaged(Exception):
    """A snapshot is not whole; `culprit` is the object that does not have its contents, if there is one."""

    def __init__(self, what: str, culprit: Object | None = None) -> None:
        super().__init__(what)
        self.culprit = culprit


def restore_newest(shelf: Shelf, into: Path) -> Restored | None:
    """Bring back the newest snapshot into a folder, which is emptied first. None if there never was any."""
    began = time.monotonic()
    passed_over: list[str] = []
    damaged: set[SnapshotName] = set()
    for _ in range(_ROUNDS_MAX):
        candidates = [name for name in shelf.names() if name not in damaged]
        if not candidates:
            if passed_over or shelf.was_ever_used():
                raise EnvironmentFailed(_none_is_whole(shelf, passed_over))
            return None
        name = candidates[0]
        try:
            manifest = shelf.manifest(name)
            state = _bring_back(shelf, manifest, into)
        except FileNotFoundError:
            continue
        except (Damaged, ValueError) as problem:
            if name not in shelf.names():
                continue
            damaged.add(name)
            passed_over.append(_sentence(shelf, name, problem))
            log.warning("%s", passed_over[-1])
            _set_aside(shelf, name, problem)
            continue
        return Restored(
            open_snapshot(into), state, manifest.saved_at, tuple(passed_over), time.monotonic() - began
        )
    raise EnvironmentFailed(
        f"The snapshots of {shelf.partition} in {shelf.shown(shelf.snapshots)} expire faster than they can "
        f"be read. Keep more of them."
    )


def _sentence(shelf: Shelf, name: SnapshotName, problem: Exception) -> str:
    saved = ""
    with contextlib.suppress(ValueError, FileNotFoundError, EnvironmentFailed):
        moment = datetime.fromtimestamp(shelf.manifest(name).saved_at, UTC)
        saved = f", saved at {moment:%Y-%m-%d %H:%M:%S} UTC,"
    return (
        f"The snapshot of {shelf.partition} through bucket {name.through}{saved} was passed over: {problem}."
    )


def _none_is_whole(shelf: Shelf, passed_over: Sequence[str]) -> str:
    return " ".join(
        (
            f"No snapshot of {shelf.partition} in {shelf.shown(shelf.snapshots)} is whole.",
            *passed_over,
            "Bring the files back from a backup of the store, or begin a new run.",
        )
    )


def _set_aside(shelf: Shelf, name: SnapshotName, problem: Exception) -> None:
    try:
        shelf.set_aside_snapshot(name)
        if isinstance(problem, Damaged) and problem.culprit is not None:
            shelf.set_aside_object(problem.culprit.digest)
    except EnvironmentFailed as trouble:
        # A store that may only be read can still be restored from.
        log.warning("%s", trouble)


def _bring_back(shelf: Shelf, manifest: Manifest, into: Path) -> CopyState:
    """All of a snapshot's files, and its state. Raises `Damaged`."""
    try:
        shutil.rmtree(into, ignore_errors=True)
        for folder in {(into / name).parent for name, _ in manifest.files} | {into}:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise EnvironmentFailed(f"A snapshot cannot be restored to {into}: {problem}.") from problem
    outlets = [_outlet(shelf, outlet) for outlet in manifest.outlets]
    what = f"A snapshot cannot be restored from {shelf.shown()} to {into}"
    shelf.each(what, lambda item, tick: _file(shelf, into, item, tick), manifest.files)
    return CopyState(manifest.version, manifest.through, tuple(outlets))


def _file(shelf: Shelf, into: Path, item: tuple[str, Object], tick: Tick) -> None:
    name, wanted = item
    target = into / name
    for _ in range(_READS):
        try:
            shelf.place.download(shelf.path(OBJECTS, wanted.digest), target, tick)
            found = digest_of_file(target, tick)
        except FileNotFoundError as problem:
            # It may as well be the folder `into`: a node that ends removes its folders.
            if shelf.has_object(wanted):
                raise EnvironmentFailed(f"A snapshot cannot be restored to {into}: {problem}.") from problem
            raise Damaged(f"its file {name} is missing (object {wanted.digest})") from None
        except OSError as problem:
            if not shelf.place.links or problem.errno != errno.EIO:
                raise
            raise Damaged(f"its file {name} cannot be read: {problem}", wanted) from problem
        if found == (wanted.size_bytes, wanted.digest):
            return
        target.unlink()
    raise Damaged(f"its file {name} {_difference(wanted, found[0])} (object {wanted.digest})", wanted)


def _difference(wanted: Object, size_bytes: int) -> str:
    if size_bytes != wanted.size_bytes:
        return f"has {size_bytes} bytes instead of {wanted.size_bytes}"
    return "does not have the contents that were written"


def _outlet(shelf: Shelf, saved: SavedOutlet) -> tuple[Partition, OutletState]:
    runs = shelf.each(
        f"The output for {saved.consumer} cannot be restored from {shelf.shown()}",
        lambda run, tick: _run(shelf, saved, run, tick),
        saved.runs,
    )
    kept = tuple(bucket for run in runs for bucket in run if bucket.number > saved.gone_through)
    try:
        if len(kept) != saved.kept:
            raise Damaged(f"its output for {saved.consumer} has {len(kept)} of {saved.kept} buckets")
        state = OutletState(kept, saved.produced_through, saved.gone_through, saved.floors)
    except BrokenInvariant as problem:
        raise Damaged(f"its output for {saved.consumer} contradicts itself: {problem}") from problem
    return saved.consumer, state


def _run(shelf: Shelf, saved: SavedOutlet, wanted: Object, tick: Tick) -> list[Bucket]:
    what = f"a part of its output for {saved.consumer}"
    for _ in range(_READS):
        try:
            contents = shelf.place.read(shelf.path(OBJECTS, wanted.digest), tick)
        except FileNotFoundError:
            raise Damaged(f"{what} is missing (object {wanted.digest})") from None
        if (len(contents), digest_of([contents])) == (wanted.size_bytes, wanted.digest):
            try:
                return decode_run(contents)
            except ValueError as problem:
                raise Damaged(f"{what} is malformed: {problem} (object {wanted.digest})") from problem
    raise Damaged(f"{what} {_difference(wanted, len(contents))} (object {wanted.digest})", wanted)
