"""The controller of a partitioned flow: who sits where, and who comes next.

Every partition has a view of its own, with two seats, as a pair has. A `FluxView` is all of them with one
epoch.

    a node is lost      all its seats are DEAD, in one view
    a seat is DEAD      a standby is seated, if a node is there that does not hold the other copy
    a standby           becomes ACTIVE when it has caught up, DEAD when its state cannot come
    all seats DEAD      of one partition: lost, for good

*Bottom-up.* While a standby of some level is catching up, none of another level is seated; of several
levels with DEAD seats that can be filled the lowest comes first. Partitions of one level recover side by
side.

*Who is chosen.* The node that an operator wants there; else the one with the fewest copies, and the one that
held the seat last only if there is no other: it was suspected there, or could not catch up.

*Wishes* of an operator are stored in the view. A wish costs no seat until its turn has come: a copy that is
to leave is declared dead, for its seat alone, only when no level is catching up and its pair is whole. Then
it takes the same path as after a failure. Wishes end when they are fulfilled, or when they have become
impossible: the node left, is drained, holds the other copy, or could not catch up.

*Cluster pairs* (`whole`, section 4.2) are the baseline: one dead copy makes all copies in its slot useless,
since nothing coordinates what they say to each other. They die in one view, and nobody is seated again.

What the machine does next depends only on the stored view and on who is there, so a new leader goes on from
the last published view. It seats nobody until it has heard of every node that this view names, that it is
there or that it left; until then it cannot tell who is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from understudy.core.controller import MemberJoined, MemberLeft
from understudy.core.errors import require
from understudy.core.flux_events import (
    CopyCaughtUp,
    CopyMoveFailed,
    CopySuspected,
    Declined,
    Done,
    Drain,
    FluxEvent,
    MoveCopy,
    PublishFlux,
    Undrain,
)
from understudy.core.flux_view import FluxView
from understudy.core.layout import chained, check_layout, copies_of, mirrored
from understudy.core.partition import Copy, Partition
from understudy.core.topology import Topology
from understudy.core.view import Seat, Slot, Status, View

__all__ = [
    "CopyCaughtUp",
    "CopyMoveFailed",
    "CopySuspected",
    "Declined",
    "Drain",
    "FluxController",
    "FluxEvent",
    "FluxView",
    "MoveCopy",
    "PublishFlux",
    "Undrain",
]


@dataclass(slots=True)
class FluxController:
    """`handle(event)` returns what to publish, in order. `view` is the newest.

    The first view waits for `nodes_wanted` nodes and seats those; whoever comes later is a standby. Without a
    `layout` it is chained, or mirrored if `whole`.
    """

    topology: Topology
    nodes_wanted: int
    view: FluxView | None = None
    layout: Mapping[Copy, str] | None = None
    whole: bool = False
    members: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.view is not None:
            known = {copy.partition for copy in copies_of(self.topology)}
            require(self.view.partitions.keys() == known, "the stored view has other partitions")

    def handle(self, event: FluxEvent) -> list[Done]:
        done: list[Done] = list(self._decide(event))
        while (standbys := self._standbys()) is not None:
            done.append(self._publish(standbys))
        return done

    @property
    def members_in_order(self) -> list[str]:
        """Who is there, in joining order."""
        return sorted(self.members, key=lambda node: (self.members[node], node))

    # --- what an event leads to --------------------------------------------------------------------------

    def _decide(self, event: FluxEvent) -> Iterable[Done]:
        match event:
            case MemberJoined(node, order):
                self.members.setdefault(node, order)
                return self._first_view()
            case MemberLeft(node):
                self.members.pop(node, None)
                return self._left(node)
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
            case Undrain(node):
                return self._undrain(node)

    def _first_view(self) -> list[Done]:
        if self.view is not None or len(self.members) < self.nodes_wanted:
            return []
        nodes = self.members_in_order[: self.nodes_wanted]
        arrange = mirrored if self.whole else chained
        layout = arrange(self.topology, nodes) if self.layout is None else self.layout
        check_layout(layout, self.topology, nodes)
        views = {
            copy.partition: View(
                1, {slot: Seat(layout[Copy(copy.partition, slot)], 1, Status.ACTIVE) for slot in Slot}
            )
            for copy in copies_of(self.topology)
        }
        return [self._publish(views)]

    def _left(self, node: str) -> list[Done]:
        if self.view is None:
            return []
        drained = self.view.drained - {node}
        wanted = {copy: to for copy, to in self.view.wanted.items() if to != node}
        if copies := self.view.copies_on(node):
            return self._bury(copies, "left the cluster", drained, wanted)
        forgotten = drained != self.view.drained or wanted != self.view.wanted
        return [self._publish({}, drained, wanted)] if forgotten else []

    def _caught_up(self, copy: Copy, epoch: int) -> list[Done]:
        seat = self._seat_of(copy, epoch)
        if seat is None or seat.status is not Status.STDBY:
            return []
        active = self._with(copy, replace(seat, status=Status.ACTIVE))
        return [self._publish({copy.partition: active})]

    def _bury(
        self,
        copies: Sequence[Copy],
        why: str,
        drained: frozenset[str] | None = None,
        wanted: Mapping[Copy, str] | None = None,
    ) -> list[Done]:
        """These seats are dead, in one view."""
        view = self._current
        wanted = dict(view.wanted if wanted is None else wanted)
        reasons = dict.fromkeys(copies, why)
        if self.whole:
            first = copies[0]
            for copy in copies_of(self.topology):
                if copy.slot is first.slot and view.seat(copy).alive:
                    reasons.setdefault(copy, f"is of no use without {first}, which {why}")
        changed: dict[Partition, View] = {}
        for copy, reason in reasons.items():
            before = changed.get(copy.partition, view.partitions[copy.partition])
            seat = before.seats[copy.slot]
            if seat.status is Status.STDBY and wanted.get(copy) == seat.node:
                # It was tried there, and trying for ever would keep the pair from being whole.
                del wanted[copy]
            seats = {**before.seats, copy.slot: replace(seat, status=Status.DEAD)}
            lost = None
            if not any(each.alive for each in seats.values()):
                lost = f"No copy holds the state any more: {copy} on {seat.node} {reason}."
            changed[copy.partition] = View(self._next_epoch, seats, lost)
        return [self._publish(changed, drained, wanted)]

    # --- what an operator asks for -----------------------------------------------------------------------

    def _move(self, copy: Copy, node: str) -> list[Done]:
        if self.view is not None and self.view.wanted.get(copy) == node:
            # Said twice.
            return []
        why = self._why_not(copy, node)
        if why is not None:
            return [Declined(why)]
        return [self._publish({}, wanted={**self._current.wanted, copy: node})]

    def _why_not(self, copy: Copy, node: str) -> str | None:
        if self.view is None or copy.partition not in self.view.partitions:
            return f"there is no partition {copy.partition}"
        if self.whole:
            return "with cluster pairs no copy can be moved"
        if self.view.lost is not None:
            return f"the flow is lost: {self.view.lost}"
        seat, other = self.view.seat(copy), self.view.seat(copy.other)
        if node not in self.members:
            return f"{node} is not there; there are {', '.join(sorted(self.members)) or 'none'}"
        if node in self.view.drained:
            return f"{node} is being drained"
        if seat.alive and seat.node == node:
            return f"{copy} sits on {node} already"
        if other.alive and other.node == node:
            return f"{node} holds the other copy of {copy.partition}; losing it would lose them both"
        if self.view.wanted.get(copy.other) == node:
            return f"{node} is to get the other copy of {copy.partition}"
        if other.status is not Status.ACTIVE:
            return f"the other copy of {copy.partition} is {other.status.value}: it must be active first"
        return None

    def _drain(self, node: str) -> list[Done]:
        if self.view is not None and node in self.view.drained:
            # Said twice.
            return []
        if self.view is None:
            return [Declined("the flow has not begun yet")]
        if self.whole:
            return [Declined("with cluster pairs no node can be drained")]
        if self.view.lost is not None:
            return [Declined(f"the flow is lost: {self.view.lost}")]
        if node not in self.members:
            return [Declined(f"{node} is not there; there are {', '.join(sorted(self.members)) or 'none'}")]
        for copy in self.view.copies_on(node):
            if not self.eligible(copy):
                return [Declined(f"no other node can take {copy}; add one first")]
        return [self._publish({}, drained=self.view.drained | {node})]

    def _undrain(self, node: str) -> list[Done]:
        if self.view is None or node not in self.view.drained:
            return [Declined(f"{node} is not being drained")]
        return [self._publish({}, drained=self.view.drained - {node})]

    # --- views -------------------------------------------------------------------------------------------

    @property
    def _current(self) -> FluxView:
        require(self.view is not None, "there is no view yet")
        assert self.view is not None
        return self.view

    @property
    def _next_epoch(self) -> int:
        return self.view.epoch + 1 if self.view is not None else 1

    def _publish(
        self,
        changed: Mapping[Partition, View],
        drained: frozenset[str] | None = None,
        wanted: Mapping[Copy, str] | None = None,
    ) -> PublishFlux:
        """The next view: these partitions as they are now, and of the wishes those that still make sense."""
        before = self.view or FluxView(1, {})
        partitions = {**before.partitions, **changed}
        drained = before.drained if drained is None else drained
        wanted = before.wanted if wanted is None else wanted
        possible = {
            copy: node
            for copy, node in wanted.items()
            if node not in drained and _is_open(partitions[copy.partition], copy.slot, node)
        }
        self.view = FluxView(self._next_epoch, partitions, drained, possible)
        return PublishFlux(self.view)

    def _seat_of(self, copy: Copy, epoch: int) -> Seat | None:
        """The living seat that a report is about; None if it is old news."""
        if self.view is None or copy.partition not in self.view.partitions:
            return None
        seat = self.view.seat(copy)
        return seat if seat.alive and seat.epoch == epoch else None

    def _with(self, copy: Copy, seat: Seat) -> View:
        view = self._current.partitions[copy.partition]
        return View(self._next_epoch, {**view.seats, copy.slot: seat})

    # --- standbys ----------------------------------------------------------------------------------------

    def _standbys(self) -> dict[Partition, View] | None:
        """The next seats to fill or to empty, all of one level; None if there are none now."""
        if self.view is None or self.view.lost or self.whole:
            return None
        if not self.members.keys() >= set(self.view.nodes_named):
            return None
        levels = self.topology.levels
        for level in levels:
            if any(self._status(p, slot) is Status.STDBY for p in level for slot in Slot):
                return self._fill(level) or None
        for level in levels:
            if changed := self._fill(level) or self._empty(level):
                return changed
        return None

    def _status(self, partition: Partition, slot: Slot) -> Status:
        return self._current.seat(Copy(partition, slot)).status

    def _fill(self, level: Sequence[Partition]) -> dict[Partition, View]:
        """A standby for every dead seat of the level that a node can take."""
        view = self._current
        filled: dict[Partition, View] = {}
        load = {node: view.load.get(node, 0) for node in self.members}
        for copy in (Copy(partition, slot) for partition in level for slot in Slot):
            if view.seat(copy).alive or view.seat(copy.other).status is not Status.ACTIVE:
                continue
            node = self._choice(copy, load)
            if node is None:
                continue
            load[node] += 1
            filled[copy.partition] = self._with(copy, Seat(node, self._next_epoch, Status.STDBY))
        return filled

    def _choice(self, copy: Copy, load: Mapping[str, int]) -> str | None:
        """Who takes a dead seat."""
        wanted, last = self._current.wanted.get(copy), self._current.seat(copy).node

        def rank(node: str) -> tuple[bool, bool, int, int]:
            return node != wanted, node == last, load[node], self.members[node]

        return min(self.eligible(copy), key=rank, default=None)

    def _empty(self, level: Sequence[Partition]) -> dict[Partition, View]:
        """Take one seat of each whole pair that is to move, and can."""
        view = self._current
        emptied: dict[Partition, View] = {}
        for copy in (Copy(partition, slot) for partition in level for slot in Slot):
            seat = view.seat(copy)
            pair = view.partitions[copy.partition].seats.values()
            if copy.partition in emptied or any(each.status is not Status.ACTIVE for each in pair):
                continue
            to = view.wanted.get(copy)
            if seat.node not in view.drained and to is None:
                continue
            eligible = self.eligible(copy)
            if (seat.node in view.drained and eligible) or to in eligible:
                emptied[copy.partition] = self._with(copy, replace(seat, status=Status.DEAD))
        return emptied

    def eligible(self, copy: Copy) -> list[str]:
        """Who could take the seat from whoever has it, in joining order."""
        view = self._current
        holder, other = view.seat(copy), view.seat(copy.other)
        return [
            node
            for node in self.members_in_order
            if node not in view.drained and node != other.node and not (holder.alive and holder.node == node)
        ]


def _is_open(view: View, slot: Slot, node: str) -> bool:
    """Whether a copy can still be wished onto that node: it is not active there, nor is the other one."""
    seat, other = view.seats[slot], view.seats[slot.other]
    there = seat.node == node and seat.status is Status.ACTIVE
    return view.lost is None and not there and not (other.alive and other.node == node)
