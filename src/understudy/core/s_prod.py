"""S-Prod: the top of a replica (Flux paper, sections 3.1-3.3, figures 3, 4-(2), 5-(7)).

S-Prod puts the engine's output buckets into its buffer. Egress picks one replica to send: `Reverse(n)`
tells that replica's S-Prod that egress has everything through n and wants the rest. The other one keeps its
output, and egress's acknowledgements drain it. Egress may have acknowledged what this replica has not
produced yet; the buffer then drops the bucket the moment it is put, so after a take-over nothing is sent
twice.

In the paper the sender drops a bucket once it is sent, for egress never fails. Here egress acknowledges to
both replicas, and only what its sink holds durably, so a gateway that crashes finds everything after its
last delivery still here. In the terms of figure 3: the sender's connection is {SEND, ACK}, not {SEND}. With
`Acks.EACH` S-Prod keeps to the figure: what is sent counts as acknowledged (action 2a), and egress must not
fail.

`Reverse(n)` is no acknowledgement: egress has received through n, but its sink may not hold that yet. So what
comes up to n is not sent, and is kept all the same until it is acknowledged.

`Reverse` is the only way to become the sender, also at the very start and after a reconnection.
`take_over_done` (the paper's `tk_done`) is therefore: this replica is the one that sends.
"""

from __future__ import annotations

from understudy.core.bucket import BucketId
from understudy.core.buffer import Acks, MarkedBuffer
from understudy.core.errors import PeerError, require
from understudy.core.instructions import Instruction, SendEgress
from understudy.core.machine import Machine
from understudy.core.messages import (
    Ack,
    Data,
    EgressDown,
    EgressUp,
    Installed,
    Produced,
    PSync,
    Reverse,
    SeatConfirmed,
    Sync,
)
from understudy.core.view import Slot

#: There is one destination, egress, which the paper calls the primary one.
EGRESS = Slot.PRIM


class SProd(Machine):
    """Keeps output until it is delivered, and sends it when told to."""

    def __init__(
        self, *, acks: Acks = Acks.CUMULATIVE, buckets_max: int = 100_000, bytes_max: int = 256 * 2**20
    ) -> None:
        super().__init__("s-prod")
        self.buffer = MarkedBuffer((EGRESS,), acks, buckets_max=buckets_max, bytes_max=bytes_max)
        self.attached = False
        self.sending = False
        self.version = 0
        self.folding_in = False

    @property
    def take_over_done(self) -> bool:
        return self.sending

    @property
    def full(self) -> bool:
        """Whether the engine must wait. Only output that is not acknowledged counts."""
        return self.buffer.full

    def _handle(self, event: object) -> list[Instruction]:
        match event:
            case Produced(bucket):
                self.buffer.put(bucket, {EGRESS})
            case Ack(number):
                self._expect_attached(event)
                self.buffer.ack(number, EGRESS, {EGRESS})
            case Reverse(through):
                self._expect_attached(event)
                self._reverse(through)
            case EgressUp():
                self.attached = True
                self.sending = False
                # Also when it is not new: a checkpoint may have been taken while the connection was made.
                return [SendEgress(PSync(self.version))] if self.version else []
            case EgressDown():
                self.attached = False
                self.sending = False
            case Sync(version):
                self.version = version
                return [SendEgress(PSync(version))] if self.attached else []
            case Installed():
                self._install(event)
            case SeatConfirmed():
                self.folding_in = False
            case _:
                raise PeerError(f"s-prod does not take {event}")
        return self._go_on()

    def _reverse(self, through: BucketId) -> None:
        if self.buffer.acks is Acks.EACH:
            self.buffer.ack_through(through, EGRESS, {EGRESS})
        # What egress has received, its sink may not hold yet: it is not sent again, but kept.
        self.buffer.rewind(EGRESS, after=through)
        self.sending = True

    def _install(self, state: Installed) -> None:
        self.buffer.install(
            state.unacked,
            state.acked,
            EGRESS,
            produced_through=state.produced_through,
            acked_through=state.acked_through,
        )
        self.version = state.version
        self.folding_in = True

    def state_with(self, version: int, through: BucketId) -> Installed:
        """What moves to a standby beside the engine's checkpoint: this buffer, ready to be installed."""
        return Installed(
            version=version,
            through=through,
            unacked=tuple(self.buffer),
            acked=self.buffer.dangling,
            produced_through=self.buffer.produced_through,
            acked_through=self.buffer.floor(EGRESS),
        )

    def _expect_attached(self, event: object) -> None:
        if not self.attached:
            raise PeerError(f"{event} came over a connection that is not there")

    def _go_on(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        while self.sending and (bucket := self.buffer.peek(EGRESS)) is not None:
            instructions.append(SendEgress(Data(bucket)))
            self.buffer.advance(EGRESS)
            if self.buffer.acks is Acks.EACH:
                self.buffer.ack(bucket.number, EGRESS, {EGRESS})
        return instructions

    def check(self) -> None:
        self.buffer.check({EGRESS})
        require(self.attached or not self.sending, "s-prod sends over a connection that is not there")
