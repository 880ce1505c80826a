"""Inlet: a consumer's end of an edge from the copies of one producer (Flux paper, sections 5.1-5.3).

An inlet takes data from one copy, the *sender*, by choice the one in its own dataflow. It asks a copy to send
by `Reverse(n)`, "I have everything through n", and to stop by `Pause`. It acknowledges to every copy, by one
number, what it has handed to its engine. Buckets that it has received and not handed on are unacknowledged
and in no checkpoint, so nothing needs to be drained before a checkpoint is taken. The paper's distributed
pause before a state movement serves that purpose.

*Probing.* When the copy in its own dataflow is connected and another copy sends, the inlet also asks its own
copy to send and goes on with the other: a newcomer may be behind, and waiting for it would be a silence. The
inlet drops buckets from the newcomer that it has already received. With the first bucket that is new here,
the newcomer becomes the sender, and the other copy is asked to stop. The inlet asked both for everything
after a number at or before its position, and both have the same rows under the same numbers; so there is no
gap, whichever of them brings the next bucket.

A copy that is asked to stop answers `Paused`, and the inlet ignores all that comes from it before that
answer: the copy may have been asked again meanwhile, and there would be a gap between what it sent on the
first request and what it sends on the second. A new connection carries nothing of the old one, so the inlet
awaits no answer on it.

*Take-over.* When the sender is gone, by a broken connection or because the controller says so, the inlet asks
another copy for the rest. Numbers rise, so it takes nothing twice, whichever copy sends.

*Catch-up of a producer.* A newcomer that has its state keeps or will produce all that this consumer has not
acknowledged: the buffer it was given was that of a live copy, whose floor for this consumer was at or below
what this consumer had taken. So it is treated like any other copy as soon as it is connected.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.edge.messages import (
    Ack,
    Attached,
    Data,
    Detached,
    From,
    Held,
    Pause,
    Paused,
    Reverse,
    Send,
    Take,
    Taken,
)
from understudy.core.errors import PeerError, require
from understudy.core.view.changes import Activated, Avail, Fail
from understudy.core.view.view import Status


class Inlet:
    """The copies of one producer partition, one consumer, each bucket once."""

    def __init__(
        self,
        name: str,
        statuses: Mapping[int, Status],
        *,
        own: int | None = None,
        through: BucketId = NOTHING,
        passive: bool = False,
    ) -> None:
        self.name = name
        self.status = dict(statuses)
        self.own = own
        #: A backup's inlet acknowledges what its snapshot holds, and asks no copy to send.
        self.passive = passive
        self.attached: set[int] = set()
        self.sender: int | None = None
        self.probed: int | None = None
        self.received = through
        self.taken = through
        #: What the store holds of this partition; None until a copy has saved.
        self.held: BucketId | None = None
        self._pausing: dict[int, int] = dict.fromkeys(self.status, 0)
        #: The last number that each copy sent since it was asked.
        self._heard: dict[int, BucketId] = dict.fromkeys(self.status, through)

    def handle(self, event: object) -> list[Send | Take]:
        match event:
            case From(replica, Data(buckets)):
                return self._data(replica, buckets)
            case From(replica, Paused()):
                if not self._pausing[replica]:
                    raise PeerError(f"replica {replica} paused without being asked to")
                self._pausing[replica] -= 1
                return []
            case Taken(through):
                return self._take(through)
            case Held(through):
                self.held = through if self.held is None else max(through, self.held)
                return [Send(replica, Held(self.held)) for replica in sorted(self.attached)]
            case Attached(replica):
                return self._attach(replica)
            case Detached(replica):
                return self._detach(replica)
            case Fail(replica):
                self.status[replica] = Status.DEAD
                return self._detach(replica)
            case Avail(replica):
                if self.status[replica] is not Status.DEAD:
                    raise PeerError(f"a standby came for replica {replica}: {self.status[replica].name}")
                self.status[replica] = Status.STDBY
                return []
            case Activated(replica):
                if self.status[replica] is Status.DEAD:
                    raise PeerError(f"replica {replica} is dead and was called active")
                self.status[replica] = Status.ACTIVE
                return []
            case _:
                raise PeerError(f"an inlet does not take {event}")

    # --- normal case -------------------------------------------------------------------------------------

    def _data(self, replica: int, buckets: tuple[Bucket, ...]) -> list[Send | Take]:
        if replica not in (self.sender, self.probed) or self._pausing[replica]:
            # Sent before that copy heard that another one sends now, or that it is asked anew.
            return []
        heard = self._heard[replica]
        for bucket in buckets:
            if bucket.number <= heard:
                raise PeerError(f"replica {replica} sent bucket {bucket.number} after {heard}")
            heard = bucket.number
        self._heard[replica] = heard
        if heard <= self.received:
            # It is behind, and another one brought this already.
            return []
        if buckets[0].number <= self.received:
            buckets = buckets[bisect_right(buckets, self.received, key=lambda bucket: bucket.number) :]
        self.received = heard
        return [Take(buckets), *(self._won() if replica == self.probed else [])]

    def _won(self) -> list[Send | Take]:
        """The probed copy is as far as the sender: it sends from now on."""
        former, self.sender, self.probed = self.sender, self.probed, None
        if former is None:
            return []
        self._pausing[former] += 1
        return [Send(former, Pause())]

    def _take(self, through: BucketId) -> list[Send | Take]:
        require(self.taken <= through <= self.received, f"{through} was taken of {self.received} received")
        self.taken = through
        return [Send(replica, Ack(through)) for replica in sorted(self.attached)]

    def hold(self, through: BucketId) -> list[Send | Take]:
        """The backup's snapshot holds everything through this number."""
        require(self.passive, f"{self.name} takes data, and was told what it holds")
        self.received = self.taken = max(self.taken, through)
        return [Send(replica, Ack(self.taken)) for replica in sorted(self.attached)]

    def take_over(self) -> list[Send | Take]:
        """The backup works from now on."""
        self.passive = False
        return self._choose_sender()

    # --- connections and take-over -----------------------------------------------------------------------

    def _attach(self, replica: int) -> list[Send | Take]:
        if self.status[replica] is Status.DEAD:
            raise PeerError(f"replica {replica} is dead and attached")
        self.attached.add(replica)
        self._pausing[replica] = 0
        # The same copy over a new connection: what was on its way is gone, so it begins again.
        self._forget(replica)
        acknowledged = [Send(replica, Ack(self.taken))] if self.taken > NOTHING else []
        held = [Send(replica, Held(self.held))] if self.held is not None else []
        return [*acknowledged, *held, *self._choose_sender()]

    def _detach(self, replica: int) -> list[Send | Take]:
        self.attached.discard(replica)
        self._forget(replica)
        return self._choose_sender()

    def _forget(self, replica: int) -> None:
        if self.sender == replica:
            self.sender = None
        if self.probed == replica:
            self.probed = None

    def _choose_sender(self) -> list[Send | Take]:
        """Keep the sender there is, else take the probed copy, else ask another; probe the own copy."""
        asked: list[Send | Take] = []
        if self.passive:
            return asked
        if self.sender is None and self.probed is not None:
            self.sender, self.probed = self.probed, None
        if self.sender is None and self.attached:
            # A newcomer may be far behind; it is asked only if it is the own one, or the only one.
            active = [r for r in self.attached if self.status[r] is Status.ACTIVE]
            self.sender = self.own if self.own in (active or self.attached) else min(active or self.attached)
            assert self.sender is not None
            asked += self._ask(self.sender)
        if self.own is not None and self.own in self.attached and self.own not in (self.sender, self.probed):
            self.probed = self.own
            asked += self._ask(self.own)
        return asked

    def _ask(self, replica: int) -> list[Send | Take]:
        self._heard[replica] = self.received
        return [Send(replica, Reverse(self.received))]

    def check(self) -> None:
        require(self.taken <= self.received, "more was handed on than received")
        live = {replica for replica, status in self.status.items() if status is not Status.DEAD}
        require(self.attached <= live, "a dead copy is attached")
        if self.sender is not None:
            require(self.sender in self.attached, f"replica {self.sender} is to send but is not attached")
        else:
            idle = self.passive or not self.attached
            require(idle, "copies are attached, and none of them is asked to send")
        if self.probed is not None:
            require(self.sender not in (None, self.probed), f"replica {self.probed} is probed for nothing")
            require(self.probed in self.attached, f"replica {self.probed} is probed and is not attached")
