"""What a snapshot says of itself: the state of the copy, and every object that it consists of.

It is written last, so a snapshot is listed only once all its objects are there. It has a digest of itself. It
does not change what `engine.storing` wrote: that manifest is one of the snapshot's files, like any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

from understudy.core.bucket import BucketId
from understudy.core.errors import BrokenInvariant
from understudy.core.shape.partition import Partition
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.saving.places import digest_of

_LAYOUT = 1


@dataclass(frozen=True, slots=True)
class Object:
    """Contents by their digest, which is their name."""

    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SavedOutlet:
    """An outlet, with its kept buckets in runs, oldest first. A run may begin before what is kept."""

    consumer: Partition
    produced_through: BucketId
    gone_through: BucketId
    floors: tuple[tuple[int, BucketId], ...]
    kept: int
    """How many buckets the outlet keeps."""
    runs: tuple[Object, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """One snapshot of one partition."""

    partition: Partition
    version: int
    through: BucketId
    saved_at: float
    """Wall time of the process that saved it, in seconds."""
    files: tuple[tuple[str, Object], ...]
    """By their path in the snapshot's folder."""
    outlets: tuple[SavedOutlet, ...]
    shape: str = ""
    """The mark of the flow's shape by which the state was made; nothing if that is not known."""

    def objects(self) -> Iterator[Object]:
        """All that it consists of; an object may come more than once."""
        yield from (each for _, each in self.files)
        for outlet in self.outlets:
            yield from outlet.runs

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in set(self.objects()))


def encode(manifest: Manifest) -> bytes:
    said: dict[str, Any] = {"layout": _LAYOUT, **asdict(manifest)}
    said["partition"] = str(manifest.partition)
    for outlet, written in zip(manifest.outlets, said["outlets"], strict=True):
        written["consumer"] = str(outlet.consumer)
    return json.dumps({**said, "digest": _digest(said)}, indent=1).encode()


def _digest(said: dict[str, Any]) -> str:
    return digest_of([json.dumps(said, sort_keys=True).encode()])


def decode(written: bytes) -> Manifest:
    """Raises `ValueError` that says what is wrong, `EnvironmentFailed` for one of another version."""
    try:
        said = json.loads(written)
        digest = said.pop("digest")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ValueError("its manifest is cut off or is none") from None
    if digest != _digest(said):
        raise ValueError("its manifest is not what was written")
    if said["layout"] != _LAYOUT:
        # It may be whole, so it is neither passed over nor cleaned away.
        raise EnvironmentFailed(
            f"A snapshot of {said.get('partition')} was saved in layout {said['layout']}; this version of "
            f"Understudy reads layout {_LAYOUT}. Use the version that saved it."
        )
    try:
        manifest = Manifest(
            Partition.of(said["partition"]),
            said["version"],
            said["through"],
            said["saved_at"],
            tuple((name, Object(**each)) for name, each in said["files"]),
            tuple(_outlet(each) for each in said["outlets"]),
            # One that was saved before there were marks has none.
            str(said.get("shape", "")),
        )
    except (KeyError, TypeError, ValueError, BrokenInvariant) as problem:
        raise ValueError(f"its manifest is malformed: {problem}") from problem
    for name, _ in manifest.files:
        if name.startswith("/") or ".." in PurePosixPath(name).parts or not PurePosixPath(name).parts:
            raise ValueError(f"its file {name!r} would leave its folder")
    return manifest


def _outlet(said: dict[str, Any]) -> SavedOutlet:
    return SavedOutlet(
        Partition.of(said["consumer"]),
        said["produced_through"],
        said["gone_through"],
        tuple((replica, floor) for replica, floor in said["floors"]),
        said["kept"],
        tuple(Object(**each) for each in said["runs"]),
    )
