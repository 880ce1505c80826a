"""Outlet: a producer's end of the exchange towards one pair of consumers (Flux paper, sections 5.1-5.3).

An F-Prod has one outlet for every consumer partition. The two copies of that partition are the slots of the
outlet; which of them belongs to the same dataflow as the producer makes no difference here. An outlet keeps
every bucket until each copy that counts (`required`, the paper's `del`) has acknowledged it. It sends to a
copy that asked for it: `Reverse(n)` says "I have everything through n, send me the rest". In normal running
the consumer of the same dataflow has asked, and the other one has not, because it takes the same buckets
from the producer's replica. So each bucket crosses the network once per dataflow, and its acknowledgements,
which go to both replicas of the producer, let both forget it.

This is the normal case of figure 7 with one difference. There a producer counts what it has sent to its own
consumer as delivered, and takes acknowledgements from the other one alone. A connection that breaks without
a death would then lose what was on its way. Here both consumers acknowledge to both producers, by a single
number, and a connection that is made again goes on from that number.

*Take-over.* A consumer that is dead is no longer waited for (`ack_all`; numbers that it acknowledged ahead
of production are forgotten with it). A consumer whose producer is dead asks this one by `Reverse`; the
buffer leaves out what it has.

*Catch-up of a consumer.* The active copy's `CSync(v, n)` comes before any acknowledgement of what follows
bucket n, the last one in checkpoint v. From then on everything after n is kept for the newcomer too. The
newcomer says the same `CSync(v, n)` once it has that state. The order of the two makes no difference; when
both are there it is folded in.

*Catch-up of the producer itself.* The outlet's buffer moves with the state of its partition. Marks are kept
by slot, not by "own" and "other" consumer, so nothing needs to be reversed when they are installed on the
other side. Nobody has asked the newcomer yet, so it sends nothing until somebody does.
"""

from __future__ import annotations

from collections.abc import Mapping

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.buffer import Acks, MarkedBuffer
from understudy.core.errors import PeerError, require
from understudy.core.fold_in import spoken_for
from understudy.core.instructions import FoldedIn, Instruction, Send
from understudy.core.machine import Machine
from understudy.core.messages import (
    Ack,
    Attached,
    CSync,
    Data,
    Detached,
    From,
    OutletState,
    Pause,
    Paused,
    Produced,
    Reverse,
)
from understudy.core.view import Activated, Avail, Fail, Slot, Status


