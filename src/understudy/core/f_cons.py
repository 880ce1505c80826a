"""F-Cons: the bottom of a partition's replica (Flux paper, section 5): an inlet for every producer
partition, the merge of what they bring, and the engine's next group.

Like S-Cons it hands a group to the engine when that stands still, and acknowledges the group just before.
So whenever the engine stands still, what has been acknowledged is exactly what its state holds, for every
producer the same number, and a checkpoint is the engine's state and that one number.

*Catch-up, active side.* The controller seats a standby for this partition's other copy only when everything
below has caught up (bottom-up, level by level). The movers meet, the engine stands still: F-Cons raises its
version and asks for a snapshot. It waits only while that is linked. Then every producer, both copies, hears
`CSync(v, n)` and every consumer `PSync(v)`. The paper pauses all incoming connections first, since what is
in flight would otherwise be acknowledged by nobody; here it is not acknowledged before the engine has it,
so it is sent again to whoever needs it.

*Catch-up, standby side.* Once the state is installed, this copy attaches to all producers and consumers and
names the same version, again and again with every connection until the controller calls it active. Each of
them answers `Folded`. When all who are active have, the newcomer has caught up and says so.

*Egress* is an F-Cons whose engine is the sink. It must be able to start again after a crash from what the
sink holds, so it acknowledges a group only when that is processed.

Should the standby die at any point, nothing here needs undoing; the next one gets the next version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.errors import PeerError, require
from understudy.core.exchange import Edge, across
from understudy.core.inlet import Inlet
from understudy.core.instructions import Instruction, Process, RequestMove, SendTo, Take, TakeSnapshot
from understudy.core.machine import Machine
from understudy.core.merge import Merge
from understudy.core.messages import (
    AboveChanged,
    Attached,
    CSync,
    MoverReady,
    PairAvailable,
    PairFailed,
    Processed,
    SeatConfirmed,
    SnapshotTaken,
    Taken,
)
from understudy.core.partition import Copy, Partition
from understudy.core.s_cons import Movement
from understudy.core.view import Slot, Status


class Above(Protocol):
    """What F-Cons asks of the F-Prod of its replica. Reading only."""

    @property
    def full(self) -> bool: ...


class FCons(Machine):
    """Takes the merged input of a partition in order and hands it to the engine in groups."""

    def __init__(
        self,
        name: str,
        above: Above,
        own: Slot,
        producers: Mapping[Partition, Mapping[Slot, Status]],
        status: Status = Status.ACTIVE,
        *,
        group_buckets_max: int = 1_000,
        group_bytes_max: int = 64 * 2**20,
        through: BucketId = NOTHING,
        acks_when_processed: bool = False,
    ) -> None:
        super().__init__(name)
        require(status in (Status.ACTIVE, Status.STDBY), f"a replica cannot begin as {status.name}")
        self.above = above
        self.own = own
        self.status = status
        self.group_buckets_max = group_buckets_max
        self.group_bytes_max = group_bytes_max
        self.inlets = {
            partition: Inlet(f"{name} from {partition}", statuses, own=own, through=through)
            for partition, statuses in sorted(producers.items())
        }
        self.merge = Merge(tuple(self.inlets), through=through)
        self.acks_when_processed = acks_when_processed
        self.version = 0
        self.checkpoint = NOTHING
        self.processed = through
        self.busy = False
        self.folding_in = status is Status.STDBY
        self.movement = Movement.NONE
        self._mover_ready = False

    @property
    def handed(self) -> BucketId:
        """Everything through this number is in the engine, or on its way there."""
        return self.merge.handed

    def _handle(self, event: object) -> list[Instruction]:
        match event:
            case Edge():
                return self._edge(event) + self._go_on()
            case Processed():
                require(self.busy, "the engine finished what it was never given")
                self.busy = False
                self.processed = self.handed
                if self.acks_when_processed:
                    return self._acknowledge() + self._go_on()
            case AboveChanged():
                pass
            case PairFailed():
                self.movement = Movement.NONE
                self._mover_ready = False
            case PairAvailable():
                if self.status is Status.STDBY:
                    return [RequestMove(sending=False)]
                self.movement = Movement.REQUESTED
                return [RequestMove(sending=True), *self._go_on()]
            case MoverReady():
                self._mover_ready = True
            case SnapshotTaken():
                return self._snapshot_taken() + self._go_on()
            case SeatConfirmed():
                self.folding_in = False
            case _:
                raise PeerError(f"f-cons does not take {event}")
        return self._go_on()

    def _edge(self, event: Edge) -> list[Instruction]:
        inlet = self.inlets.get(event.partition)
        if inlet is None:
            raise PeerError(f"{event.partition} is no producer of this partition")
        require(
            self.status is not Status.STDBY or not isinstance(event.event, Attached), "attached too early"
        )
        told: list[Instruction] = []
        for instruction in across(event.partition, inlet.handle(event.event), inlet.version):
            if isinstance(instruction, Take):
                self.merge.put(event.partition, instruction.bucket)
            else:
                told.append(instruction)
        if isinstance(event.event, Attached) and self.version:
            # Ahead of any acknowledgement: a checkpoint may have been taken while the connection was made.
            told.insert(
                0, SendTo(Copy(event.partition, event.event.slot), CSync(self.version, self.checkpoint))
            )
        return told

    def _snapshot_taken(self) -> list[Instruction]:
        require(self.status is Status.PAUSE, "a snapshot was taken that was not asked for")
        self.status = Status.ACTIVE
        if self.movement is Movement.READY:
            self.movement = Movement.NONE
        return [
            SendTo(Copy(partition, slot), CSync(self.version, self.checkpoint))
            for partition, inlet in self.inlets.items()
            for slot in inlet.status
            if slot in inlet.attached
        ]

    def install(self, version: int, through: BucketId) -> None:
        """This replica's engine holds the checkpoint now."""
        require(self.status is Status.STDBY, f"state was installed into a replica that is {self.status.name}")
        self.status = Status.ACTIVE
        self.version = version
        self.checkpoint = self.processed = through
        self.merge = Merge(tuple(self.inlets), through=through)
        for partition, inlet in self.inlets.items():
            self.inlets[partition] = Inlet(inlet.name, inlet.status, own=self.own, through=through)

    def _go_on(self) -> list[Instruction]:
        if self.status is not Status.ACTIVE or self.busy:
            return []
        if self.movement is Movement.REQUESTED and self._mover_ready:
            self._mover_ready = False
            self.movement = Movement.READY
            self.status = Status.PAUSE
            self.version += 1
            self.checkpoint = self.handed
            return [TakeSnapshot(self.version, self.handed)]
        return self._hand_out() if self.merge.ready and not self.above.full else []

    def _hand_out(self) -> list[Instruction]:
        group = self.merge.take(self.group_buckets_max, self.group_bytes_max)
        self.busy = True
        told = [] if self.acks_when_processed else self._acknowledge()
        return [*told, Process(group)]

    def _acknowledge(self) -> list[Instruction]:
        told: list[Instruction] = []
        for partition, inlet in self.inlets.items():
            told += across(partition, inlet.handle(Taken(self.handed)), inlet.version)
        return told

    def check(self) -> None:
        self.merge.check()
        for inlet in self.inlets.values():
            inlet.check()
            ahead = self.acks_when_processed and self.busy
            require(
                inlet.taken == self.handed or (ahead and inlet.taken < self.handed),
                f"{inlet.name} was told {inlet.taken}, not {self.handed}",
            )
        require(not (self.status is Status.PAUSE and self.busy), "a snapshot is taken while the engine works")
        require(self.status is not Status.STDBY or not self.busy, "a standby without state has work")
