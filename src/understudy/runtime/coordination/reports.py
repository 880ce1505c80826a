"""What travels to the leader as reports: controller events and operators' wishes, written and read back.

A wish carries an id, under which the leader puts its answer, and a node as an operator calls it. Which member
that is, and which copy is meant if none is named, only the leader can say (see `wishes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from understudy.core.controller import FoldedIn, MoveFailed, Suspected
from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.flux_events import CopyCaughtUp, CopyMoveFailed, CopySuspected
from understudy.core.partition import Copy, Partition
from understudy.core.view import Slot
from understudy.runtime.coordination.client import Report

PairReported = Suspected | FoldedIn | MoveFailed
FluxReported = CopyCaughtUp | CopyMoveFailed | CopySuspected


@dataclass(frozen=True, slots=True)
class MoveWish:
    """A copy of this partition is to sit on that node: the one in this slot, or whichever had better move."""

    partition: Partition
    slot: Slot | None
    node: str
    id: str


@dataclass(frozen=True, slots=True)
class DrainWish:
    """That node is to be empty; with `undo`, it may be used again."""

    node: str
    id: str
    undo: bool = False


Wish = MoveWish | DrainWish
Reported = PairReported | FluxReported | Wish


def written(event: Reported) -> tuple[str, dict[str, Any]]:
    """Kind and facts for `Coordination.report`."""
    match event:
        case Suspected(node, epoch, by):
            return "suspected", {"node": node, "epoch": epoch, "by": by}
        case FoldedIn(slot, epoch):
            return "folded_in", {"slot": slot.value, "epoch": epoch}
        case MoveFailed(slot, epoch):
            return "move_failed", {"slot": slot.value, "epoch": epoch}
        case CopyCaughtUp(copy, epoch):
            return "copy_caught_up", {**_copy(copy), "epoch": epoch}
        case CopyMoveFailed(copy, epoch):
            return "copy_move_failed", {**_copy(copy), "epoch": epoch}
        case CopySuspected(copy, epoch, by):
            return "copy_suspected", {**_copy(copy), "epoch": epoch, "by": by}
        case MoveWish(partition, wanted_slot, node, wish_id):
            facts = {"fragment": partition.fragment, "index": partition.index, "node": node, "id": wish_id}
            return "move", facts if wanted_slot is None else {**facts, "slot": wanted_slot.value}
        case DrainWish(node, wish_id, undo):
            return "undrain" if undo else "drain", {"node": node, "id": wish_id}


def event_of(report: Report) -> Reported:
    """What `written` wrote. Anything else raises `PeerError`."""
    facts = report.facts
    try:
        match report.kind:
            case "suspected":
                return Suspected(str(facts["node"]), int(facts["epoch"]), str(facts["by"]))
            case "folded_in":
                return FoldedIn(Slot(facts["slot"]), int(facts["epoch"]))
            case "move_failed":
                return MoveFailed(Slot(facts["slot"]), int(facts["epoch"]))
            case "copy_caught_up":
                return CopyCaughtUp(_copy_in(facts), int(facts["epoch"]))
            case "copy_move_failed":
                return CopyMoveFailed(_copy_in(facts), int(facts["epoch"]))
            case "copy_suspected":
                return CopySuspected(_copy_in(facts), int(facts["epoch"]), str(facts["by"]))
            case "move":
                slot = Slot(facts["slot"]) if "slot" in facts else None
                return MoveWish(_partition_in(facts), slot, str(facts["node"]), _id_in(facts))
            case "drain" | "undrain":
                return DrainWish(str(facts["node"]), _id_in(facts), report.kind == "undrain")
    except (KeyError, TypeError, ValueError, BrokenInvariant) as error:
        raise PeerError(f"report {report.path} is damaged: {facts!r}") from error
    raise PeerError(f"report {report.path} is of an unknown kind: {report.kind!r}")


def _copy(copy: Copy) -> dict[str, Any]:
    return {
        "fragment": copy.partition.fragment,
        "index": copy.partition.index,
        "slot": copy.slot.value,
    }


def _partition_in(facts: dict[str, Any]) -> Partition:
    return Partition(str(facts["fragment"]), int(facts["index"]))


def _copy_in(facts: dict[str, Any]) -> Copy:
    return Copy(_partition_in(facts), Slot(facts["slot"]))


def _id_in(facts: dict[str, Any]) -> str:
    """The id becomes part of a path in ZooKeeper, and the answers are kept in its order."""
    wish_id = facts["id"]
    if not isinstance(wish_id, str) or not wish_id or "/" in wish_id:
        raise ValueError(f"{wish_id!r} is no id of a wish")
    return wish_id
