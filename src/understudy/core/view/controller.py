"""The controller decides which node sits in which seat (Flux 2.2 and 3.2.1). A `View` holds its decision.

    first view          enough nodes are members: every seat is filled, with nothing to catch up
    a node is lost      its seats are DEAD, in one view
    a seat is DEAD      a standby is seated, if some seat is ACTIVE and a node is free of that partition
    a standby           becomes ACTIVE when it has caught up, DEAD when its state cannot come
    all seats DEAD      of one partition: lost, for good; with `saved`, a node is seated that goes on from the
                        partition's saved state, and counts as ACTIVE at once

*Which node may be buried.* A node's seats are DEAD when it leaves the membership, or when it is suspected in
any of them, as long as another seat of the partition is ACTIVE, on a node that this leader knows as a member:
what a new leader has only read in the stored view may be of a node that died since. They die in one view:
seats that died together recover bottom-up. The last holder of a partition's state, which may be a
standby whose lender is gone, is not buried on suspicion: a broken connection is mended, a declared death is
not. Nor is it buried at once when its session ends, because a process that only slept comes back under its
name: it is given `grace_ms`. Of several nodes that are missed at one look, none counts as holding the state
of another.

When the last ACTIVE copy dies while another seat is STDBY, the standby stays: it may already have all that it
needs. Then it catches up, or reports that its state cannot come. One that holds the state and is only slow is
spared: it is the last holder.

*Saved state.* With `saved` the store holds the state of every partition, so none is ever lost: a copy that
begins again from there has, or will compute, all that it needs (docs/durability.md). Then a copy whose
process is gone need not be waited for, and `grace_ms` is 0. If such a copy finds that its producers do not
keep what it lacks (`CopyLacks`), they go back to their saved states together: any two saved states fit.

*Backups.* With `passive` one copy of each partition works, and the others hold its snapshots: they are
BACKUP. A standby becomes a BACKUP when it holds one. When the ACTIVE copy dies, the first BACKUP becomes
ACTIVE in the seat that it has. A BACKUP that gets no snapshots any more is DEAD, as long as another copy has
the state. The first view seats one copy of each partition.

*An early first view.* Rows wait for a run that goes on. Where every node holds a copy of everything, one node
is enough to begin with (`early`): it goes on from the saved state, and the others come as standbys. Where a
node holds only some partitions, the first view waits for all nodes, so that none of them gets too many.

*Filling seats* goes bottom-up, one level at a time. `core.view.seating` says which seats are next, with which
nodes, and when the *wishes* of an operator (`core.view.wishes`) have their turn: they cost no seat before.

*Isolated replicas* (the paper's cluster pairs, section 4.2) are the baseline: one dead copy makes all
copies of its replica useless, since nothing coordinates what they say to each other. They die in one view,
and no standby takes their seats.

Every decision is one view with an epoch one higher. What the machine does next depends only on the stored
view and on the members, so a new leader goes on from the last published view. It fills no seat until it knows
of every node that this view names whether it is a member or has left; until then it cannot tell which nodes
are free. An event that does not fit the current view is old news and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from understudy.core.errors import require
from understudy.core.machine import Machine
from understudy.core.shape.layout import chained, check_layout, mirrored
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import Topology
from understudy.core.timers import SetTimer, TimerFired
from understudy.core.view.events import (
    ControllerEvent,
    CopyCaughtUp,
    CopyLacks,
    CopyMoveFailed,
    CopySuspected,
    Decision,
    Declined,
    Drain,
    MemberJoined,
    MembersLeft,
    MoveCopy,
    Publish,
    Undrain,
)
from understudy.core.view.seating import Seating, in_order
from understudy.core.view.view import Seat, Seats, Status, View
from understudy.core.view.wishes import possible, why_not_drain, why_not_move, why_not_undrain

GRACE_MS = 10_000


class Controller(Machine[ControllerEvent, Decision]):
    """`view` is the newest. The first view waits for `nodes_wanted` nodes and seats those; nodes that come
    later are standbys. Without a `layout` it is chained, or mirrored if `isolated`. The first view has
    `first_epoch`. With `early` it waits for one node only, if that one can hold a copy of everything.
    """

    def __init__(
        self,
        topology: Topology,
        replicas: int,
        nodes_wanted: int,
        view: View | None = None,
        *,
        layout: Mapping[Copy, str] | None = None,
        isolated: bool = False,
        saved: bool = False,
        passive: bool = False,
        grace_ms: int | None = None,
        first_epoch: int = 1,
        early: bool = False,
    ) -> None:
        super().__init__("controller")
        require(replicas >= 1, f"a partition needs at least one replica, not {replicas}")
        self.topology = topology
        self.replicas = replicas
        self.nodes_wanted = nodes_wanted
        self.view = view
        self.layout = layout
        self.isolated = isolated
        require(not (isolated and saved), "isolated replicas are a baseline, and save nothing")
        self.saved = saved
        self.grace_ms = grace_ms if grace_ms is not None else 0 if self.saved else GRACE_MS
        self.passive = passive
        self.first_epoch = first_epoch
        require(saved or not early, "one copy can only begin alone with a saved state")
        self.early = early
        self.members: dict[str, int] = {}
        #: Nodes that left and whose seats are kept for a while, since no other copy has the state.
        self._missed: set[str] = set()
        #: Nodes that were suspected and have not left the membership: most of them are about to.
        self._suspected: set[str] = set()
        if view is not None:
            known = set(topology.partitions)
            require(view.partitions.keys() == known, "the stored view has other partitions")
            seats = {len(each.seats) for each in view.partitions.values()}
            require(seats == {replicas}, f"the stored view has {seats} replicas, not {replicas}")

    @property
    def members_in_order(self) -> list[str]:
        """The members in joining order."""
        return in_order(self.members)

    def _handle(self, event: ControllerEvent) -> list[Decision]:
        done = list(self._decide(event))
        while (standbys := self._standbys()) is not None:
            done.append(self._publish(standbys))
        return done

    # --- what an event leads to --------------------------------------------------------------------------

    def _decide(self, event: ControllerEvent) -> list[Decision]:
        match event:
            case MemberJoined(node, order):
                # A session that was lost and made anew is no reason to queue up again.
                members = {node: order, **self.members}
                first = self._first_seats(in_order(members))
                self.members = members
                if first is not None:
                    return [self._publish(first)]
                return self._seen_alive(node)
            case MembersLeft(nodes):
                self.members = {node: order for node, order in self.members.items() if node not in nodes}
                self._suspected -= set(nodes)
                return self._left(nodes)
            case CopyCaughtUp(copy, epoch):
                return self._caught_up(copy, epoch)
            case CopyMoveFailed(copy, epoch, why, holds_state):
                seat = self._seat_of(copy, epoch)
                waits = seat is not None and seat.status is Status.STDBY
                backs_up = seat is not None and seat.status is Status.BACKUP
                given_up = (waits and not holds_state) or ((waits or backs_up) and self._replaceable(copy))
                return self._bury([copy], f"could not catch up: {why}") if given_up else []
            case CopySuspected(copy, epoch, by):
                suspect = self._seat_of(copy, epoch)
                copies = [] if suspect is None else self._current.copies_on(suspect.node)
                buried = [each for each in copies if self._replaceable(each)]
                self._suspected.update(
                    {suspect.node} & self.members.keys() if suspect is not None and buried else ()
                )
                return self._bury(buried, f"was suspected by {by}") if buried else []
            case CopyLacks(copy, epoch, producer):
                return self._go_back(copy, epoch, producer)
            case TimerFired(("missed", str(node))):
                return self._given_up(node)
            case MoveCopy(copy, node):
                return self._move(copy, node)
            case Drain(node):
                return self._drain(node)
            case Undrain(node):
                return self._undrain(node)
        require(False, f"the controller set no timer for {event}")
        return []

    def _first_seats(self, members: Sequence[str]) -> dict[Partition, Seats] | None:
        """The first seats, once enough nodes are members. Raises `LayoutError` if the layout does not fit."""
        if self.view is not None:
            return None
        nodes = members[: self.nodes_wanted]
        if len(nodes) == self.nodes_wanted:
            arrange = mirrored if self.isolated else chained
            layout = arrange(self.topology, nodes, self.replicas) if self.layout is None else self.layout
            check_layout(layout, self.topology, nodes, self.replicas)
        elif self.early and nodes and self.nodes_wanted == self.replicas:
            layout = dict.fromkeys(self.topology.copies(self.replicas), nodes[0])
        else:
            return None
        return {
            partition: Seats(
                self.first_epoch,
                tuple(
                    Seat(layout[Copy(partition, r)], self.first_epoch, self._first_status(r, len(nodes)))
                    for r in range(self.replicas)
                ),
            )
            for partition in self.topology.partitions
        }

    def _first_status(self, replica: int, nodes: int) -> Status:
        # Backups come as standbys: they have nothing until they hold a snapshot.
        alone = self.passive or nodes < self.nodes_wanted
        return Status.DEAD if alone and replica else Status.ACTIVE

    def _left(self, nodes: Sequence[str]) -> list[Decision]:
        if self.view is None:
            return []
        drained = self.view.drained - set(nodes)
        wanted = {copy: to for copy, to in self.view.wanted.items() if to not in nodes}
        seated = {node: self.view.copies_on(node) for node in nodes}
        buried = [copy for copies in seated.values() for copy in copies if self._replaceable(copy)]
        kept = [node for node in nodes if not set(seated[node]) <= set(buried)]
        self._missed.update(kept)
        done: list[Decision] = [SetTimer(("missed", node), self.grace_ms) for node in kept]
        if buried:
            done += self._bury(buried, "left the cluster", drained, wanted)
        elif drained != self.view.drained or wanted != self.view.wanted:
            done.append(self._publish({}, drained, wanted))
        return done

    def _seen_alive(self, node: str) -> list[Decision]:
        """A node is a member: seats of missed ones that were kept only because it was not can go."""
        self._missed.discard(node)
        if self.view is None or not self.view.copies_on(node):
            return []
        missed = [copy for each in sorted(self._missed) for copy in self._current.copies_on(each)]
        buried = [copy for copy in missed if self._replaceable(copy)]
        return self._bury(buried, "left the cluster") if buried else []

    def _given_up(self, node: str) -> list[Decision]:
        """A node whose seats were kept has not come back."""
        if node not in self._missed:
            return []
        self._missed.discard(node)
        copies = self._current.copies_on(node)
        return self._bury(copies, "left the cluster and did not come back") if copies else []

    def _caught_up(self, copy: Copy, epoch: int) -> list[Decision]:
        seat = self._seat_of(copy, epoch)
        if seat is None or seat.status is not Status.STDBY:
            return []
        self._suspected.discard(seat.node)
        others = [each.status for each in self._current.partitions[copy.partition].seats]
        status = Status.BACKUP if self.passive and Status.ACTIVE in others else Status.ACTIVE
        return [self._publish({copy.partition: self._seating.with_seat(copy, replace(seat, status=status))})]

    def _go_back(self, copy: Copy, epoch: int, producer: Partition) -> list[Decision]:
        """A copy lacks what no copy of its producer keeps: both go back to their saved states. A source's log
        has what every snapshot in the store lacks, so there the copy goes back alone.
        """
        seat = self._seat_of(copy, epoch)
        if seat is None or not self.saved or copy.partition == producer:
            return []
        seats = self._current.partitions[producer].seats if producer in self._current.partitions else ()
        alive = [Copy(producer, replica) for replica, each in enumerate(seats) if each.alive]
        return self._bury([copy, *alive], f"was given up, since {copy} lacks output of {producer}")

    def _bury(
        self,
        copies: Sequence[Copy],
        why: str,
        drained: frozenset[str] | None = None,
        wanted: Mapping[Copy, str] | None = None,
    ) -> list[Decision]:
        """These seats are dead, in one view."""
        view = self._current
        wanted = dict(view.wanted if wanted is None else wanted)
        reasons = dict.fromkeys(copies, why)
        if self.isolated:
            first = {copy.replica: copy for copy in reversed(copies)}
            for copy in self.topology.copies(self.replicas):
                if copy.replica in first and view.seat(copy).alive:
                    reasons.setdefault(copy, f"is of no use without {first[copy.replica]}, which {why}")
        changed: dict[Partition, Seats] = {}
        for copy, reason in reasons.items():
            before = changed.get(copy.partition, view.partitions[copy.partition])
            seat = before.seats[copy.replica]
            if seat.status is Status.STDBY and wanted.get(copy) == seat.node:
                # It failed there once; retrying for ever would leave the partition a copy short.
                del wanted[copy]
            alive = any(each.alive for r, each in enumerate(before.seats) if r != copy.replica)
            lost = None if alive else f"No copy holds the state any more: {copy} on {seat.node} {reason}."
            dead = replace(seat, status=Status.DEAD)
            changed[copy.partition] = before.with_seat(copy.replica, dead, self._next_epoch, lost)
        return [self._publish(changed, drained, wanted)]

    # --- what an operator asks for -----------------------------------------------------------------------

    def _move(self, copy: Copy, node: str) -> list[Decision]:
        if self.view is not None and self.view.wanted.get(copy) == node:
            # The operator repeats a wish.
            return []
        why = why_not_move(self.view, self.members_in_order, copy, node, isolated=self.isolated)
        if why is None and not self._replaceable(copy):
            why = f"no other copy of {copy.partition} is active: one must be before this one can move"
        if why is not None:
            return [Declined(why)]
        return [self._publish({}, wanted={**self._current.wanted, copy: node})]

    def _drain(self, node: str) -> list[Decision]:
        if self.view is not None and node in self.view.drained:
            # The operator repeats a wish.
            return []
        why = why_not_drain(self.view, self.members_in_order, node, isolated=self.isolated)
        if why is not None:
            return [Declined(why)]
        return [self._publish({}, drained=self._current.drained | {node})]

    def _undrain(self, node: str) -> list[Decision]:
        why = why_not_undrain(self.view, node)
        if why is not None:
            return [Declined(why)]
        return [self._publish({}, drained=self._current.drained - {node})]

    # --- views -------------------------------------------------------------------------------------------

    @property
    def _current(self) -> View:
        require(self.view is not None, "there is no view yet")
        assert self.view is not None
        return self.view

    @property
    def _next_epoch(self) -> int:
        return self.view.epoch + 1 if self.view is not None else self.first_epoch

    def _publish(
        self,
        changed: Mapping[Partition, Seats],
        drained: frozenset[str] | None = None,
        wanted: Mapping[Copy, str] | None = None,
    ) -> Publish:
        """The next view: these partitions as they are now, and of the wishes those that still make sense."""
        before = self.view or View(self.first_epoch, {})
        partitions = {**before.partitions, **changed}
        drained = before.drained if drained is None else drained
        wanted = before.wanted if wanted is None else wanted
        self.view = View(self._next_epoch, partitions, drained, possible(wanted, partitions, drained))
        return Publish(self.view)

    def _seat_of(self, copy: Copy, epoch: int) -> Seat | None:
        """The living seat that a report is about; None if it is old news."""
        if self.view is None or copy.partition not in self.view.partitions or copy.replica >= self.replicas:
            return None
        seat = self.view.seat(copy)
        return seat if seat.alive and seat.epoch == epoch else None

    # --- seats -------------------------------------------------------------------------------------------

    def _standbys(self) -> dict[Partition, Seats] | None:
        """The next seats to fill or to empty; None if there are none, or if nodes were not heard of yet."""
        if self.view is None or self.isolated or (self.view.lost and not self.saved):
            return None
        if not self.members.keys() | self._missed >= self.view.nodes_named:
            return None
        return self._seating.next_seats()

    @property
    def _seating(self) -> Seating:
        return Seating(
            self.topology, self._current, self.members, self._suspected, self.isolated, self.passive
        )

    def _replaceable(self, copy: Copy) -> bool:
        """Whether the partition's state is safe without this copy."""
        return self._seating.replaceable(copy)

    def eligible(self, copy: Copy) -> list[str]:
        """The nodes that could take the seat from its holder, in joining order."""
        return self._seating.eligible(copy)

    def check(self) -> None:
        both = self._missed & self.members.keys()
        require(not both, f"{sorted(both)} are members and missed")
        gone = self._suspected - self.members.keys()
        require(not gone, f"{sorted(gone)} are suspected and no members")
