"""The controller of a partitioned flow: who sits where, and who comes next.

Every partition has a view of its own, with two seats, as a pair has. A `FluxView` is all of them with one
epoch: every decision makes one of them, one higher than the last, and a seat's epoch is that of the view
which gave it.

    a node is lost      all its seats are DEAD, in one view
    a seat is DEAD      a standby is seated, if a node is there that does not hold the other copy
    a standby           becomes ACTIVE when it has caught up, DEAD when its state cannot come
    all seats DEAD      of one partition: lost, for good

*Bottom-up.* While a standby of some level is catching up, none of another level is seated; of several
levels with DEAD seats that can be filled the lowest comes first. Partitions of one level recover side by
side.

*Planned moves* use the same path: the copy that is to leave is declared dead for its seat alone, and the
seat is offered to the chosen node. A node that is being drained is offered nothing.

What the machine does next depends only on the stored view, on who is there and on who is drained, so a new
leader goes on from the last published view.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from understudy.core.controller import MemberJoined, MemberLeft
from understudy.core.errors import PeerError, require
from understudy.core.layout import chained, check_layout
from understudy.core.partition import Copy, Partition
from understudy.core.view import BURIED_MAX, Seat, Slot, Status, View


@dataclass(frozen=True)
class FluxView:
    """One decision: the view of every partition."""

    epoch: int
    partitions: Mapping[Partition, View]

    def __post_init__(self) -> None:
        object.__setattr__(self, "partitions", MappingProxyType(dict(sorted(self.partitions.items()))))
        newest = max((view.epoch for view in self.partitions.values()), default=0)
        require(newest <= self.epoch, f"a partition's view {newest} is newer than the whole, {self.epoch}")

    def __hash__(self) -> int:
        return hash((self.epoch, tuple(self.partitions.items())))

    @property
    def lost(self) -> str | None:
        return next((f"{p}: {view.lost}" for p, view in self.partitions.items() if view.lost), None)

    def seat(self, copy: Copy) -> Seat:
        return self.partitions[copy.partition].seats[copy.slot]

    def holds(self, copy: Copy, node: str, epoch: int) -> bool:
        """Whether `node` sits, alive, in this copy's seat since `epoch`: the fencing check."""
        view = self.partitions.get(copy.partition)
        return view is not None and view.holds(copy.slot, node, epoch)

    def copies_on(self, node: str) -> list[Copy]:
        """The copies that live on a node, lowest partition first."""
        return [
            Copy(partition, slot)
            for partition, view in self.partitions.items()
            for slot, seat in view.seats.items()
            if seat.alive and seat.node == node
        ]

    def to_json(self) -> str:
        views = [[p.fragment, p.index, json.loads(view.to_json())] for p, view in self.partitions.items()]
        return json.dumps({"epoch": self.epoch, "partitions": views}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> FluxView:
        """The view that `to_json` wrote. Anything else raises `PeerError`."""
        try:
            whole: Any = json.loads(text)
            views = {
                Partition(fragment, index): View.from_json(json.dumps(view))
                for fragment, index, view in whole["partitions"]
            }
            return cls(whole["epoch"], views)
        except Exception as error:
            raise PeerError(f"this is not a view: {text[:200]!r} ({error})") from error


@dataclass(frozen=True, slots=True)
class CopyCaughtUp:
    """The standby in this seat, of this epoch, was folded in by all its neighbours."""

    copy: Copy
    epoch: int


@dataclass(frozen=True, slots=True)
class CopyMoveFailed:
    """The standby in this seat, of this epoch, will not get the state it needs."""

    copy: Copy
    epoch: int


@dataclass(frozen=True, slots=True)
class CopySuspected:
    """`by` found the node in this seat, of this epoch, broken or silent."""

    copy: Copy
    epoch: int
    by: str


@dataclass(frozen=True, slots=True)
class MoveCopy:
    """An operator wants this copy to sit on that node."""

    copy: Copy
    node: str


@dataclass(frozen=True, slots=True)
class Drain:
    """An operator wants nothing to sit on this node any more."""

    node: str


FluxEvent = MemberJoined | MemberLeft | CopyCaughtUp | CopyMoveFailed | CopySuspected | MoveCopy | Drain


@dataclass(frozen=True, slots=True)
class PublishFlux:
    view: FluxView


@dataclass(frozen=True, slots=True)
class Declined:
    """What an operator asked for cannot be done, and why."""

    why: str


@dataclass(slots=True)
class FluxController:
    """`handle(event)` returns what to publish, in order. `view` is the newest."""

    levels: Sequence[Sequence[Partition]]
    nodes_wanted: int
    view: FluxView | None = None
    layout: Mapping[Copy, str] | None = None
    members: dict[str, int] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)
    _wanted: dict[Copy, str] = field(default_factory=dict)

    def handle(self, event: FluxEvent) -> list[PublishFlux | Declined]:
        done: list[PublishFlux | Declined] = list(self._decide(event))
        while (standbys := self._standbys()) is not None:
            done.append(self._publish(standbys))
        return done

    # --- what an event leads to --------------------------------------------------------------------------

    def _decide(self, event: FluxEvent) -> Iterable[PublishFlux | Declined]:
        match event:
            case MemberJoined(node, order):
                self.members.setdefault(node, order)
                return self._first_view()
            case MemberLeft(node):
                self.members.pop(node, None)
                self.drained.discard(node)
                self._wanted = {copy: to for copy, to in self._wanted.items() if to != node}
                return self._bury(self._copies_on(node), "left the cluster")
            case CopyCaughtUp(copy, epoch):
                return self._caught_up(copy, epoch)
            case CopyMoveFailed(copy, epoch):
                standby = self._seat_of(copy, epoch)
                waits = standby is not None and standby.status is Status.STDBY
                return self._bury([copy], "could not catch up") if waits else []
            case CopySuspected(copy, epoch, by):
                suspect = self._seat_of(copy, epoch)
                if suspect is None or self.view is None:
                    return []
                spared = self.view.seat(copy.other).status is not Status.ACTIVE
                return [] if spared else self._bury([copy], f"was suspected by {by}")
            case MoveCopy(copy, node):
                return self._move(copy, node)
            case Drain(node):
                return self._drain(node)

    def _first_view(self) -> list[PublishFlux | Declined]:
        ordered = sorted(self.members, key=lambda node: (self.members[node], node))
        if self.view is not None or len(ordered) < self.nodes_wanted:
            return []
        nodes = ordered[: self.nodes_wanted]
        layout = chained(self.levels, nodes) if self.layout is None else self.layout
        check_layout(layout, self.levels, nodes)
        views = {
            partition: View(1, {slot: Seat(layout[Copy(partition, slot)], 1, Status.ACTIVE) for slot in Slot})
            for level in self.levels
            for partition in level
        }
        return [self._publish(views)]

    def _caught_up(self, copy: Copy, epoch: int) -> list[PublishFlux | Declined]:
        seat = self._seat_of(copy, epoch)
        if seat is None or seat.status is not Status.STDBY:
            return []
        return [self._publish({copy.partition: self._with(copy, replace(seat, status=Status.ACTIVE))})]

    def _bury(self, copies: Sequence[Copy], why: str) -> list[PublishFlux | Declined]:
        changed: dict[Partition, View] = {}
        for copy in copies:
            require(self.view is not None, "there is nobody to bury before the first view")
            assert self.view is not None
            view = changed.get(copy.partition, self.view.partitions[copy.partition])
            seats = {**view.seats, copy.slot: replace(view.seats[copy.slot], status=Status.DEAD)}
            lost = None
            if not any(seat.alive for seat in seats.values()):
                lost = f"No copy holds the state any more: {copy} on {seats[copy.slot].node} {why}."
            changed[copy.partition] = View(self._next_epoch, seats, lost, view.buried)
        return [self._publish(changed)] if changed else []

    # --- what an operator asks for -----------------------------------------------------------------------

    def _move(self, copy: Copy, node: str) -> list[PublishFlux | Declined]:
        why = self._why_not(copy, node)
        if why is not None:
            return [Declined(why)]
        self._wanted[copy] = node
        return self._bury([copy], f"is moved to {node}")

    def _why_not(self, copy: Copy, node: str) -> str | None:
        if self.view is None or copy.partition not in self.view.partitions:
            return f"there is no partition {copy.partition}"
        seat, other = self.view.seat(copy), self.view.seat(copy.other)
        if node not in self.members:
            return f"{node} is not there; there are {', '.join(sorted(self.members)) or 'none'}"
        if node in self.drained:
            return f"{node} is being drained"
        if seat.alive and seat.node == node:
            return f"{copy} sits on {node} already"
        if other.alive and other.node == node:
            return f"{node} holds the other copy of {copy.partition}; losing it would lose them both"
        if other.status is not Status.ACTIVE:
            return f"the other copy of {copy.partition} is {other.status.value}: it must be active first"
        if self.view.partitions[copy.partition].declared_dead(node):
            return f"{node} lost its seat in {copy.partition} before and cannot return under that name"
        return None

    def _drain(self, node: str) -> list[PublishFlux | Declined]:
        if node not in self.members:
            return [Declined(f"{node} is not there")]
        for copy in self._copies_on(node):
            if not [each for each in self.eligible(copy) if each != node]:
                return [Declined(f"no other node can take {copy}; add one first")]
        self.drained.add(node)
        return []

    # --- standbys ----------------------------------------------------------------------------------------

    @property
    def _next_epoch(self) -> int:
        return self.view.epoch + 1 if self.view is not None else 1

    def _publish(self, changed: Mapping[Partition, View]) -> PublishFlux:
        before = self.view.partitions if self.view is not None else {}
        self.view = FluxView(self._next_epoch, {**before, **changed})
        return PublishFlux(self.view)

    def _seat_of(self, copy: Copy, epoch: int) -> Seat | None:
        """The living seat that a report is about; None if it is old news."""
        if self.view is None or copy.partition not in self.view.partitions:
            return None
        seat = self.view.seat(copy)
        return seat if seat.alive and seat.epoch == epoch else None

    def _copies_on(self, node: str) -> list[Copy]:
        return self.view.copies_on(node) if self.view is not None else []

    def _with(self, copy: Copy, seat: Seat) -> View:
        assert self.view is not None
        view = self.view.partitions[copy.partition]
        return View(self._next_epoch, {**view.seats, copy.slot: seat}, None, view.buried)

    def _standbys(self) -> dict[Partition, View] | None:
        """The next seats to fill, all of one level; None if there are none now."""
        if self.view is None or self.view.lost:
            return None
        for level in self.levels:
            if any(seat.status is Status.STDBY for p in level for seat in self._seats(p)):
                return self._fill(level) or None
        for level in self.levels:
            if changed := self._fill(level) or self._empty_one(level):
                return changed
        return None

    def _seats(self, partition: Partition) -> Iterable[Seat]:
        assert self.view is not None
        return self.view.partitions[partition].seats.values()

    def _fill(self, level: Sequence[Partition]) -> dict[Partition, View]:
        """A standby for every dead seat of the level that a node can take."""
        assert self.view is not None
        filled: dict[Partition, View] = {}
        load = {node: len(self.view.copies_on(node)) for node in self.members}
        for partition in level:
            for slot in Slot:
                copy = Copy(partition, slot)
                seat, other = self.view.seat(copy), self.view.seat(copy.other)
                if seat.status is not Status.DEAD or other.status is not Status.ACTIVE:
                    continue
                eligible = self.eligible(copy)
                if not eligible:
                    continue
                wanted = self._wanted.pop(copy, None)
                node = (
                    wanted
                    if wanted in eligible
                    else min(eligible, key=lambda each: (load[each], self.members[each]))
                )
                load[node] += 1
                view = self.view.partitions[partition]
                buried = (*view.buried, seat.node)[-BURIED_MAX:]
                standby = Seat(node, self._next_epoch, Status.STDBY)
                filled[partition] = View(self._next_epoch, {**view.seats, slot: standby}, None, buried)
        return filled

    def _empty_one(self, level: Sequence[Partition]) -> dict[Partition, View]:
        """Take one seat of each partition from nodes that are being drained, where another can have it."""
        assert self.view is not None
        emptied: dict[Partition, View] = {}
        for partition in level:
            view = self.view.partitions[partition]
            if any(seat.status is not Status.ACTIVE for seat in view.seats.values()):
                continue
            for slot, seat in view.seats.items():
                if seat.node in self.drained and self.eligible(Copy(partition, slot)):
                    dead = replace(seat, status=Status.DEAD)
                    seats = {**view.seats, slot: dead}
                    emptied[partition] = View(self._next_epoch, seats, None, view.buried)
                    break
        return emptied

    def eligible(self, copy: Copy) -> list[str]:
        """Who could take the seat, in joining order."""
        assert self.view is not None
        view, other = self.view.partitions[copy.partition], self.view.seat(copy.other)
        holder = self.view.seat(copy)
        return [
            node
            for node in sorted(self.members, key=lambda each: (self.members[each], each))
            if node not in self.drained
            and node != other.node
            and not (holder.alive and holder.node == node)
            and not view.declared_dead(node)
        ]
