"""Seating: which seats of a view the controller fills or empties next, and with which nodes.

    no copy ACTIVE, one is BACKUP    with `passive`, that one takes over in the seat that it has
    all seats DEAD                   a node is seated ACTIVE, and begins with the saved state
    a seat DEAD                      a STDBY is seated, if some seat is ACTIVE and a node is free of that
                                     partition
    a copy is to leave               its seat is DEAD, and takes the same path as after a failure

*Bottom-up.* While a standby of some level is catching up, none of another level is seated; of several levels
with DEAD seats that can be filled the lowest comes first. Partitions of one level recover side by side, and
one partition's seats one after the other. This bounds how many states move at once. It also keeps a seat as
it is while the state of a producer moves, in which there is a floor of that seat. For that it is not needed:
a partition that begins again from its saved state is seated whatever other levels do, so an outlet takes the
floor of a seat that was filled anew for void (`Outlet.install`).

*Which node is chosen.* The node that an operator wants there; else the one with the fewest copies. A node
that held the seat last, or that was suspected and has not left yet, is chosen only if there is no other.

*Wishes* of an operator (`core.view.wishes`) cost no seat until their turn has come: a copy that is to leave
is declared dead, for its seat alone, only when no level is catching up and all seats of its partition are
ACTIVE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import Topology
from understudy.core.view.view import Seat, Seats, Status, View
from understudy.core.view.wishes import eligible


@dataclass(frozen=True)
class Seating:
    """The seats of a view, and the members that could take one, each with its place in the joining order.

    Members that are `suspected` may be about to leave.
    """

    topology: Topology
    view: View
    members: Mapping[str, int]
    suspected: AbstractSet[str]
    isolated: bool
    passive: bool

    def next_seats(self) -> dict[Partition, Seats] | None:
        """The next seats to fill or to empty; None if there are none now."""
        if taken_over := self.take_over():
            return taken_over
        if restored := self.restore():
            return restored
        for level in self.topology.levels:
            if any(seat.status is Status.STDBY for p in level for seat in self.view.partitions[p].seats):
                return self.fill(level) or None
        for level in self.topology.levels:
            if changed := self.fill(level) or self.empty(level):
                return changed
        return None

    # --- filling and emptying ----------------------------------------------------------------------------

    def take_over(self) -> dict[Partition, Seats]:
        """The first backup of every partition that has no active copy works from now on."""
        done: dict[Partition, Seats] = {}
        for partition, seats in self.view.partitions.items() if self.passive else ():
            if any(seat.status is Status.ACTIVE for seat in seats.seats):
                continue
            for replica, seat in enumerate(seats.seats):
                if seat.status is Status.BACKUP and seat.node in self.members:
                    active = replace(seat, status=Status.ACTIVE)
                    done[partition] = self.with_seat(Copy(partition, replica), active)
                    break
        return done

    def restore(self) -> dict[Partition, Seats]:
        """A node for every partition that no copy has the state of. It begins with the saved state."""
        restored: dict[Partition, Seats] = {}
        load = self._load()
        for partition, seats in self.view.partitions.items():
            copy = Copy(partition)
            node = self._choice(copy, load) if seats.lost else None
            if node is not None:
                load[node] += 1
                seat = Seat(node, self.next_epoch, Status.ACTIVE)
                restored[partition] = replace(self.with_seat(copy, seat), restored=self.next_epoch)
        return restored

    def fill(self, level: Sequence[Partition]) -> dict[Partition, Seats]:
        """A standby for one dead seat of every partition of the level that a node can take."""
        filled: dict[Partition, Seats] = {}
        load = self._load()
        for copy in self._copies(level):
            seats = self.view.partitions[copy.partition].seats
            waits = any(seat.status is Status.STDBY for seat in seats) or copy.partition in filled
            lends = any(seat.status is Status.ACTIVE for seat in seats)
            if waits or seats[copy.replica].alive or not lends or not self.replaceable(copy):
                continue
            node = self._choice(copy, load)
            if node is None:
                continue
            load[node] += 1
            filled[copy.partition] = self.with_seat(copy, Seat(node, self.next_epoch, Status.STDBY))
        return filled

    def empty(self, level: Sequence[Partition]) -> dict[Partition, Seats]:
        """Empty one seat that is to move in each partition whose copies are all active."""
        emptied: dict[Partition, Seats] = {}
        for copy in self._copies(level):
            seat = self.view.seat(copy)
            if copy.partition in emptied or not self.view.partitions[copy.partition].whole:
                continue
            drained, to = seat.node in self.view.drained, self.view.wanted.get(copy)
            if not (drained or to is not None) or not self.replaceable(copy):
                continue
            takers = self.eligible(copy)
            if (drained and takers) or to in takers:
                emptied[copy.partition] = self.with_seat(copy, replace(seat, status=Status.DEAD))
        return emptied

    def _choice(self, copy: Copy, load: Mapping[str, int]) -> str | None:
        """The node that takes a dead seat."""
        wanted, last = self.view.wanted.get(copy), self.view.seat(copy).node

        def rank(node: str) -> tuple[bool, bool, int, int]:
            doubtful = node == last or node in self.suspected
            return node != wanted, doubtful, load[node], self.members[node]

        return min(self.eligible(copy), key=rank, default=None)

    def _load(self) -> dict[str, int]:
        return {node: self.view.load.get(node, 0) for node in self.members}

    def _copies(self, level: Sequence[Partition]) -> list[Copy]:
        return [Copy(p, replica) for p in level for replica in range(len(self.view.partitions[p].seats))]

    # --- what is safe and possible -----------------------------------------------------------------------

    def replaceable(self, copy: Copy) -> bool:
        """Whether the partition's state is safe without this copy."""
        others = [r for r in range(len(self.view.partitions[copy.partition].seats)) if r != copy.replica]
        # With isolated replicas all copies of the replica die with it, so all of another must be active.
        needed = self.view.partitions if self.isolated else (copy.partition,)
        return any(all(self.is_safe(Copy(partition, r)) for partition in needed) for r in others)

    def is_safe(self, copy: Copy) -> bool:
        """Whether this copy has the state, on a node that is known to be a member."""
        seat = self.view.seat(copy)
        return seat.status.has_state and seat.node in self.members

    def eligible(self, copy: Copy) -> list[str]:
        """The nodes that could take the seat from its holder, in joining order."""
        return eligible(self.view, in_order(self.members), copy)

    @property
    def next_epoch(self) -> int:
        return self.view.epoch + 1

    def with_seat(self, copy: Copy, seat: Seat) -> Seats:
        """The partition's seats in the next view, with this one for the copy."""
        return self.view.partitions[copy.partition].with_seat(copy.replica, seat, self.next_epoch)


def in_order(members: Mapping[str, int]) -> list[str]:
    """Members in joining order."""
    return sorted(members, key=lambda node: (members[node], node))
