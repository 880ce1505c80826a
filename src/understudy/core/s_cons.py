"""S-Cons: the bottom of a replica (Flux paper, sections 3.1-3.3, figures 4, 5-(1), 5-(2), 5-(5)).

S-Cons receives buckets from ingress and queues them. When the engine stands still it hands it the next
group; it acknowledges the group to ingress *before* the engine sees it. Hence the rule that makes catch-up
exact: whenever the engine stands still, what has been acknowledged is exactly what its state holds. The
queue is not part of any checkpoint, since nothing in it has been acknowledged.

*Catch-up, active side.* The controller says that a standby sits in the other slot (`PairAvailable`),
take-over is complete, the state movers have met (`MoverReady`), the engine stands still: S-Cons raises its
version and asks for a snapshot. The paper stalls the replica until the state has moved; here it stalls only
while the snapshot's files are linked. Then S-Cons tells ingress (`CSync`) and has S-Prod tell egress
(`sync`) where the checkpoint stands, and goes on. Should the standby die at any point, nothing here needs
undoing: that is the idempotent catch-up of section 3.4, and the next standby gets the next version.

*Catch-up, standby side.* A standby asks its mover for the state. Once that is `Installed` it is active as
far as it can tell itself, and says so with the same version. It repeats its `CSync` whenever it attaches
until the controller's view calls it active, for the first one may have been lost with the gateway.

States: STDBY (no state yet), ACTIVE, PAUSE (a snapshot is being linked).
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import Protocol

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.buffer import Acks
from understudy.core.errors import PeerError, require
from understudy.core.instructions import Instruction, Process, RequestMove, SendIngress, TakeSnapshot
from understudy.core.machine import Machine
from understudy.core.messages import (
    AboveChanged,
    Ack,
    CSync,
    Data,
    IngressDown,
    IngressUp,
    Installed,
    MoverReady,
    PairAvailable,
    PairFailed,
    Processed,
    SeatConfirmed,
    SnapshotTaken,
)
from understudy.core.view import Status


class Above(Protocol):
    """What S-Cons asks of the S-Prod of its replica. Reading only."""

    @property
    def take_over_done(self) -> bool: ...

    @property
    def full(self) -> bool: ...


class Movement(Enum):
    """How far the movement of this replica's state to a standby has come."""

    NONE = auto()
    PAIR_AVAILABLE = auto()
    REQUESTED = auto()
    READY = auto()


