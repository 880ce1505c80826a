"""Inlet: a consumer's end of the exchange from one pair of producers (Flux paper, sections 5.1-5.3).

An F-Cons has one inlet for every producer partition of its inputs. The two copies of that partition are the
slots of the inlet. It takes data from one of them, the *sender*, by choice the one in its own dataflow. It
asks a copy to send by `Reverse(n)`, "I have everything through n", and to stop by `Pause`. It acknowledges
to both copies, by one number, what it has handed to its engine. What it has received and not handed on is
not acknowledged, so it is in no checkpoint, and nothing needs to be drained before one is taken: that is
what the paper's distributed pause before state movement is for.

*Courting.* When the copy in its own dataflow is there and another one sends, the inlet asks its own as well
and goes on with the other: a newcomer may be behind, and waiting for it would be a silence. What the newcomer
sends of what is here already is left out. With the first bucket that is news it becomes the sender, and the
other is asked to stop. Both were asked for everything after some number at or before what is here, and both
have the same rows under the same numbers, so whichever brings the next bucket, nothing lies between.

A copy that is asked to stop answers `Paused`, and what comes from it before that answer is not looked at:
it may have been asked again meanwhile, and what it sent on the first request would leave a gap before what
it sends on the second.

*Take-over.* When the sender is gone, by a broken connection or because the controller says so, the other
copy is asked for the rest. Numbers rise, so nothing is taken twice whoever sends.

*Catch-up of a producer.* Both copies say `PSync(v)`; the order makes no difference. A newcomer that both
have spoken for is acknowledged to from then on, and courted if it belongs to this dataflow. If the active
copy dies before both have spoken, the newcomer's word is enough: its state holds or will produce whatever
this consumer has not acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.errors import PeerError, require
from understudy.core.fold_in import spoken_for
from understudy.core.instructions import FoldedIn, Instruction, Send, Take
from understudy.core.machine import Machine
from understudy.core.messages import (
    Ack,
    Attached,
    Data,
    Detached,
    From,
    Pause,
    Paused,
    PSync,
    Reverse,
    Taken,
)
from understudy.core.view import Activated, Avail, Fail, Slot, Status


class Inlet(Machine):
    """One pair of producers, one consumer, each bucket once."""

    def __init__(
        self,
        name: str,
        statuses: Mapping[Slot, Status],
        *,
        own: Slot | None = None,
        through: BucketId = NOTHING,
    ) -> None:
        super().__init__(name)
        self.status = dict(statuses)
        self.own = own
        self.attached: set[Slot] = set()
        self.sender: Slot | None = None
        self.courted: Slot | None = None
        self.received = through
        self.taken = through
        self.version: dict[Slot, int | None] = dict.fromkeys(self.status)
        self._pausing: dict[Slot, int] = dict.fromkeys(self.status, 0)
        #: The last number that each copy sent since it was asked.
        self._heard: dict[Slot, BucketId] = dict.fromkeys(self.status, through)

    def _handle(self, event: object) -> list[Instruction]:
        match event:
            case From(slot, Data(bucket)):
                return self._data(slot, bucket)
            case From(slot, Paused()):
                if not self._pausing[slot]:
                    raise PeerError(f"{slot.value} paused without being asked to")
                self._pausing[slot] -= 1
                return []
            case From(slot, PSync(version)):
                return self._psync(slot, version)
            case Taken(through):
                return self._take(through)
            case Attached(slot, _, version):
                return self._attach(slot, version)
            case Detached(slot):
                return self._detach(slot)
            case Fail(slot):
                self.status[slot] = Status.DEAD
                self.version[slot] = None
                return self._fold_in() + self._detach(slot)
            case Avail(slot):
                if self.status[slot] is not Status.DEAD:
                    raise PeerError(f"a standby came for {slot.value}, which is {self.status[slot].name}")
                self.status[slot] = Status.STDBY
                return []
            case Activated(slot):
                return self._activated(slot)
            case _:
                raise PeerError(f"an inlet does not take {event}")

    # --- normal case -------------------------------------------------------------------------------------

    def _data(self, slot: Slot, bucket: Bucket) -> list[Instruction]:
        if slot not in (self.sender, self.courted) or self._pausing[slot]:
            # Sent before that copy heard that another one sends now, or that it is asked anew.
            return []
        if bucket.number <= self._heard[slot]:
            raise PeerError(f"{slot.value} sent bucket {bucket.number} after {self._heard[slot]}")
        self._heard[slot] = bucket.number
        if bucket.number <= self.received:
            # It is behind, and another one brought this already.
            return []
        self.received = bucket.number
        return [Take(bucket), *(self._won() if slot is self.courted else [])]

    def _won(self) -> list[Instruction]:
        """The courted copy is as far as the sender: it sends from now on."""
        former, self.sender, self.courted = self.sender, self.courted, None
        if former is None:
            return []
        self._pausing[former] += 1
        return [Send(former, Pause())]

    def _take(self, through: BucketId) -> list[Instruction]:
        require(self.taken <= through <= self.received, f"{through} was taken of {self.received} received")
        self.taken = through
        active = [slot for slot in self.status if slot in self.attached and self._active(slot)]
        return [Send(slot, Ack(through)) for slot in active]

    # --- connections and take-over -----------------------------------------------------------------------

    def _attach(self, slot: Slot, version: int) -> list[Instruction]:
        if self.status[slot] is Status.DEAD:
            raise PeerError(f"{slot.value} is dead and attached")
        self.attached.add(slot)
        self._pausing[slot] = 0
        if self.status[slot] is Status.STDBY:
            return []
        self.version[slot] = version
        # The same copy over a new connection: what was on its way is gone, so it begins again.
        self._forget(slot)
        # It may be a newcomer that never heard it, because the last connection broke.
        again: list[Instruction] = [FoldedIn(slot)] if version else []
        return [*again, *self._acknowledge(slot), *self._fold_in(), *self._choose_sender()]

    def _detach(self, slot: Slot) -> list[Instruction]:
        self.attached.discard(slot)
        self._forget(slot)
        return self._choose_sender()

    def _forget(self, slot: Slot) -> None:
        if self.sender is slot:
            self.sender = None
        if self.courted is slot:
            self.courted = None

    def _choose_sender(self) -> list[Instruction]:
        """Keep the sender there is, else take the courted one, else ask another; court the copy of this
        dataflow.
        """
        candidates = [slot for slot in self.status if slot in self.attached and self._active(slot)]
        told: list[Instruction] = []
        if self.sender is None and self.courted is not None:
            self.sender, self.courted = self.courted, None
        if self.sender is None and candidates:
            self.sender = self.own if self.own in candidates else candidates[0]
            told += self._ask(self.sender)
        if self.own in candidates and self.own not in (self.sender, self.courted):
            assert self.own is not None
            self.courted = self.own
            told += self._ask(self.own)
        return told

    def _ask(self, slot: Slot) -> list[Instruction]:
        self._heard[slot] = self.received
        return [Send(slot, Reverse(self.received))]

    def _acknowledge(self, slot: Slot) -> list[Instruction]:
        return [Send(slot, Ack(self.taken))] if self.taken > NOTHING else []

    def _active(self, slot: Slot) -> bool:
        return self.status[slot] is Status.ACTIVE

    # --- catch-up ----------------------------------------------------------------------------------------

    def _psync(self, slot: Slot, version: int) -> list[Instruction]:
        if slot not in self.attached:
            raise PeerError(f"a psync of {slot.value} came over a connection that is not there")
        self.version[slot] = version
        return [*self._fold_in(), *self._choose_sender()]

    def _fold_in(self) -> list[Instruction]:
        newcomer = spoken_for(self.status, self.version, self.attached)
        if newcomer is None:
            return []
        self.status[newcomer] = Status.ACTIVE
        return [*self._acknowledge(newcomer), FoldedIn(newcomer)]

    def _activated(self, slot: Slot) -> list[Instruction]:
        """The controller calls a newcomer active. News only to one that never heard it named."""
        if self.status[slot] is Status.DEAD:
            raise PeerError(f"{slot.value} is dead and was called active")
        if self.status[slot] is Status.ACTIVE:
            return []
        self.status[slot] = Status.ACTIVE
        return [*self._acknowledge(slot), *self._choose_sender()] if slot in self.attached else []

    def check(self) -> None:
        require(self.taken <= self.received, "more was handed on than received")
        if self.sender is not None:
            require(self.sender in self.attached, f"{self.sender.value} is to send but is not attached")
            require(self._active(self.sender), f"{self.sender.value} sends but is not active")
        if self.courted is not None:
            require(self.sender not in (None, self.courted), f"{self.courted.value} is courted for nothing")
            require(self.courted in self.attached, f"{self.courted.value} is courted and is not attached")
