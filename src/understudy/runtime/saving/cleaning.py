"""What is deleted after a save, and after one that failed, and when.

Of each version of the flow, the newest snapshots that are whole stay, as many as the store keeps; the others
go. First their manifests go, so that no reader begins with one of them, then the objects that only they
named. An object that no snapshot names is the left-over of a save that failed or of a version that was
dropped, or another process has written it and is about to name it. Only its age can tell: it goes once it is
older than `GRACE_S` by the clock of the file system.

What a process has written itself in a save that failed it need not wait for. It goes at once if the store is
full: without its room no save might ever succeed again. Otherwise the next save goes on from it, and deletes
what it has no use for before it writes. To another process these are objects like those of a snapshot that
expires: it may have found one, and the four rules below hold for it.

A snapshot that lacks an object, or has a damaged manifest, would never be restored. It does not count among
those that stay; it is set aside.

A save cleans up after its own version: it expires and sets aside no snapshot of another one. It deletes no
object that a snapshot of any version names. While another version has a damaged manifest, it deletes none at
all: that manifest may have named it.

*Two processes on one shelf.* A process that was declared dead may still save, and so may its successor. While
a run is upgraded, both versions of its flow save. Names of manifests never clash, and objects of one name
have the same contents. What can go wrong is that one process deletes an object which the other has found and
is about to name. Four things contain this.

1. A save looks again after it has written its manifest. If an object is gone, it takes the snapshot back and
   saves again.
2. A process deletes only by a fresh look: one that slept after it had looked deletes nothing.
3. A process first deletes the expired manifests, then lists the manifests of all versions, and then deletes
   only objects that none of them names. If a manifest goes while it is read, it lists all of them again: the
   one that replaced it may name the same objects.
4. What is left is the moment between that listing and the deletion. A snapshot that loses an object then is
   recognised by any later save, from the listing, or by a reader, from the missing object. Either sets it
   aside and goes on with the one before it; and the next save writes the object again if it needs it, because
   it goes by what is listed and not by what it remembers. That repairs every snapshot that names the object.

*An adopted snapshot* (`adopting`) has no such moment. It counts only if the original is still listed after
the copy of its manifest was written. A process that expires the original deletes its manifest later than
that, and by 3 it lists all manifests later still: the copy is among them, however long either process sleeps.
Snapshots are adopted from earlier versions by later ones, and the manifests are listed in the same order. So
a third process that lists them while the original expires sees the original, or else the copy.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence

from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.saving.layout import OBJECTS, SnapshotName
from understudy.runtime.saving.shelf import Contents, Shelf

log = logging.getLogger(__name__)

#: How long a file that no snapshot names may belong to a save that goes on. The first save of a large state
#: takes long, and another version of the flow cleans up in the meantime.
GRACE_S = 3600.0
#: How long after a look it may be acted upon.
FRESH_S = 15.0


def clean(shelf: Shelf, contents: Contents, keep: int, left: Collection[str] = ()) -> list[SnapshotName]:
    """Delete what is not needed; returns the snapshots that stay, newest first.

    `left` are objects that saves of this process have written and not named: their age does not matter.
    Trouble is logged: it is not that of a save. The next save tries again.
    """
    whole = {name for name, manifest in contents.manifests.items() if not contents.lacks(manifest)}
    ranked = sorted(whole, reverse=True)
    stay, expired = ranked[:keep], ranked[keep:]
    try:
        _set_aside_broken(shelf, contents, whole)
        if not _fresh(contents):
            return ranked
        shelf.delete_snapshots(expired)
    except EnvironmentFailed as problem:
        log.warning("%s", problem)
        return ranked
    try:
        _delete_unfinished(shelf, contents)
        _delete_objects(shelf, contents, stay, expired, left)
    except EnvironmentFailed as problem:
        log.warning("%s", problem)
    return stay


def _fresh(contents: Contents) -> bool:
    return time.monotonic() - contents.looked_at < FRESH_S


def _set_aside_broken(shelf: Shelf, contents: Contents, whole: set[SnapshotName]) -> None:
    broken = dict(contents.unreadable)
    for name, manifest in contents.manifests.items():
        if name not in whole:
            broken[name] = f"it lacks {len(contents.lacks(manifest))} of its objects"
    for name, why in broken.items():
        log.warning("snapshot %s is set aside: %s", shelf.shown(shelf.snapshots, str(name)), why)
        shelf.set_aside_snapshot(name)


def _delete_unfinished(shelf: Shelf, contents: Contents) -> None:
    old = [name for name in contents.unfinished if contents.written_at[name] < contents.now - GRACE_S]
    for folder in (OBJECTS, shelf.snapshots):
        names = [name.rpartition("/")[2] for name in old if name.startswith(f"{folder}/")]
        if _fresh(contents):
            shelf.delete(folder, names)


def _delete_objects(
    shelf: Shelf,
    contents: Contents,
    stay: Sequence[SnapshotName],
    expired: Sequence[SnapshotName],
    left: Collection[str],
) -> None:
    """Delete what nothing names, once the expired manifests are gone."""
    named = {each.digest for name in stay for each in contents.manifests[name].objects()}
    retired = {each.digest for name in expired for each in contents.manifests[name].objects()}.union(left)
    needless = {
        digest
        for digest, entry in contents.objects.items()
        if digest not in named and (digest in retired or entry.written_at < contents.now - GRACE_S)
    }
    if needless:
        needless -= shelf.named()
    if _fresh(contents):
        shelf.delete(OBJECTS, sorted(needless))