class SCons(Machine):
    """Takes input in order and hands it to the engine in groups."""

    def __init__(
        self,
        above: Above,
        status: Status = Status.ACTIVE,
        *,
        acks: Acks = Acks.CUMULATIVE,
        group_buckets_max: int = 1_000,
        group_bytes_max: int = 64 * 2**20,
    ) -> None:
        super().__init__("s-cons")
        self.above = above
        require(status in (Status.ACTIVE, Status.STDBY), f"a replica cannot begin as {status.name}")
        self.status = status
        self.acks = acks
        self.group_buckets_max = group_buckets_max
        self.group_bytes_max = group_bytes_max
        self.version = 0
        self.checkpoint = NOTHING
        self.received = NOTHING
        self.handed = NOTHING
        self.queue: deque[Bucket] = deque()
        self.busy = False
        self.attached = False
        self.folding_in = status is Status.STDBY
        self.movement = Movement.NONE
        self._mover_ready = False
        self._unannounced = False

    def _handle(self, event: object) -> list[Instruction]:
        match event:
            case Data(bucket):
                self._data(bucket)
            case Processed():
                require(self.busy, "the engine finished what it was never given")
                self.busy = False
            case IngressUp():
                return self._ingress_up() + self._go_on()
            case IngressDown():
                # What waits here was never acknowledged; ingress sends it again.
                self.attached = False
                self.queue.clear()
                self.received = self.handed
            case PairFailed():
                self.movement = Movement.NONE
                self._mover_ready = False
            case PairAvailable():
                return self._pair_available() + self._go_on()
            case MoverReady():
                self._mover_ready = True
            case AboveChanged():
                pass
            case SeatConfirmed():
                self.folding_in = False
            case SnapshotTaken():
                return self._snapshot_taken() + self._go_on()
            case Installed(version=version, through=through):
                require(
                    self.status is Status.STDBY,
                    f"state was installed into a replica that is {self.status.name}",
                )
                self.status = Status.ACTIVE
                self.version = version
                self.received = self.handed = self.checkpoint = through
            case _:
                raise PeerError(f"s-cons does not take {event}")
        return self._go_on()

    def _data(self, bucket: Bucket) -> None:
        if not self.attached:
            raise PeerError(f"bucket {bucket.number} came over a connection that is not there")
        if bucket.number <= self.received:
            raise PeerError(f"bucket {bucket.number} came after {self.received}")
        self.queue.append(bucket)
        self.received = bucket.number

    def _ingress_up(self) -> list[Instruction]:
        require(self.status is not Status.STDBY, "a standby without state attached to ingress")
        self.attached = True
        unannounced, self._unannounced = self._unannounced, False
        if self.folding_in:
            # It may have gone on from the checkpoint already, fed by a gateway that crashed since.
            return [SendIngress(CSync(self.version, self.handed))]
        return [SendIngress(CSync(self.version, self.checkpoint))] if unannounced else []

    def _pair_available(self) -> list[Instruction]:
        if self.status is Status.STDBY:
            return [RequestMove(sending=False)]
        self.movement = Movement.PAIR_AVAILABLE
        return []

    def _snapshot_taken(self) -> list[Instruction]:
        require(self.status is Status.PAUSE, "a snapshot was taken that was not asked for")
        self.status = Status.ACTIVE
        if self.movement is Movement.REQUESTED:
            # Otherwise the standby died meanwhile, and perhaps the next one is already there.
            self.movement = Movement.NONE
        self._unannounced = not self.attached
        return [SendIngress(CSync(self.version, self.checkpoint))] if self.attached else []

    def _go_on(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        if self.status is not Status.ACTIVE:
            return instructions
        if self.movement is Movement.PAIR_AVAILABLE and self.above.take_over_done:
            self.movement = Movement.REQUESTED
            instructions.append(RequestMove(sending=True))
        if self.busy:
            return instructions
        if self.movement is Movement.REQUESTED and self._mover_ready and self.attached:
            self._mover_ready = False
            self.status = Status.PAUSE
            self.version += 1
            self.checkpoint = self.handed
            return [*instructions, TakeSnapshot(self.version, self.handed)]
        if self.queue and not self.above.full and self.attached:
            instructions += self._hand_out()
        return instructions

    def _hand_out(self) -> list[Instruction]:
        group: list[Bucket] = []
        size_bytes = 0
        while self.queue and len(group) < self.group_buckets_max:
            if group and size_bytes + self.queue[0].size_bytes > self.group_bytes_max:
                break
            group.append(self.queue.popleft())
            size_bytes += group[-1].size_bytes
        self.handed = group[-1].number
        self.busy = True
        numbers = [bucket.number for bucket in group]
        acked = numbers if self.acks is Acks.EACH else numbers[-1:]
        return [*(SendIngress(Ack(number)) for number in acked), Process(tuple(group))]

    def check(self) -> None:
        require(self.handed <= self.received, f"handed out {self.handed} but received {self.received}")
        numbers = [bucket.number for bucket in self.queue]
        require(numbers == sorted(set(numbers)), f"the queue is out of order: {numbers}")
        require(all(number > self.handed for number in numbers), "the queue holds what was handed out")
        require(not (self.status is Status.PAUSE and self.busy), "a snapshot is taken while the engine works")
        if self.status is Status.STDBY:
            require(not self.queue and not self.busy, "a standby without state has work")
