"""How safe the state is, in a few words: how old what is saved is and how large, since when nothing is saved,
and which partitions are being brought back. `status` and the views of a run show them.

Of each partition the save counts that its living saver has made, or gone on from. A copy that takes the
saving over from a dead one has saved nothing itself: until it has, the newest save counts that any node told
of. No times are compared, because wall clocks step back. All is saved if that save holds all that the
partition was given, and nothing waits for it, neither in its node nor in the gateway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.view.view import Status

_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class SavedState:
    """What the store has of a partition, as far as is known."""

    #: The last input bucket of the newest save; None if none is known of.
    through: BucketId | None
    at_s: float
    size_bytes: int
    #: Whether that is all that the partition was ever given.
    is_all: bool
    #: Whether a copy of it works. Before that no one knows here what the store has.
    works: bool


def copies_in(status: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is said of every living copy by the node that holds it now, each with its partition. Others may
    have said more of it before they died.
    """
    for copy, stats in _living_copies(status):
        yield copy.rpartition(":")[0], stats


def _living_copies(status: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    seats = status.get("seats", {})
    for node, facts in status.get("nodes", {}).items():
        for copy, stats in facts.get("copies", {}).items():
            seat = seats.get(copy, {})
            if seat.get("node") == node and seat.get("status") != Status.DEAD.value:
                yield copy, stats


def savers_in(status: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Of each partition the living copy that saves its state."""
    return {partition: stats for partition, stats in copies_in(status) if "saved_through" in stats}


def saved_states(status: Mapping[str, Any]) -> dict[str, SavedState]:
    """What is saved of every partition that has a seat."""
    savers = {
        copy.rpartition(":")[0]: (copy, stats)
        for copy, stats in _living_copies(status)
        if "saved_through" in stats
    }
    awaiting = set(status.get("awaiting_rows", ()))
    found: dict[str, SavedState] = {}
    for partition in _partitions(status):
        copy, stats = savers.get(partition, ("", {}))
        through, at_s, size_bytes = _newest_save(stats, status.get("saved", {}).get(partition))
        is_all = bool(stats) and copy not in awaiting and _holds_all(stats, through)
        found[partition] = SavedState(through, at_s, size_bytes, is_all, bool(stats.get("begun")))
    return found


def unsaved_in(status: Mapping[str, Any]) -> list[str]:
    """The partitions that were given more than is saved, or of which no node tells."""
    return sorted(partition for partition, state in saved_states(status).items() if not state.is_all)


def restoring_in(status: Mapping[str, Any]) -> list[str]:
    """The partitions that lost all of their copies, and of which none works again yet."""
    working = {partition for partition, stats in copies_in(status) if stats.get("begun")}
    seated_anew = {partition for partition in status.get("restored", {}) if partition not in working}
    return sorted({*status.get("down", ()), *seated_anew})


def stored(status: Mapping[str, Any]) -> str:
    """How safe the state is; nothing if no state is saved in this run, or none is known of yet."""
    restoring = restoring_in(status)
    parts = [f"RESTORING {', '.join(restoring)}"] if restoring else []
    savers = list(savers_in(status).values())
    if savers or status.get("saved"):
        parts.append(_trouble(savers) or _saved(list(saved_states(status).values()), status))
    return "; ".join(filter(None, parts))


def _partitions(status: Mapping[str, Any]) -> list[str]:
    return sorted({copy.rpartition(":")[0] for copy in status.get("seats", {})})


def _newest_save(
    stats: Mapping[str, Any], known: Mapping[str, Any] | None
) -> tuple[BucketId | None, float, int]:
    """What the copy that saves has told, or what the gateway remembers: through, when, and how large.

    Its own may be less: it may have found the newest one damaged.
    """
    own_through = stats.get("saved_through")
    if known is not None and own_through in (None, known["through"]):
        return known["through"], known["at_s"], known["bytes"]
    return own_through, stats.get("saved_at_s", 0.0), stats.get("saved_bytes", 0)


def _holds_all(stats: Mapping[str, Any], through: BucketId | None) -> bool:
    """Whether a save through there holds all that came to the node of this copy."""
    if stats.get("queued_buckets"):
        return False
    handed: BucketId = stats["handed_through"]
    return handed == NOTHING or (through is not None and handed <= through)


def _trouble(savers: list[dict[str, Any]]) -> str:
    failing = [stats for stats in savers if stats["not_saved_since_s"] is not None]
    if failing:
        first = min(failing, key=lambda stats: float(stats["not_saved_since_s"]))
        since = datetime.fromtimestamp(first["not_saved_since_s"])
        return f"NOT SAVED since {since:%H:%M:%S}: {first['saving_trouble']}"
    waiting = [stats["saving_trouble"] for stats in savers if stats["saving_trouble"]]
    return str(waiting[0]) if waiting else ""


def _saved(states: list[SavedState], status: Mapping[str, Any]) -> str:
    behind = [state for state in states if not state.is_all]
    if any(state.through is None for state in behind):
        known = all(state.works for state in behind if state.through is None)
        return "not saved yet" if known else ""
    if all(state.through is None for state in states):
        return "nothing to save yet"
    size_bytes = sum(state.size_bytes for state in states)
    size = f", {size_bytes / 2**20:.1f} MB" if size_bytes else ""
    if not behind:
        return f"all saved{size}"
    now_s = status.get("at_us", 0) / 1e6
    return f"saved {_age(now_s - min(state.at_s for state in behind))} ago{size}"


def _age(age_s: float) -> str:
    """Snapshots are seconds apart, so an age of minutes is already much."""
    return f"{max(0.0, age_s):.0f} s" if age_s < 2 * _MINUTE_S else f"{age_s / _MINUTE_S:.0f} min"
