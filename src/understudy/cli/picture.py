"""A run in words: a line for each node, and the flow's figures. `view` and `status` show them.

Where a node runs the whole flow, its place is its role. Where the flow has several partitions, a node has a
place for each copy that it holds: "sessions 0 3*, stats 1*2>" are replica 0 of sessions/0, replica 1 of
sessions/3 and replica 2 of stats/1, which sends to a sink.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from understudy.cli.stored import stored
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.view import Seat, Status
from understudy.runtime.seating import in_one_piece, place_of, seats_in, senders_in
from understudy.runtime.status import started_as

_MARKS = {Status.ACTIVE: "", Status.STDBY: "~", Status.DEAD: "!", Status.BACKUP: "="}


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
    #: Whether the place is a list of copies, and not one role.
    holds_copies: bool = False

    @property
    def group(self) -> str:
        if self.group_ms is None:
            return ""
        return f"{plural(self.group_buckets or 0, 'bucket')} in {self.group_ms:.0f} ms"


def span(ms: float) -> str:
    """A stretch of time in a unit that suits it: rows that happened long ago are days behind the clock."""
    for unit, unit_ms in (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= 10 * unit_ms or (unit == "days" and ms >= 2 * unit_ms):
            return f"{ms / unit_ms:.0f} {unit}"
    return f"{ms:.0f} ms"


@dataclass(frozen=True)
class Figures:
    """The figures of the flow. A rate is None until there are two moments to compare."""

    rows_in: int | None
    rows_in_per_s: float | None
    rows_out: int
    rows_out_per_s: float | None
    #: None if no sink had output lately, or only of rows that are far too old to tell.
    latency_ms: float | None
    last_output_s: float | None
    late: int
    buffered_buckets: int
    buffered_bytes: int
    #: Sources that may not go on until the flow has taken what they gave.
    held_back: tuple[str, ...] = ()
    #: Whether rows are counted only since the gateway was started again.
    counted_anew: bool = False
    #: For how long the gateway has not answered: the figures are that old.
    age_s: float = 0.0
    #: How safe the state is; nothing if none is saved.
    stored: str = ""

    @property
    def buffered_mb(self) -> str:
        return f"{self.buffered_bytes / 2**20:.1f} MB"

    @property
    def latency(self) -> str:
        return "-" if self.latency_ms is None else span(self.latency_ms)

    @property
    def sentence(self) -> str:
        parts = [
            f"in {_counted(self.rows_in, self.rows_in_per_s)}",
            f"out {_counted(self.rows_out, self.rows_out_per_s)}",
            "no output yet" if self.last_output_s is None else f"latency {self.latency}",
        ]
        if self.last_output_s is not None:
            parts.append(f"last output {self.last_output_s:.1f} s ago")
        if self.late:
            parts.append(f"late {self.late}")
        parts.append(f"buffered {self.buffered_mb}")
        return "; ".join([*parts, self.stored] if self.stored else parts) + self.remarks

    @property
    def remarks(self) -> str:
        """What must be said to understand the figures, to be written behind them."""
        held_back = f"; back pressure on {', '.join(self.held_back)}" if self.held_back else ""
        anew = "; counted since the gateway was started again" if self.counted_anew else ""
        old = f"; the gateway has not answered for {self.age_s:.0f} s" if self.age_s else ""
        return held_back + anew + old


def node_lines(
    status: Mapping[str, Any], running: Mapping[str, bool], were_ready: Collection[str] = ()
) -> list[NodeLine]:
    """A line for each node that has a seat, is ready, or should run. While another version of the
    flow, say version 2, runs beside this one, the place of its nodes is "v2".

    `running` maps the names that processes were started under to whether they run; `were_ready` names those
    that have been ready since.
    """
    seats = seats_in(status)
    lines, shown = (_one_piece_lines if in_one_piece(seats) else _partitioned_lines)(status, seats)
    for member in sorted(status.get("members", ())):
        if member not in shown and started_as(member) not in shown:
            lines.append(NodeLine(member, "-", _idle(member in status.get("drained", ()))))
            shown.add(started_as(member))
    for line in _lines_beside(status):
        lines.append(line)
        shown |= {line.node, started_as(line.node)}
    # Nodes that work on are not known yet to a gateway that was just started again.
    early = status.get("began_again") and not seats
    unknown = "not heard of yet" if early else "starting Spark"
    for process, runs in running.items():
        if process not in shown:
            silent = "not heard of" if process in were_ready else unknown
            lines.append(NodeLine(process, "-", silent if runs else "not running"))
    return lines


def _one_piece_lines(
    status: Mapping[str, Any], seats: Mapping[Copy, Seat]
) -> tuple[list[NodeLine], set[str]]:
    """A line for each replica of the whole flow, and the names that need no other line."""
    senders = senders_in(status)
    lines: list[NodeLine] = []
    shown: set[str] = set()
    for copy, seat in seats.items():
        facts = status.get("nodes", {}).get(seat.node, {}) if seat.alive else {}
        drained = seat.alive and seat.node in status.get("drained", ())
        sends = seat.alive and senders.get(copy.partition) == copy.replica
        state = "draining" if drained else seat.status.value
        lines.append(_line(seat.node, place_of(copy.replica), state, facts, sends=sends))
        shown |= {seat.node, started_as(seat.node)} if seat.alive else {seat.node}
    return lines, shown


def _partitioned_lines(
    status: Mapping[str, Any], seats: Mapping[Copy, Seat]
) -> tuple[list[NodeLine], set[str]]:
    """A line for each node that holds a copy or held one last, and the names that need no other line."""
    held: dict[str, list[tuple[Copy, Status]]] = {}
    for copy, seat in seats.items():
        held.setdefault(seat.node, []).append((copy, seat.status))
    lines: list[NodeLine] = []
    shown: set[str] = set()
    for node, copies in sorted(held.items()):
        there = node in status.get("members", ())
        drained = node in status.get("drained", ())
        facts = status.get("nodes", {}).get(node, {}) if there else {}
        state = _state([status for _, status in copies], there, drained)
        lines.append(_line(node, _places(copies, senders_in(status)), state, facts, holds_copies=True))
        shown |= {node, started_as(node)} if there else {node}
    return lines, shown


def _lines_beside(status: Mapping[str, Any]) -> list[NodeLine]:
    """A line for each node of a version of the flow that runs beside the one that the run goes on with."""
    candidate = status.get("candidate") or {}
    members, held = set(candidate.get("members", ())), seats_in(candidate)
    lines = []
    for node in sorted({*members, *(seat.node for seat in held.values())}):
        states = [seat.status for seat in held.values() if seat.node == node]
        facts = status.get("nodes", {}).get(node, {}) if node in members else {}
        state = _state(states, node in members, drained=False)
        lines.append(_line(node, f"v{candidate['version']}", state, facts))
    return lines


def _line(node: str, place: str, state: str, facts: Mapping[str, Any], **more: bool) -> NodeLine:
    return NodeLine(
        node,
        place,
        state,
        group_buckets=facts.get("last_group_buckets"),
        group_ms=facts.get("last_group_ms"),
        queued_buckets=facts.get("queued_buckets"),
        rows_in=facts.get("rows_in"),
        **more,
    )


def _places(copies: Sequence[tuple[Copy, Status]], senders: Mapping[Partition, int | None]) -> str:
    by_segment: dict[str, list[str]] = {}
    for copy, status in copies:
        sends = status is not Status.DEAD and senders.get(copy.partition) == copy.replica
        marks = _replica_mark(copy.replica) + _MARKS[status] + (">" if sends else "")
        by_segment.setdefault(copy.partition.name, []).append(f"{copy.partition.index}{marks}")
    return ", ".join(f"{segment} {' '.join(indices)}" for segment, indices in by_segment.items())


def _replica_mark(replica: int) -> str:
    return ("", "*")[replica] if replica < 2 else f"*{replica}"


def legend(status: Mapping[str, Any]) -> str | None:
    """What the marks behind the numbers of partitions mean; None if there are none."""
    seats = seats_in(status)
    if not seats or in_one_piece(seats):
        return None
    last = max(copy.replica for copy in seats)
    further = "".join(f", {_replica_mark(replica)} replica {replica}" for replica in range(2, last + 1))
    backups = any(seat.status is Status.BACKUP for seat in seats.values())
    held = ", = holds snapshots" if backups else ""
    return f"* secondary{further}, > sends to a sink, ~ catching up{held}, ! dead"


def _state(states: Sequence[Status], there: bool, drained: bool) -> str:
    """The worst that can be said of a node's living copies, or what it is without any."""
    living = [state for state in states if state is not Status.DEAD]
    if not living:
        return _idle(drained) if there else "DEAD"
    if drained:
        return "draining"
    waiting = living.count(Status.STDBY)
    if not waiting:
        return "ACTIVE" if Status.ACTIVE in living else "BACKUP"
    return "STDBY" if waiting == len(living) else f"{waiting} of {len(living)} STDBY"


