"""Ingress: feeds the same sealed buckets to both replicas (Flux paper, sections 3.1-3.3, figures 3, 4-(3),
5-(6)).

Ingress talks to the S-Cons of each slot. It sends `Data` and takes `Ack` and `CSync`. It keeps a bucket
until every replica that counts (`required`, the paper's `del`) has acknowledged it, so that whatever was on
its way to a replica that is lost is still here for the other one.

*Take-over.* When a replica is dead, its acknowledgements are no longer waited for (`ack_all`).

*Catch-up.* The active replica's `CSync(v, n)` follows its acknowledgement of bucket n and comes before any
later one, so at that moment the buckets not acknowledged are exactly those after checkpoint v: from here on
they are kept for the newcomer too (`reset`). The newcomer's own `CSync(v, n)` says that it stands at
checkpoint v. Only when both have said the same version does the connection to the newcomer start. Were it
to start on the newcomer's word alone, buckets that the checkpoint already holds could be sent to it a
second time, and buckets that the active one acknowledges meanwhile could be dropped before the newcomer had
them.

Two cases go beyond the paper, which assumes an ingress that never fails and one failure at a time:

* *The active replica dies after its checkpoint has moved.* Its `CSync` may be lost with it, but then so are
  all acknowledgements that followed. What it had not acknowledged covers all that the newcomer needs, so
  that is kept for the newcomer, whose `CSync` is then accepted alone.
* *Ingress itself restarts*, from a log that holds at least what some replica had not acknowledged. A
  replica that attaches says how far it is, and its cursor goes there. A standby counts as required from the
  start, since whether the active one's `CSync` had arrived is forgotten.

A replica that is required and gone keeps its buckets here until the controller declares it dead. The buffer
is bounded; while it is full nothing more may be sealed, which is the back pressure to the sources, and what
limits how far two replicas drift apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from understudy.core.bucket import Bucket, BucketId
from understudy.core.buffer import Acks, MarkedBuffer
from understudy.core.errors import PeerError, require
from understudy.core.fold_in import spoken_for
from understudy.core.instructions import FoldedIn, Instruction, Send, Trimmed
from understudy.core.machine import Machine
from understudy.core.messages import Ack, Attached, CSync, Data, Detached, From, Sealed
from understudy.core.view import Activated, Avail, Fail, Slot, Status


class Ingress(Machine):
    """One producer, one or two destinations, every bucket to both."""

    def __init__(
        self,
        statuses: Mapping[Slot, Status],
        *,
        acks: Acks = Acks.CUMULATIVE,
        buckets_max: int = 100_000,
        bytes_max: int = 256 * 2**20,
        recovered: Iterable[Bucket] = (),
    ) -> None:
        super().__init__("ingress")
        self.status = dict(statuses)
        self.buffer = MarkedBuffer(tuple(self.status), acks, buckets_max=buckets_max, bytes_max=bytes_max)
        self.required = {slot for slot, status in self.status.items() if status is not Status.DEAD}
        self.sending: set[Slot] = set()
        self.version: dict[Slot, int | None] = dict.fromkeys(self.status)
        self._said_through: dict[Slot, BucketId] = {}
        for bucket in recovered:
            self.buffer.put(bucket, self.required)
        self._trimmed_through = self.buffer.trimmed_through

    @property
    def full(self) -> bool:
        """Whether sealing must wait."""
        return self.buffer.full

    def _handle(self, event: object) -> list[Instruction]:
        match event:
            case Sealed(bucket):
                require(not self.full, "a bucket was sealed into a full buffer")
                self.buffer.put(bucket, self.required)
            case From(slot, Ack(number)):
                self._expect_sending(slot, "acknowledged")
                self.buffer.ack(number, slot, self.required)
            case From(slot, CSync(version, through)):
                return self._csync(slot, version, through)
            case Attached():
                return self._attached(event)
            case Detached(slot):
                self._detached(slot)
            case Fail(slot):
                self._fail(slot)
                # A newcomer that has named its checkpoint waited for the one that is now dead.
                return self._fold_in() + self._go_on()
            case Avail(slot):
                self._avail(slot)
            case Activated(slot):
                self._activated(slot)
            case _:
                raise PeerError(f"ingress does not take {event}")
        return self._go_on()

    # --- take-over, figure 4 -----------------------------------------------------------------------------

    def _fail(self, slot: Slot) -> None:
        if self.status[slot] is Status.DEAD:
            return
        other = self._other(slot)
        self.status[slot] = Status.DEAD
        self.version[slot] = None
        self.sending.discard(slot)
        self._said_through.pop(slot, None)
        if other is None or self.status[other] is Status.DEAD:
            # Nobody is left. Keep everything: a full buffer stops the sources, a dropped bucket is gone.
            return
        if self.status[other] is Status.STDBY and other not in self.required:
            self.required.add(other)
            self.buffer.reset(other, like=slot, required=self.required)
        self.buffer.ack_all(slot, self.required)
        self.required.discard(slot)

    # --- catch-up, figure 5 ------------------------------------------------------------------------------

    def _avail(self, slot: Slot) -> None:
        if self.status[slot] is not Status.DEAD:
            raise PeerError(f"a standby came for {slot}, which is {self.status[slot]}")
        self.status[slot] = Status.STDBY
        self.version[slot] = None

    def _activated(self, slot: Slot) -> None:
        """The controller calls a newcomer active. News only to an ingress that restarted in between."""
        if self.status[slot] is Status.DEAD:
            raise PeerError(f"{slot} is dead and was called active")
        if self.status[slot] is Status.STDBY:
            self.status[slot] = Status.ACTIVE
            self.required.add(slot)
            if slot in self._said_through:
                # It has attached already. It will not do so again, nor need the active one still be there.
                self._start(slot)

    def _csync(self, slot: Slot, version: int, through: BucketId) -> list[Instruction]:
        other = self._other(slot)
        if self.status[slot] is Status.DEAD:
            raise PeerError(f"{slot} is dead and sent a csync")
        if self.status[slot] is Status.STDBY:
            self.version[slot] = version
            self._said_through[slot] = through
        else:
            self._reserve(slot, other, version, through)
        return self._fold_in() + self._go_on()

    def _reserve(self, slot: Slot, other: Slot | None, version: int, checkpoint: BucketId) -> None:
        """Keep for a standby everything after the checkpoint that the active replica has named."""
        if other is not None and self.status[other] is Status.STDBY and version != self.version[slot]:
            self.required.add(other)
            self.buffer.reset(other, like=slot, required=self.required, through=checkpoint)
        self.version[slot] = version

    def _fold_in(self) -> list[Instruction]:
        """Start the connection to a newcomer if both replicas have named the same checkpoint."""
        newcomer = spoken_for(self.status, self.version, self._said_through)
        if newcomer is None:
            return []
        self.status[newcomer] = Status.ACTIVE
        self._start(newcomer)
        return [FoldedIn(newcomer)]

    def _start(self, slot: Slot) -> None:
        """Send to a replica, which is attached, everything after what it said it has."""
        self.buffer.ack_through(self._said_through[slot], slot, self.required)
        self.buffer.rewind(slot)
        self.sending.add(slot)

    # --- connections -------------------------------------------------------------------------------------

    def _attached(self, event: Attached) -> list[Instruction]:
        slot, through = event.slot, event.through
        if self.status[slot] is Status.DEAD:
            raise PeerError(f"{slot} is dead and attached")
        if self.status[slot] is Status.STDBY:
            self._said_through[slot] = through
            return []
        if through < self.buffer.trimmed_through and slot in self.required and len(self.buffer):
            oldest = self.buffer.trimmed_through + 1
            if self.buffer.floor(slot) > through:
                raise PeerError(
                    f"{slot} asks for input after {through}, but it acknowledged up to {oldest - 1}"
                )
        # A csync that was lost with the last connection: it came before the acknowledgements that follow.
        self._reserve(slot, self._other(slot), event.version, event.checkpoint)
        self._said_through[slot] = through
        self._start(slot)
        return self._fold_in() + self._go_on()

    def _detached(self, slot: Slot) -> None:
        self.sending.discard(slot)
        self._said_through.pop(slot, None)
        if self.status[slot] is Status.STDBY:
            # It names its checkpoint again when it is back.
            self.version[slot] = None

    def _expect_sending(self, slot: Slot, did: str) -> None:
        if self.status[slot] is not Status.ACTIVE or slot not in self.sending:
            raise PeerError(f"{slot} is {self.status[slot].name} and not attached, yet it {did}")

    # --- the abstract producer, figure 3 -----------------------------------------------------------------

    def _go_on(self) -> list[Instruction]:
        """Send every undelivered bucket to whoever takes data; say what the log may let go of."""
        instructions: list[Instruction] = []
        for slot in self.status:
            if slot not in self.sending:
                continue
            while (bucket := self.buffer.peek(slot)) is not None:
                instructions.append(Send(slot, Data(bucket)))
                self.buffer.advance(slot)
        if self.buffer.trimmed_through > self._trimmed_through:
            self._trimmed_through = self.buffer.trimmed_through
            instructions.append(Trimmed(self._trimmed_through))
        return instructions

    def _other(self, slot: Slot) -> Slot | None:
        return next((each for each in self.status if each is not slot), None)

    def check(self) -> None:
        self.buffer.check(self.required)
        require(bool(self.required), "nobody's acknowledgement is required")
        for slot, status in self.status.items():
            if status is Status.ACTIVE:
                require(slot in self.required, f"{slot} is active but its acknowledgements do not count")
            if slot in self.sending:
                require(status is Status.ACTIVE, f"{slot} is {status.name} and is sent data")
