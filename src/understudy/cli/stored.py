"""How safe the state is, in a few words: how old what is saved is and how large, since when nothing is saved,
and which partitions are being brought back. `status` and the views of a run show them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from understudy.core.bucket import NOTHING

_MINUTE_S = 60.0


def copies_in(status: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is said of every copy by the node that holds it now, each with its partition. Others may have said
    more of it before they died.
    """
    seats = status.get("seats", {})
    for node, facts in status.get("nodes", {}).items():
        for copy, stats in facts.get("copies", {}).items():
            if seats.get(copy, {}).get("node") == node:
                yield copy.rpartition(":")[0], stats


def savers_in(status: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Of each partition the copy that saves its state."""
    return {partition: stats for partition, stats in copies_in(status) if "saved_through" in stats}


def is_saved(stats: Mapping[str, Any]) -> bool:
    """Whether the store holds all that this copy has taken in."""
    return stats["handed_through"] in (NOTHING, stats["saved_through"])


def restoring_in(status: Mapping[str, Any]) -> list[str]:
    """The partitions that lost all of their copies, and of which none works again yet."""
    working = {partition for partition, stats in copies_in(status) if stats.get("begun")}
    seated_anew = {partition for partition in status.get("restored", {}) if partition not in working}
    return sorted({*status.get("down", ()), *seated_anew})


def stored(status: Mapping[str, Any]) -> str:
    """How safe the state is; nothing if no state is saved in this run, or none is known of yet."""
    restoring = restoring_in(status)
    parts = [f"RESTORING {', '.join(restoring)}"] if restoring else []
    savers = savers_in(status)
    if savers:
        parts.append(_saved(savers, status.get("at_us", 0) / 1e6))
    return "; ".join(parts)


def _saved(savers: Mapping[str, Mapping[str, Any]], now_s: float) -> str:
    failing = [stats for stats in savers.values() if stats["not_saved_since_s"] is not None]
    if failing:
        first = min(failing, key=lambda stats: float(stats["not_saved_since_s"]))
        since = datetime.fromtimestamp(first["not_saved_since_s"])
        return f"NOT SAVED since {since:%H:%M:%S}: {first['saving_trouble']}"
    waiting = [stats["saving_trouble"] for stats in savers.values() if stats["saving_trouble"]]
    if waiting:
        return str(waiting[0])
    behind = [stats for stats in savers.values() if not is_saved(stats)]
    if any(stats["saved_through"] is None for stats in behind):
        return "not saved yet"
    size_bytes = sum(stats["saved_bytes"] for stats in savers.values())
    size = f", {size_bytes / 2**20:.1f} MB" if size_bytes else ""
    if not behind:
        return f"all saved{size}"
    return f"saved {_age(now_s - min(stats['saved_at_s'] for stats in behind))} ago{size}"


def _age(age_s: float) -> str:
    """Snapshots are seconds apart, so an age of minutes is already much."""
    return f"{max(0.0, age_s):.0f} s" if age_s < 2 * _MINUTE_S else f"{age_s / _MINUTE_S:.0f} min"
