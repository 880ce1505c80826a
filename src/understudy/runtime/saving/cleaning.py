"""What is deleted after a save, and when.

The newest snapshots that are whole stay, as many as the store keeps; the others go. First their manifests go,
so that no reader begins with one of them, then the objects that only they named. An object that no snapshot
ever named is either the left-over of a save that failed, or another process has written it and is about to
name it. Only its age can tell: it goes once it is older than `GRACE_S` by the clock of the file system.

A snapshot that lacks an object, or has a damaged manifest, would never be restored. It does not count among
those that stay; it is set aside.

*Two processes on one shelf.* A process that was declared dead may still save, and so may its successor. Names
of manifests never clash, and objects of one name have the same contents. What can go wrong is that one of
them deletes an object which the other has found and is about to name. Three things contain this.

1. A save looks again after it has written its manifest. If an object is gone, it takes the snapshot back and
   saves again.
2. A process deletes only by a fresh look: one that slept after it had looked deletes nothing.
3. What is left is the moment between that check and the deletion. A snapshot that loses an object then is
   recognised by any later save, from the listing, or by a reader, from the missing object. Either sets it
   aside and goes on with the one before it; and the next save writes the object again if it needs it, because
   it goes by what is listed and not by what it remembers. That repairs every snapshot that names the object.
"""

from __future__ import annotations

import logging
import time

from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.saving.layout import OBJECTS, SNAPSHOTS, SnapshotName
from understudy.runtime.saving.shelf import Contents, Shelf

log = logging.getLogger(__name__)

#: How long a file that no snapshot names may belong to a save that goes on.
GRACE_S = 60.0
#: How long after a look it may be acted upon.
FRESH_S = 15.0


def clean(shelf: Shelf, contents: Contents, keep: int) -> list[SnapshotName]:
    """Delete what is not needed; returns the snapshots that stay, newest first.

    Trouble is logged: the save that came before has succeeded. The next save tries again.
    """
    whole = {name for name, manifest in contents.manifests.items() if not contents.lacks(manifest)}
    ranked = sorted(whole, reverse=True)
    stay, expired = ranked[:keep], ranked[keep:]
    try:
        _set_aside_broken(shelf, contents, whole)
        if time.monotonic() - contents.looked_at < FRESH_S:
            shelf.delete(SNAPSHOTS, [str(name) for name in expired])
        else:
            return ranked
    except EnvironmentFailed as problem:
        log.warning("%s", problem)
        return ranked
    try:
        named = {each.digest for name in stay for each in contents.manifests[name].objects()}
        retired = {each.digest for name in expired for each in contents.manifests[name].objects()}
        old = contents.now - GRACE_S
        needless = [
            digest
            for digest, entry in contents.objects.items()
            if digest not in named and (digest in retired or entry.written_at < old)
        ]
        unfinished = [name for name in contents.unfinished if contents.written_at[name] < old]
        if time.monotonic() - contents.looked_at < FRESH_S:
            shelf.delete(OBJECTS, needless)
            for folder in (OBJECTS, SNAPSHOTS):
                shelf.delete(folder, [n.rpartition("/")[2] for n in unfinished if n.startswith(f"{folder}/")])
    except EnvironmentFailed as problem:
        log.warning("%s", problem)
    return stay


def _set_aside_broken(shelf: Shelf, contents: Contents, whole: set[SnapshotName]) -> None:
    broken = dict(contents.unreadable)
    for name, manifest in contents.manifests.items():
        if name not in whole:
            broken[name] = f"it lacks {len(contents.lacks(manifest))} of its objects"
    for name, why in broken.items():
        log.warning("snapshot %s is set aside: %s", shelf.shown(SNAPSHOTS, str(name)), why)
        shelf.set_aside(SNAPSHOTS, str(name))
