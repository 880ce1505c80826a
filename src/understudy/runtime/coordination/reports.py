"""What travels to the leader as reports: controller events and operators' wishes, written and read back.

A wish carries an id, under which the leader puts its answer, and a node as an operator calls it. Which member
that is, and which copy is meant if none is named, only the leader can say (see `wishes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.events import CopyCaughtUp, CopyLacks, CopyMoveFailed, CopySuspected
from understudy.core.view.events import Report as CopyReport
from understudy.runtime.coordination.client import Report


@dataclass(frozen=True, slots=True)
class MoveWish:
    """A copy of this partition is to sit on that node: this replica, or whichever had better move."""

    partition: Partition
    replica: int | None
    node: str
    id: str


@dataclass(frozen=True, slots=True)
class DrainWish:
    """That node is to be empty; with `undo`, it may be used again."""

    node: str
    id: str
    undo: bool = False


Wish = MoveWish | DrainWish
Reported = CopyReport | Wish


def written(event: Reported) -> tuple[str, dict[str, Any]]:
    """Kind and facts for `Coordination.report`."""
    match event:
        case CopyCaughtUp(copy, epoch):
            return "caught_up", {"copy": str(copy), "epoch": epoch}
        case CopyMoveFailed(copy, epoch, why, holds_state):
            facts = {"copy": str(copy), "epoch": epoch, "why": why, "holds_state": holds_state}
            return "move_failed", facts
        case CopySuspected(copy, epoch, by):
            return "suspected", {"copy": str(copy), "epoch": epoch, "by": by}
        case CopyLacks(copy, epoch, producer):
            return "lacks", {"copy": str(copy), "epoch": epoch, "producer": str(producer)}
        case MoveWish(partition, replica, node, wish_id):
            facts = {"partition": str(partition), "node": node, "id": wish_id}
            return "move", facts if replica is None else {**facts, "replica": replica}
        case DrainWish(node, wish_id, undo):
            return "undrain" if undo else "drain", {"node": node, "id": wish_id}


def event_of(report: Report) -> Reported:
    """What `written` wrote. Anything else raises `PeerError`."""
    facts = report.facts
    try:
        match report.kind:
            case "caught_up":
                return CopyCaughtUp(Copy.of(facts["copy"]), int(facts["epoch"]))
            case "move_failed":
                copy, epoch = Copy.of(facts["copy"]), int(facts["epoch"])
                return CopyMoveFailed(copy, epoch, str(facts["why"]), bool(facts["holds_state"]))
            case "suspected":
                return CopySuspected(Copy.of(facts["copy"]), int(facts["epoch"]), str(facts["by"]))
            case "lacks":
                copy, epoch = Copy.of(facts["copy"]), int(facts["epoch"])
                return CopyLacks(copy, epoch, Partition.of(facts["producer"]))
            case "move":
                replica = int(facts["replica"]) if "replica" in facts else None
                return MoveWish(Partition.of(facts["partition"]), replica, str(facts["node"]), _id_in(facts))
            case "drain" | "undrain":
                return DrainWish(str(facts["node"]), _id_in(facts), report.kind == "undrain")
    except (KeyError, TypeError, ValueError, AttributeError, BrokenInvariant) as error:
        raise PeerError(f"report {report.path} is damaged: {facts!r}") from error
    raise PeerError(f"report {report.path} is of an unknown kind: {report.kind!r}")


def _id_in(facts: dict[str, Any]) -> str:
    """The id becomes part of a path in ZooKeeper, and the answers are kept in its order."""
    wish_id = facts["id"]
    if not isinstance(wish_id, str) or not wish_id or "/" in wish_id:
        raise ValueError(f"{wish_id!r} is no id of a wish")
    return wish_id
