"""A run in words: a line for each node, and the flow's figures. How they are shown is decided elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from understudy.runtime.status import started_as

ROLES = {"PRIM": "primary", "SEC": "secondary"}


@dataclass(frozen=True)
class NodeLine:
    """A node: its place, its state, and what its engine last did."""

    node: str
    place: str
    state: str
    sends: bool = False
    group_buckets: int | None = None
    group_ms: float | None = None
    queued_buckets: int | None = None
    rows_in: int | None = None

    @property
    def group(self) -> str:
        if self.group_ms is None:
            return ""
        return f"{plural(self.group_buckets or 0, 'bucket')} in {self.group_ms:.0f} ms"


@dataclass(frozen=True)
class Figures:
    """The flow as a whole. A rate is None until there are two moments to compare."""

    rows_in: int | None
    rows_in_per_s: float | None
    rows_out: int
    rows_out_per_s: float | None
    latency_ms: float | None
    last_output_s: float | None
    late: int
    buffered_buckets: int
    buffered_bytes: int

    @property
    def buffered_mb(self) -> str:
        return f"{self.buffered_bytes / 2**20:.1f} MB"

    @property
    def sentence(self) -> str:
        parts = [
            f"in {_counted(self.rows_in, self.rows_in_per_s)}",
            f"out {_counted(self.rows_out, self.rows_out_per_s)}",
            f"latency {self.latency_ms:.0f} ms" if self.latency_ms is not None else "no output yet",
        ]
        if self.last_output_s is not None:
            parts.append(f"last output {self.last_output_s:.1f} s ago")
        if self.late:
            parts.append(f"late {self.late}")
        return "; ".join([*parts, f"buffered {self.buffered_mb}"])


def node_lines(status: Mapping[str, Any], running: Mapping[str, bool]) -> list[NodeLine]:
    """A line for each node that has a seat, is ready, or should run.

    `running` maps the names that processes were started under to whether they run.
    """
    lines: list[NodeLine] = []
    shown: set[str] = set()
    for slot, seat in status.get("seats", {}).items():
        name = seat["node"]
        dead = seat["status"] == "DEAD"
        facts = status.get("nodes", {}).get(name, {}) if not dead else {}
        lines.append(
            NodeLine(
                name,
                ROLES.get(slot, slot),
                seat["status"],
                sends=status.get("sender") == slot and not dead,
                group_buckets=facts.get("last_group_buckets"),
                group_ms=facts.get("last_group_ms"),
                queued_buckets=facts.get("queued_buckets"),
                rows_in=facts.get("rows_in"),
            )
        )
        shown |= {name} if dead else {name, started_as(name)}
    for member in sorted(status.get("members", ())):
        if member not in shown and started_as(member) not in shown:
            lines.append(NodeLine(member, "-", "STDBY (ready)"))
            shown.add(started_as(member))
    for process, runs in running.items():
        if process not in shown:
            lines.append(NodeLine(process, "-", "starting Spark" if runs else "not running"))
    return lines


def figures(before: Mapping[str, Any], now: Mapping[str, Any]) -> Figures:
    """The figures of a status, with rates since an earlier one."""
    passed_s = (now.get("at_us", 0) - before.get("at_us", 0)) / 1e6 if before else 0.0

    def rate(then: int | None, current: int | None) -> float | None:
        # A gateway or node that started again counts from nothing.
        if then is None or current is None or passed_s <= 0 or current < then:
            return None
        return (current - then) / passed_s

    return Figures(
        rows_in=_rows_in(now),
        rows_in_per_s=rate(_rows_in(before), _rows_in(now)),
        rows_out=now.get("rows_out") or 0,
        rows_out_per_s=rate(before.get("rows_out"), now.get("rows_out")),
        latency_ms=now.get("latency_ms") if now.get("last_output_s") is not None else None,
        last_output_s=now.get("last_output_s"),
        late=sum(now.get("late", {}).values()),
        buffered_buckets=now.get("buffered_buckets", 0),
        buffered_bytes=now.get("buffered_bytes", 0),
    )


def _rows_in(status: Mapping[str, Any]) -> int | None:
    """Rows taken in: the gateway's count, or what the busiest replica has read."""
    if "rows_in" in status:
        return int(status["rows_in"])
    counts: Sequence[int] = [facts.get("rows_in", 0) for facts in status.get("nodes", {}).values()]
    return max(counts, default=None)


def _counted(rows: int | None, rows_per_s: float | None) -> str:
    told = plural(rows or 0, "row")
    return told if rows_per_s is None else f"{told} ({rows_per_s:.0f}/s)"


def plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
