"""The names that the store gives, below the root of its place:

    <run>/claim.json                                       who works with it
    <run>/<partition>@<index>/objects/<digest>             contents: an engine's file, or a run of buckets
    <run>/<partition>@<index>/snapshots/<through>_<sequence>_<writer>.json    one snapshot each
    <run>/<partition>@<index>/snapshots@<version>/...      the same, from version 2 of the flow on
    <run>/<partition>@<index>/set-aside/...                damaged snapshots and objects, for a human

Versions of a flow share the objects of a partition, so a snapshot passes from one to another by its manifest
alone. `writer` is a random number of the process, so two processes never write a snapshot of the same name.
Names of runs and partitions are quoted like those in a URL, with = for %, which no file system treats
specially.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from understudy.core.bucket import BucketId
from understudy.core.shape.partition import Partition

OBJECTS = "objects"
SNAPSHOTS = "snapshots"
SET_ASIDE = "set-aside"
_SNAPSHOT = re.compile(r"(-?\d+)_(\d+)_([0-9a-f]+)\.json")
_PARTITION = re.compile(r"(.+)@(\d+)")
_VERSION = re.compile(rf"{SNAPSHOTS}(?:@([1-9]\d*))?")


def quoted(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="").replace("%", "=").replace(".", "=2E")


def partition_folder(partition: Partition) -> str:
    return f"{quoted(partition.name)}@{partition.index}"


def partition_of(folder: str) -> Partition | None:
    """The partition whose folder has this name; None for a folder of another kind."""
    match = _PARTITION.fullmatch(folder)
    return Partition(unquote(match[1].replace("=", "%")), int(match[2])) if match else None


def snapshots_folder(version: int) -> str:
    """Where the snapshots of a version of the flow are, on the shelf of a partition."""
    return f"{SNAPSHOTS}{_mark(version)}"


def version_of(folder: str) -> int | None:
    """The version whose snapshots are in a folder of this name; None for a folder of another kind."""
    match = _VERSION.fullmatch(folder)
    version = int(match[1] or 1) if match else None
    return version if version is not None and folder == snapshots_folder(version) else None


def set_aside_name(name: SnapshotName, version: int) -> str:
    """A damaged snapshot among all that is set aside, which versions share."""
    return f"{name}{_mark(version)}"


def set_aside_snapshot(file: str, version: int) -> SnapshotName | None:
    """The snapshot of this version that was set aside in a file of this name; None for any other file."""
    mark = _mark(version)
    return SnapshotName.of(file.removesuffix(mark)) if file.endswith(mark) else None


def _mark(version: int) -> str:
    """What tells a version's names from those of the first, which has none."""
    return "" if version == 1 else f"@{version}"


@dataclass(frozen=True, slots=True, order=True)
class SnapshotName:
    """Which snapshot it is. Snapshots order by what they hold; later ones of the same bucket come later."""

    through: BucketId
    sequence: int
    writer: str

    def __str__(self) -> str:
        return f"{self.through:020d}_{self.sequence:06d}_{self.writer}.json"

    @classmethod
    def of(cls, file: str) -> SnapshotName | None:
        """The snapshot in a file of this name; None for a file of another kind."""
        match = _SNAPSHOT.fullmatch(file)
        return cls(int(match[1]), int(match[2]), match[3]) if match else None
