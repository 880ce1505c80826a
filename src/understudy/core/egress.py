"""Egress: takes the output of one replica and acknowledges it to both (Flux paper, figures 4-(1), 5-(8)).

Egress talks to the S-Prod of each slot. It chooses one of them to send, by `Reverse(n)`: "I have everything
through n". It takes `Data` from that one alone, hands it to the sink, and sends `Ack` to every active
replica once the sink holds it.

*Take-over.* When the sender is gone, the other replica is told to send the rest. Which replica sends is
egress's own choice and needs nobody's consent: numbers rise, so nothing is delivered twice whoever sends.
Egress therefore turns to the other replica as soon as the sender's connection breaks and does not wait for
the controller, which is asked only who counts as a replica.

*Catch-up.* Both replicas say `PSync(v)`. Acknowledgements for what the active one sent after its `PSync`
are owed to the newcomer. The paper pauses the output until the newcomer's `PSync` arrives, so as not to
miss one of them; as the state now moves while the dataflow runs, that would be a long silence. Egress keeps
a list of what it owes instead. With cumulative acks the list is one number. An active replica that is not
attached is owed in the same way.

If the active replica dies before both have spoken, the newcomer's `PSync` is enough: whatever egress has
not received is either in the newcomer's buffer or will be produced again from what ingress kept.

With `Acks.EACH` the paper's rules hold to the letter: a bucket is acknowledged on receipt and only to the
replica that does not send. That mode assumes an egress that never fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.buffer import Acks
from understudy.core.errors import PeerError, require
from understudy.core.fold_in import spoken_for
from understudy.core.instructions import Deliver, FoldedIn, Instruction, Send
from understudy.core.machine import Machine
from understudy.core.messages import Ack, Attached, Data, Delivered, Detached, From, PSync, Reverse
from understudy.core.view import Activated, Avail, Fail, Slot, Status


class Egress(Machine):
    """One consumer, one or two producers, each bucket once."""

    def __init__(
        self,
        statuses: Mapping[Slot, Status],
        *,
        acks: Acks = Acks.CUMULATIVE,
        delivered: BucketId = NOTHING,
        undelivered_max: int = 100_000,
    ) -> None:
        super().__init__("egress")
        self.acks = acks
        self.status = dict(statuses)
        self.undelivered_max = undelivered_max
        self.attached: set[Slot] = set()
        self.sender: Slot | None = None
        self.version: dict[Slot, int | None] = dict.fromkeys(self.status)
        self.received = delivered
        self.delivered = delivered
        self._undelivered: deque[BucketId] = deque()
        self._owed: dict[Slot, list[BucketId]] = {}

    def _handle(self, event: object) -> list[Instruction]:
        match event:
            case From(slot, Data(bucket)):
                return self._data(slot, bucket)
            case Delivered(through):
                return self._delivered(through)
            case From(slot, PSync(version)):
                return self._psync(slot, version)
            case Attached(slot, _, version):
                return self._attached(slot, version)
            case Detached(slot):
                self.attached.discard(slot)
                return self._choose_sender()
            case Fail(slot):
                return self._fail(slot)
            case Avail(slot):
                return self._avail(slot)
            case Activated(slot):
                return self._activated(slot)
            case _:
                raise PeerError(f"egress does not take {event}")

    # --- normal case -------------------------------------------------------------------------------------

    def _data(self, slot: Slot, bucket: Bucket) -> list[Instruction]:
        if slot is not self.sender:
            # Sent before the replica heard that another one sends now.
            return []
        if bucket.number <= self.received:
            raise PeerError(f"{slot} sent bucket {bucket.number} after {self.received}")
        self.received = bucket.number
        self._undelivered.append(bucket.number)
        acks = self._acknowledge([bucket.number]) if self.acks is Acks.EACH else []
        return [*acks, Deliver(bucket)]

    def _delivered(self, through: BucketId) -> list[Instruction]:
        require(through <= self.received, f"the sink holds {through}, but only {self.received} was received")
        require(through >= self.delivered, f"the sink went back from {self.delivered} to {through}")
        self.delivered = through
        while self._undelivered and self._undelivered[0] <= through:
            self._undelivered.popleft()
        return self._acknowledge([through]) if self.acks is Acks.CUMULATIVE else []

    def _acknowledge(self, numbers: list[BucketId]) -> list[Instruction]:
        instructions: list[Instruction] = []
        for slot, status in self.status.items():
            if slot in self._owed or (status is Status.ACTIVE and slot not in self.attached):
                self._owed[slot] = [*self._owed.get(slot, ()), *numbers]
                if self.acks is Acks.CUMULATIVE:
                    del self._owed[slot][:-1]
            elif status is Status.ACTIVE and self._takes_acks(slot):
                instructions += [Send(slot, Ack(number)) for number in numbers]
        return instructions

    def _take_owed(self, slot: Slot) -> list[Instruction]:
        owed = self._owed.pop(slot, [])
        if self.acks is Acks.CUMULATIVE and self.delivered > NOTHING:
            owed = [self.delivered]
        return [Send(slot, Ack(number)) for number in owed]

    def _takes_acks(self, slot: Slot) -> bool:
        return self.acks is Acks.CUMULATIVE or slot is not self.sender

    # --- connections and take-over, figure 4 -------------------------------------------------------------

    def _attached(self, slot: Slot, version: int) -> list[Instruction]:
        if self.status[slot] is Status.DEAD:
            raise PeerError(f"{slot} is dead and attached")
        self.attached.add(slot)
        if self.status[slot] is Status.STDBY:
            return []
        self.version[slot] = version
        if self.sender is slot:
            # The same replica over a new connection: what was on its way is gone, so it begins again.
            self.sender = None
        return [*self._take_owed(slot), *self._fold_in(), *self._choose_sender()]

    def _fail(self, slot: Slot) -> list[Instruction]:
        if self.status[slot] is Status.DEAD:
            return []
        self.status[slot] = Status.DEAD
        self.version[slot] = None
        self.attached.discard(slot)
        self._owed.pop(slot, None)
        # A newcomer that has named its checkpoint waited for the one that is now dead.
        return [*self._fold_in(), *self._choose_sender()]

    def _choose_sender(self) -> list[Instruction]:
        """Keep the sender while it is there; otherwise tell another active replica to send the rest."""
        if self.sender in self.attached and self.status[self.sender] is Status.ACTIVE:
            return []
        candidates = [
            s for s, status in self.status.items() if status is Status.ACTIVE and s in self.attached
        ]
        self.sender = candidates[0] if candidates else None
        return [Send(self.sender, Reverse(self.received))] if self.sender is not None else []

    # --- catch-up, figure 5 ------------------------------------------------------------------------------

    def _avail(self, slot: Slot) -> list[Instruction]:
        if self.status[slot] is not Status.DEAD:
            raise PeerError(f"a standby came for {slot}, which is {self.status[slot].name}")
        self.status[slot] = Status.STDBY
        self.version[slot] = None
        return []

    def _activated(self, slot: Slot) -> list[Instruction]:
        """The controller calls a newcomer active. News only to an egress that restarted in between."""
        if self.status[slot] is Status.DEAD:
            raise PeerError(f"{slot} is dead and was called active")
        if self.status[slot] is not Status.STDBY:
            return []
        self.status[slot] = Status.ACTIVE
        owed = self._take_owed(slot)
        return [*owed, *self._choose_sender()] if slot in self.attached else []

    def _psync(self, slot: Slot, version: int) -> list[Instruction]:
        other = self._other(slot)
        if self.status[slot] is Status.DEAD:
            raise PeerError(f"{slot} is dead and sent a psync")
        self.version[slot] = version
        if self.status[slot] is Status.ACTIVE and other is not None and self.status[other] is Status.STDBY:
            self._owed[other] = []
        return [*self._fold_in(), *self._choose_sender()]

    def _fold_in(self) -> list[Instruction]:
        """Make a newcomer an active replica if both have named the same checkpoint."""
        newcomer = spoken_for(self.status, self.version, self.attached)
        if newcomer is None:
            return []
        self.status[newcomer] = Status.ACTIVE
        return [*self._take_owed(newcomer), FoldedIn(newcomer)]

    def _other(self, slot: Slot) -> Slot | None:
        return next((each for each in self.status if each is not slot), None)

    def check(self) -> None:
        require(self.delivered <= self.received, "more was delivered than received")
        require(len(self._undelivered) <= self.undelivered_max, "the sink is too far behind")
        if self.sender is not None:
            require(self.sender in self.attached, f"{self.sender} is to send but is not attached")
            require(self.status[self.sender] is Status.ACTIVE, f"{self.sender} sends but is not active")
        for slot in self._owed:
            require(
                self.status[slot] is Status.STDBY or slot not in self.attached,
                f"acknowledgements are owed to {slot}, which could have them",
            )
