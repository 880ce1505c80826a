"""Where copies live, as the newest view says. Sources and sinks, the ends of a flow, live at the gateway."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from understudy.core.errors import require
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import Topology
from understudy.core.view.changes import changes
from understudy.core.view.view import Status, View

GATEWAY = "gateway"


@dataclass(eq=False)
class Places:
    """Without a view no copy has a place, only the ends have."""

    topology: Topology
    isolated: bool = False
    view: View | None = None

    def expect_follows(self, view: View) -> None:
        """Raise `BrokenInvariant` unless this view is of this flow and can come after the newest one."""
        known = set(self.topology.partitions)
        require(view.partitions.keys() == known, f"view {view.epoch} has other partitions than this flow")
        for partition, seats in self.view.partitions.items() if self.view is not None else ():
            changes(seats, view.partitions[partition])

    def node_of(self, copy: Copy) -> str | None:
        """The process that a copy lives on; None if it does not."""
        if copy.partition in self.topology.ends:
            return GATEWAY
        if self.view is None:
            return None
        seat = self.view.seat(copy)
        return seat.node if seat.alive else None

    def seat_epoch(self, copy: Copy) -> int:
        return 0 if copy.partition in self.topology.ends or self.view is None else self.view.seat(copy).epoch

    def sits(self, copy: Copy, node: str, epoch: int) -> bool:
        """Whether that node holds this seat of the copy."""
        if copy.partition in self.topology.ends:
            return node == GATEWAY and epoch == 0
        return self.view is not None and self.view.holds(copy, node, epoch)

    def waits(self, copy: Copy, node: str, epoch: int) -> bool:
        """Whether a standby or backup of that node sits there: a request may come when it is long active."""
        view = self.view
        return view is not None and view.holds(copy, node, epoch) and _borrows(view.seat(copy).status)

    def partners(self, partition: Partition) -> list[str]:
        """Where the copies of a partition live while one of them needs the state of another."""
        if self.view is None or partition in self.topology.ends:
            return []
        seats = self.view.partitions[partition].seats
        waits = any(_borrows(seat.status) for seat in seats)
        return [seat.node for seat in seats if seat.alive] if waits else []

    def lenders(self, partition: Partition) -> dict[Copy, str]:
        """The active copies of a partition, each with its node: they can lend their state."""
        seats = () if self.view is None else self.view.partitions[partition].seats
        return {Copy(partition, r): s.node for r, s in enumerate(seats) if s.status is Status.ACTIVE}

    def saves(self, copy: Copy) -> bool:
        """Whether this copy is the one that saves its partition's state: the first that is active."""
        return copy == min(self.lenders(copy.partition), default=None)

    def statuses(self, partitions: Iterable[Partition], of: Copy) -> dict[Partition, dict[int, Status]]:
        """The copies of neighbouring partitions that a copy talks to, with their status."""
        assert self.view is not None
        found: dict[Partition, dict[int, Status]] = {}
        narrow = self.isolated and of.partition not in self.topology.ends
        for partition in partitions:
            if partition in self.topology.ends:
                found[partition] = {0: Status.ACTIVE}
                continue
            seats = self.view.partitions[partition].seats
            found[partition] = {r: s.status for r, s in enumerate(seats) if not narrow or r == of.replica}
        return found


def _borrows(status: Status) -> bool:
    return status in (Status.STDBY, Status.BACKUP)