def _idle(drained: bool) -> str:
    return "drained" if drained else "STDBY (ready)"


def figures(before: Mapping[str, Any], now: Mapping[str, Any], age_s: float = 0.0) -> Figures:
    """The figures of a status, with rates since an earlier one.

    `age_s` is for how long the gateway has been away, 0 if it is not.
    """
    passed_s = (now.get("at_us", 0) - before.get("at_us", 0)) / 1e6 if before else 0.0

    def rate(then: int | None, current: int | None) -> float | None:
        # A gateway or node that started again counts from nothing.
        if then is None or current is None or passed_s <= 0 or current < then or age_s:
            return None
        return (current - then) / passed_s

    last_s = now.get("last_output_s")
    return Figures(
        rows_in=_rows_in(now),
        rows_in_per_s=rate(_rows_in(before), _rows_in(now)),
        rows_out=now.get("rows_out") or 0,
        rows_out_per_s=rate(before.get("rows_out"), now.get("rows_out")),
        latency_ms=now.get("latency_ms") if last_s is not None else None,
        last_output_s=None if last_s is None else last_s + age_s,
        late=sum(now.get("late", {}).values()),
        buffered_buckets=now.get("buffered_buckets", 0),
        buffered_bytes=now.get("buffered_bytes", 0),
        held_back=tuple(now.get("waiting_for_room", ())),
        counted_anew=now.get("began_again", False),
        age_s=age_s,
        stored=stored(now),
    )


def _rows_in(status: Mapping[str, Any]) -> int | None:
    """Rows taken in: the gateway's count, or what the busiest replica has read."""
    if "rows_in" in status:
        return int(status["rows_in"])
    counts: Sequence[int] = [facts.get("rows_in", 0) for facts in status.get("nodes", {}).values()]
    return max(counts, default=None)


def _counted(rows: int | None, rows_per_s: float | None) -> str:
    counted = plural(rows or 0, "row")
    return counted if rows_per_s is None else f"{counted} ({rows_per_s:.0f}/s)"


def plural(count: int, what: str, several: str = "") -> str:
    return f"{count} {what}" if count == 1 else f"{count} {several or what + 's'}"
