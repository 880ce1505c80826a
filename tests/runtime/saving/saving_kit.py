"""Snapshots to save, and stores to save them to."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.outlet import OutletState
from understudy.core.replica.events import CopyState
from understudy.core.shape.partition import Partition
from understudy.engine.storing import Digests, open_snapshot, seal_snapshot, verify_snapshot
from understudy.runtime.saving.layout import OBJECTS, SET_ASIDE, partition_folder, snapshots_folder
from understudy.runtime.saving.places import Place
from understudy.runtime.saving.remote import RemotePlace
from understudy.runtime.saving.store import Restored, SnapshotStore

RUN = "run-1"
P = Partition("sessions", 0)
C = Partition("counts", 0)
SHELF = f"{RUN}/{partition_folder(P)}"


def no_tick() -> None:
    pass


def bucket(number: int, payload: bytes | None = None) -> Bucket:
    return Bucket(number) if payload is None else Bucket(number, payload, len(payload))


def outlet(
    kept: Sequence[Bucket], *, gone_through: int = NOTHING, produced_through: int | None = None
) -> OutletState:
    last = kept[-1].number if kept else gone_through
    return OutletState(
        tuple(kept),
        last if produced_through is None else produced_through,
        gone_through,
        ((0, 3), (1, NOTHING)),
    )


def state(
    through: int, kept: Sequence[Bucket] = (), *, gone_through: int = NOTHING, version: int = 1
) -> CopyState:
    return CopyState(version, through, ((C, outlet(kept, gone_through=gone_through)),))


def sealed(folder: Path, through: int, files: Mapping[str, bytes]) -> Path:
    """A snapshot's folder, as an engine seals it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, contents in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(contents)
    seal_snapshot(folder, {"through": through, "output_through": through}, Digests())
    return folder


def files_of(through: int) -> dict[str, bytes]:
    """What an engine holds: a file that every snapshot has, one that two have, and one of its own."""
    return {
        "checkpoint/metadata": b'{"id": "one"}',
        "checkpoint/state/0/0/1.snapshot": b"all" * 100,
        f"checkpoint/state/0/0/{through // 20}.delta": b"shared %d" % (through // 20),
        f"checkpoint/offsets/{through}": b"offsets %d" % through,
        "checkpoint/empty": b"",
    }


class Saver:
    """A process that saves snapshots of P to a store."""

    def __init__(self, place: Place, folder: Path, *, keep: int = 2, version: int = 1) -> None:
        self.store = SnapshotStore(place, RUN, keep=keep, version=version)
        self._folder = folder

    def save(self, through: int, kept: Sequence[Bucket] = (), *, gone_through: int = NOTHING):
        folder = sealed(self._folder / f"snapshot-{through}", through, files_of(through))
        return self.store.save(P, folder, state(through, kept, gone_through=gone_through))


def restored(place: Place, into: Path, *, version: int = 1) -> Restored:
    """What a new process restores, once it was found to be whole for the engine, too."""
    found = SnapshotStore(place, RUN, version=version).restore(P, into)
    assert found is not None
    verify_snapshot(open_snapshot(into))
    through = found.state.through
    assert {name: (into / name).read_bytes() for name in files_of(through)} == files_of(through)
    return found


def names(place: Place, folder: str) -> set[str]:
    return {entry.name for entry in place.files(f"{SHELF}/{folder}")}


def snapshots(place: Place, *, version: int = 1) -> list[str]:
    """Oldest first."""
    return sorted(names(place, snapshots_folder(version)))


def objects(place: Place) -> set[str]:
    return names(place, OBJECTS)


def set_aside(place: Place) -> set[str]:
    return names(place, SET_ASIDE)


def once_before(
    place: Place, method: str, action: Callable[[], object], monkeypatch: pytest.MonkeyPatch, *, where: str
) -> None:
    """Let another process do something just before the first call with a name that contains `where`."""
    honest = getattr(place, method)
    done = False

    def call(name: str, *rest: Any) -> Any:
        nonlocal done
        if where in name and not done:
            done = True
            action()
        return honest(name, *rest)

    monkeypatch.setattr(place, method, call)


def moved_on_close(root: Path) -> RemotePlace:
    """A stand-in for HDFS: pyarrow, with files that are seen while they grow."""
    return RemotePlace(
        pafs.LocalFileSystem(), str(root), f"hdfs://name-node{root}", in_buckets=False, whole_on_close=False
    )
