"""Going on from a snapshot of an earlier version of the flow.

Versions share the objects of a partition. So a snapshot is adopted by writing its manifest once more, among
the snapshots of the version that adopts it; not a byte of state moves. From then on either version may expire
its own manifest, and the objects stay for the other.

The earlier version goes on saving, and may expire the snapshot at any moment. So the adopted one counts only
if, after its manifest was written, the original is still listed and no object is gone; why that is enough is
in `cleaning`. Otherwise it is taken back, and the newest snapshot that is listed then is tried.
"""

from __future__ import annotations

from collections.abc import Callable

from understudy.core.bucket import BucketId
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.saving.layout import SnapshotName
from understudy.runtime.saving.manifest import Manifest, encode
from understudy.runtime.saving.shelf import Contents, Shelf

#: How often an adoption begins again because the snapshot expired meanwhile.
_ATTEMPTS_MAX = 5


def adopt_newest(
    source: Shelf, target: Shelf, new_name: Callable[[BucketId], SnapshotName]
) -> Manifest | None:
    """Put the newest whole snapshot of `source` on `target`, too, under a new name.

    None if `source` never had any. Raises `EnvironmentFailed` if it has some and none is whole, or if they
    expire faster than they can be adopted.
    """
    for _ in range(_ATTEMPTS_MAX):
        if not source.names():
            if source.was_ever_used():
                raise EnvironmentFailed(_none_is_whole(source, target))
            return None
        contents = source.look()
        original = _newest_whole(contents)
        if original is None:
            # Manifests go before objects, so one that lacks an object and is still listed did not expire.
            if {*contents.manifests, *contents.unreadable} == set(source.names()):
                raise EnvironmentFailed(_none_is_whole(source, target))
            continue
        manifest = contents.manifests[original]
        adopted = new_name(manifest.through)
        target.make_folders()
        target.write_manifest(adopted, encode(manifest))
        again = source.look()
        if original in again.manifests and not again.lacks(manifest):
            return manifest
        target.delete_snapshots([adopted])
    raise EnvironmentFailed(
        f"The snapshots of {source.partition} in {source.shown(source.snapshots)} expire faster than version "
        f"{target.version} of the flow can adopt one. Keep more of them."
    )


def _none_is_whole(source: Shelf, target: Shelf) -> str:
    return (
        f"No snapshot of {source.partition} in {source.shown(source.snapshots)} is whole, so version "
        f"{target.version} of the flow cannot go on from it. Bring the files back from a backup."
    )


def _newest_whole(contents: Contents) -> SnapshotName | None:
    whole = (name for name, manifest in contents.manifests.items() if not contents.lacks(manifest))
    return max(whole, default=None)
