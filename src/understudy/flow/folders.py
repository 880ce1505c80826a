"""No two sinks of a flow write to one folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from understudy.flow.errors import FlowError
from understudy.flow.model import Sink


def require_own_folders(sink: Sink, others: Iterable[Sink]) -> None:
    """Raise a FlowError if a folder of `sink` is, holds or lies in one of another sink.

    Files are named by their buckets alone, so one sink would overwrite the files of the other, or take them
    for its own. A reader of an outer folder would find the files of the inner one among its own.
    """
    for other in others:
        for theirs in other.kind.folders():
            for mine in sink.kind.folders():
                a, b = _real(mine), _real(theirs)
                if a == b or a in b.parents or b in a.parents:
                    raise FlowError(
                        f"sink {sink.name!r} writes to {mine}, and sink {other.name!r} to {theirs}: "
                        f"{_relation(a, b)}. Give each sink a folder of its own, side by side."
                    )


def _real(folder: Path) -> Path:
    return folder.resolve()


def _relation(mine: Path, theirs: Path) -> str:
    if mine == theirs:
        return f"both are {mine}"
    inner, outer = (mine, theirs) if theirs in mine.parents else (theirs, mine)
    return f"{inner} lies inside {outer}"
