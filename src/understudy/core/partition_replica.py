"""A copy of a partition: F-Cons below, F-Prod above, and between them an engine that only the driver sees.

A checkpoint is the engine's state, the number that F-Cons stands at and F-Prod's outlets, all of one
moment: the engine stands still, and the outlets are copied in the step that sends `PSync`.

A newcomer has caught up when every active copy of every neighbour has folded it in, and when its engine holds
all that its producers had put out by then. Neighbours come and go meanwhile, so the question is asked again
whenever something changes.
"""

from __future__ import annotations

from collections.abc import Mapping

from understudy.core.bucket import NOTHING
from understudy.core.errors import PeerError, require
from understudy.core.exchange import Edge, ProducedFor
from understudy.core.f_cons import FCons
from understudy.core.f_prod import FProd
from understudy.core.inlet import Inlet
from understudy.core.instructions import CaughtUp, Instruction, ShipPartition
from understudy.core.machine import Machine
from understudy.core.messages import AboveChanged, Folded, From, PartitionState, SnapshotTaken, Sync
from understudy.core.outlet import Outlet
from understudy.core.partition import Copy, Partition
from understudy.core.view import Slot, Status


class PartitionReplica(Machine):
    """One of the two copies of a partition of a fragment."""

    def __init__(
        self,
        copy: Copy,
        status: Status,
        producers: Mapping[Partition, Mapping[Slot, Status]],
        consumers: Mapping[Partition, Mapping[Slot, Status]],
        *,
        group_buckets_max: int = 1_000,
        group_bytes_max: int = 64 * 2**20,
        output_buckets_max: int = 100_000,
        output_bytes_max: int = 256 * 2**20,
    ) -> None:
        super().__init__(str(copy))
        require(not producers.keys() & consumers.keys(), f"{copy} is its own neighbour twice")
        self.copy = copy
        self.above = FProd(
            f"f-prod of {copy}", consumers, buckets_max=output_buckets_max, bytes_max=output_bytes_max
        )
        self.below = FCons(
            f"f-cons of {copy}",
            self.above,
            copy.slot,
            producers,
            status,
            group_buckets_max=group_buckets_max,
            group_bytes_max=group_bytes_max,
        )
        self._folded: set[Copy] = set()
        self._goal = NOTHING
        self._said = False

    @property
    def status(self) -> Status:
        return self.below.status

    def _handle(self, event: object) -> list[Instruction]:
        done: list[Instruction] = []
        was_full = self.above.full
        match event:
            case Edge(partition, From(slot, Folded(version, through))):
                if version == self.below.version:
                    self._folded.add(Copy(partition, slot))
                    self._goal = max(self._goal, through)
            case Edge(partition):
                machine = self.above if partition in self.above.outlets else self.below
                done += machine.handle(event)
            case ProducedFor():
                done += self.above.handle(event)
            case PartitionState():
                done += self._install(event)
            case SnapshotTaken():
                done += self._snapshot_taken()
            case _:
                done += self.below.handle(event)
        if was_full and not self.above.full:
            done += self.below.handle(AboveChanged())
        return [*done, *self._caught_up()]

    def _snapshot_taken(self) -> list[Instruction]:
        version, through = self.below.version, self.below.handed
        above = self.above.handle(Sync(version))
        ship = ShipPartition(PartitionState(version, through, self.above.state()))
        return [*above, ship, *self.below.handle(SnapshotTaken())]

    def _install(self, state: PartitionState) -> list[Instruction]:
        if self.status is not Status.STDBY:
            raise PeerError(f"state was installed into a replica that is {self.status.name}")
        self.above.install(state.version, state.outlets)
        self.below.install(state.version, state.through)
        return []

    def _caught_up(self) -> list[Instruction]:
        if not self.below.folding_in or self._said or self.status is Status.STDBY:
            return []
        ends: dict[Partition, Inlet | Outlet] = {**self.below.inlets, **self.above.outlets}
        active = {
            Copy(partition, slot)
            for partition, end in ends.items()
            for slot, status in end.status.items()
            if status is Status.ACTIVE
        }
        if not active <= self._folded or self.below.processed < self._goal:
            return []
        self._said = True
        return [CaughtUp(self.below.version)]

    def check(self) -> None:
        self.below.check()
        self.above.check()
