"""Which shapes of the flow the saved snapshots of a run are of.

A shape is what a state is made by (`engine.state_shape`), and the code of a run may change between two
generations. The first node of a generation writes its shape down long before anything is saved, and the store
keeps two snapshots of each partition, of which either may be used. So until every partition was saved twice,
a former shape counts, too: a flow that is to go on must fit it, and what only its fragments have saved stays.

Every snapshot has a mark of its shape. A former shape counts as long as a partition that the run has, by a
shape that counts, keeps a snapshot with its mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from understudy.core.shape.partition import Partition
from understudy.runtime.pinning import shape_mark
from understudy.runtime.saving.store import SnapshotStore


def shapes_that_count(known: Sequence[dict[str, Any]], store: SnapshotStore | None) -> list[dict[str, Any]]:
    """Of the known shapes those that a saved snapshot may be of, and the newest, which comes last.

    Raises `EnvironmentFailed` if the store does not answer.
    """
    if store is None or len(known) < 2:
        return list(known)
    by_mark = {shape_mark(shape): shape for shape in known}
    counting = {shape_mark(known[-1])}
    seen: dict[Partition, set[str]] = {}
    there = store.partitions()
    while True:
        segments = {name for mark in counting for name in segments_of(by_mark[mark])}
        for partition in there:
            if partition.name in segments and partition not in seen:
                seen[partition] = {each.shape for each in store.listed(partition)}
        marks = set().union(*seen.values())
        if "" in marks:
            # Saved before snapshots had marks: by any of them.
            return list(known)
        if marks & by_mark.keys() <= counting:
            return [shape for mark, shape in by_mark.items() if mark in counting]
        counting |= marks & by_mark.keys()


def segments_of(shape: dict[str, Any]) -> list[str]:
    """The names under which a run with this shape saves."""
    return list(shape.get("segments", ()))
