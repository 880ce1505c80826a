"""Controller events that travel to the leader as reports: their written form and back."""

from __future__ import annotations

from typing import Any

from understudy.core.controller import FoldedIn, MoveFailed, Suspected
from understudy.core.errors import PeerError
from understudy.core.view import Slot
from understudy.runtime.coordination.client import Report

Reported = Suspected | FoldedIn | MoveFailed


def written(event: Reported) -> tuple[str, dict[str, Any]]:
    """Kind and facts for `Coordination.report`."""
    match event:
        case Suspected(node, epoch, by):
            return "suspected", {"node": node, "epoch": epoch, "by": by}
        case FoldedIn(slot, epoch):
            return "folded_in", {"slot": slot.value, "epoch": epoch}
        case MoveFailed(slot, epoch):
            return "move_failed", {"slot": slot.value, "epoch": epoch}


def event_of(report: Report) -> Reported:
    """The event that `written` wrote. Anything else raises `PeerError`."""
    facts = report.facts
    try:
        match report.kind:
            case "suspected":
                return Suspected(str(facts["node"]), int(facts["epoch"]), str(facts["by"]))
            case "folded_in":
                return FoldedIn(Slot(facts["slot"]), int(facts["epoch"]))
            case "move_failed":
                return MoveFailed(Slot(facts["slot"]), int(facts["epoch"]))
    except (KeyError, TypeError, ValueError) as error:
        raise PeerError(f"report {report.path} is damaged: {facts!r}") from error
    raise PeerError(f"report {report.path} is of an unknown kind: {report.kind!r}")