class Outlet(Machine):
    """One producer, one pair of consumers."""

    def __init__(
        self,
        name: str,
        statuses: Mapping[Slot, Status],
        *,
        buckets_max: int = 100_000,
        bytes_max: int = 256 * 2**20,
    ) -> None:
        super().__init__(name)
        self.status = dict(statuses)
        self.buffer = MarkedBuffer(
            tuple(self.status), Acks.CUMULATIVE, buckets_max=buckets_max, bytes_max=bytes_max
        )
        # A standby counts from the start: whether its active copy has named a checkpoint is not known here.
        self.required = {slot for slot, status in self.status.items() if status is not Status.DEAD}
        self.attached: set[Slot] = set()
        self.sending: set[Slot] = set()
        self.version: dict[Slot, int | None] = dict.fromkeys(self.status)
        #: What a newcomer said that counts only once it is folded in.
        self._asked: dict[Slot, BucketId] = {}
        self._acked: dict[Slot, BucketId] = {}

    @property
    def full(self) -> bool:
        """Whether the producer must wait."""
        return self.buffer.full

    def _handle(self, event: object) -> list[Instruction]:
        match event:
            case Produced(bucket):
                self.buffer.put(bucket, self.required)
            case From(slot, Ack(number)):
                self._expect_attached(slot, event)
                if self.status[slot] is Status.STDBY:
                    self._acked[slot] = number
                else:
                    self.buffer.ack(number, slot, self.required)
            case From(slot, Reverse(through)):
                self._expect_attached(slot, event)
                self._expect_kept(slot, through)
                self._asked[slot] = through
                self._start(slot)
            case From(slot, Pause()):
                self._expect_attached(slot, event)
                self.sending.discard(slot)
                self._asked.pop(slot, None)
                return [Send(slot, Paused())]
            case From(slot, CSync(version, through)):
                self._expect_attached(slot, event)
                return self._csync(slot, version, through) + self._go_on()
            case Attached():
                return self._attach(event) + self._go_on()
            case Detached(slot):
                self._detach(slot)
            case Fail(slot):
                self._fail(slot)
                # A newcomer that has named its checkpoint waited for the one that is now dead.
                return self._fold_in() + self._go_on()
            case Avail(slot):
                self._avail(slot)
            case Activated(slot):
                self._activated(slot)
            case _:
                raise PeerError(f"an outlet does not take {event}")
        return self._go_on()

    # --- take-over ---------------------------------------------------------------------------------------

    def _fail(self, slot: Slot) -> None:
        if self.status[slot] is Status.DEAD:
            return
        other = slot.other
        self.status[slot] = Status.DEAD
        self._detach(slot)
        self.version[slot] = None
        if self.status.get(other, Status.DEAD) is Status.DEAD:
            # Nobody is left. Keep everything: a full buffer stops the producer, a dropped bucket is gone.
            return
        if other not in self.required:
            # The newcomer may hold a checkpoint of the one that died, which stands where that one stood.
            self.required.add(other)
            self.buffer.reset(other, like=slot, required=self.required)
        self.buffer.ack_all(slot, self.required)
        self.required.discard(slot)

    # --- catch-up ----------------------------------------------------------------------------------------

    def _avail(self, slot: Slot) -> None:
        if self.status[slot] is not Status.DEAD:
            raise PeerError(f"a standby came for {slot.value}, which is {self.status[slot].name}")
        self.status[slot] = Status.STDBY
        self.version[slot] = None

    def _activated(self, slot: Slot) -> None:
        if self.status[slot] is Status.DEAD:
            raise PeerError(f"{slot.value} is dead and was called active")
        if self.status[slot] is Status.STDBY:
            self._admit(slot)

    def _csync(self, slot: Slot, version: int, through: BucketId) -> list[Instruction]:
        if self.status[slot] is Status.STDBY:
            self.version[slot] = version
        else:
            self._reserve(slot, version, through)
        return self._fold_in()

    def _reserve(self, slot: Slot, version: int, checkpoint: BucketId) -> None:
        """From here on keep for the newcomer what comes after the active copy's checkpoint."""
        other = slot.other
        if self.status.get(other) is Status.STDBY and version != self.version[slot]:
            self.required.add(other)
            self.buffer.reset(other, like=slot, required=self.required, through=checkpoint)
        self.version[slot] = version

    def _fold_in(self) -> list[Instruction]:
        newcomer = spoken_for(self.status, self.version, self.attached)
        if newcomer is None:
            return []
        self._admit(newcomer)
        return [FoldedIn(newcomer)]

    def _admit(self, slot: Slot) -> None:
        """A newcomer counts from now on, and so does what it has said before."""
        self.status[slot] = Status.ACTIVE
        self.required.add(slot)
        if slot in self._acked:
            self.buffer.ack_through(self._acked.pop(slot), slot, self.required)
        self._start(slot)

    def _start(self, slot: Slot) -> None:
        """Send what a consumer has asked for, unless it is a newcomer: what it needs may not be kept yet."""
        if self.status[slot] is not Status.STDBY and slot in self._asked:
            # It may have acknowledged more since it asked, having got that from the other copy.
            self.buffer.rewind(slot, after=self._asked.pop(slot))
            self.sending.add(slot)

    # --- connections -------------------------------------------------------------------------------------

    def _attach(self, event: Attached) -> list[Instruction]:
        slot = event.slot
        if self.status[slot] is Status.DEAD:
            raise PeerError(f"{slot.value} is dead and attached")
        self.attached.add(slot)
        self.sending.discard(slot)
        if self.status[slot] is Status.STDBY:
            return []
        # A csync that was lost with the last connection came before the acknowledgements that followed it.
        self._reserve(slot, event.version, event.checkpoint)
        self.buffer.ack_through(event.through, slot, self.required)
        # It may be a newcomer that never heard it, because the last connection broke.
        again: list[Instruction] = [FoldedIn(slot)] if event.version else []
        return [*again, *self._fold_in()]

    def _detach(self, slot: Slot) -> None:
        self.attached.discard(slot)
        self.sending.discard(slot)
        self._asked.pop(slot, None)
        self._acked.pop(slot, None)
        if self.status[slot] is Status.STDBY:
            # It names its checkpoint again when it is back.
            self.version[slot] = None

    def _expect_attached(self, slot: Slot, event: object) -> None:
        if slot not in self.attached:
            raise PeerError(f"{event} came over a connection that is not there")

    def _expect_kept(self, slot: Slot, through: BucketId) -> None:
        """A consumer that asks for what all have acknowledged has lost its way."""
        counts = slot in self.required and self.status[slot] is not Status.STDBY
        if counts and through < self.buffer.floor(slot):
            acked = self.buffer.floor(slot)
            raise PeerError(f"{slot.value} asks for what follows {through}, but has acknowledged {acked}")

    # --- moving ------------------------------------------------------------------------------------------

    def state(self) -> OutletState:
        return OutletState(
            tuple(self.buffer),
            self.buffer.produced_through,
            tuple((slot, self.buffer.floor(slot)) for slot in self.status if slot in self.required),
        )

    def install(self, state: OutletState) -> None:
        """Take over the buffer of the replica. Only for an outlet that was never used."""
        told = dict(state.acked_through)
        # One that came after the state was taken is given what its pair has not acknowledged.
        floors = {slot: told.get(slot, told.get(slot.other, NOTHING)) for slot in self.required}
        self.buffer.adopt(state.kept, produced_through=state.produced_through, acked_through=floors)

    def _go_on(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        for slot in self.status:
            while slot in self.sending and (bucket := self.buffer.peek(slot)) is not None:
                instructions.append(Send(slot, Data(bucket)))
                self.buffer.advance(slot)
        return instructions

    def check(self) -> None:
        self.buffer.check(self.required)
        require(bool(self.required), "nobody's acknowledgement is required")
        for slot, status in self.status.items():
            require(
                status is not Status.ACTIVE or slot in self.required,
                f"{slot.value} is active but its acknowledgements do not count",
            )
        require(self.sending <= self.attached, "data is sent over a connection that is not there")
