"""Outlet: a producer's end of an edge towards the copies of one consumer (Flux paper, sections 5.1-5.3).

An outlet keeps every bucket until each live copy of the consumer has acknowledged it. It sends to a copy
that asked for it: `Reverse(n)` says "I have everything through n, send me the rest". In normal running the
consumer of the same dataflow has asked, and the others have not, because they take the same buckets from
the producer's replicas. So each bucket crosses the network once per dataflow, and its acknowledgements,
which go to all replicas of the producer, let all of them forget it.

This is the normal case of figure 7 with one difference. There a producer counts what it has sent to its own
consumer as delivered, and takes acknowledgements from the other one alone. A connection that breaks without a
death would then lose what was on its way. Here every consumer acknowledges to every producer, by a single
number, and a connection that is made again goes on from that number.

*Take-over.* The outlet no longer waits for a dead copy of the consumer. If none is alive, it keeps
everything: a full buffer stops the producer, but a dropped bucket would be gone for good. A consumer whose
producer is dead asks this one by `Reverse`; the outlet leaves out the buckets that the consumer has.

*Catch-up of a consumer.* From the moment that a view seats a newcomer (`Avail`), the outlet keeps for it all
that some live copy has not acknowledged. That is enough, with no agreement on a checkpoint. The lender, the
copy that lends its state, takes its snapshot after it has seen that view, and sends the view ahead of
everything else; so when `Avail` is handled here, the lender has acknowledged at most what the snapshot holds.
The newcomer then attaches with the number that its state holds, and is sent the rest. docs/catch-up.md says
why the paper needs more.

*Catch-up of the producer itself.* The outlet's buffer moves with the state of its partition. No consumer has
asked the newcomer yet, so it sends nothing until one does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.edge.buffer import Buffer
from understudy.core.edge.messages import (
    Ack,
    Attached,
    Data,
    Detached,
    From,
    Pause,
    Paused,
    Put,
    Reverse,
    Send,
    require_rising,
)
from understudy.core.errors import PeerError, require
from understudy.core.view.changes import Activated, Avail, Fail
from understudy.core.view.view import Status


@dataclass(frozen=True, slots=True)
class OutletState:
    """What an outlet keeps, as it moves with a copy's state; floors by replica of the consumer."""

    kept: tuple[Bucket, ...]
    produced_through: BucketId
    gone_through: BucketId
    floors: tuple[tuple[int, BucketId], ...]

    def __post_init__(self) -> None:
        require_rising(self.kept, self.gone_through)
        last = self.kept[-1].number if self.kept else self.gone_through
        require(last <= self.produced_through, f"{last} is said to be produced after {self.produced_through}")


class Outlet:
    """One producer, the copies of one consumer partition."""

    def __init__(
        self,
        name: str,
        statuses: Mapping[int, Status],
        *,
        buckets_max: int = 100_000,
        bytes_max: int = 256 * 2**20,
    ) -> None:
        self.name = name
        self.status = dict(statuses)
        self.buffer = Buffer(self.status, buckets_max=buckets_max, bytes_max=bytes_max)
        self.attached: set[int] = set()
        self.sending: set[int] = set()
        #: What each copy of the consumer had acknowledged to the copy whose state was moved here, until it
        #: attaches.
        self._acked_to_lender: dict[int, BucketId] = {}

    @property
    def live(self) -> list[int]:
        """The copies whose acknowledgements count."""
        return [replica for replica, status in self.status.items() if status is not Status.DEAD]

    @property
    def full(self) -> bool:
        """Whether the producer must wait."""
        return self.buffer.full

    def handle(self, event: object) -> list[Send]:
        match event:
            case Put(buckets):
                self.buffer.put(buckets, self.live)
            case From(replica, Ack(through)):
                self._expect_attached(replica, event)
                self.buffer.ack(replica, through)
                self.buffer.trim(self.live)
            case From(replica, Reverse(through)):
                self._expect_attached(replica, event)
                self._expect_kept(replica, through)
                self.buffer.rewind(replica, through)
                self.sending.add(replica)
            case From(replica, Pause()):
                self._expect_attached(replica, event)
                self.sending.discard(replica)
                return [Send(replica, Paused())]
            case Attached(replica, through):
                self._attach(replica, through)
            case Detached(replica):
                self._detach(replica)
            case Fail(replica):
                self._fail(replica)
            case Avail(replica):
                self._avail(replica)
            case Activated(replica):
                self._expect_live(replica, "was called active")
                self.status[replica] = Status.ACTIVE
            case _:
                raise PeerError(f"an outlet does not take {event}")
        return self._sends()

    def _sends(self) -> list[Send]:
        return [
            Send(replica, Data(buckets))
            for replica in self.status
            if replica in self.sending and (buckets := self.buffer.unsent(replica))
        ]

    # --- take-over and catch-up --------------------------------------------------------------------------

    def _fail(self, replica: int) -> None:
        self.status[replica] = Status.DEAD
        self._acked_to_lender.pop(replica, None)
        self._detach(replica)
        self.buffer.trim(self.live)

    def _avail(self, replica: int) -> None:
        if self.status[replica] is not Status.DEAD:
            raise PeerError(f"a standby came for replica {replica}, which is {self.status[replica].name}")
        self.buffer.reserve(replica, self.live)
        self.status[replica] = Status.STDBY

    # --- connections -------------------------------------------------------------------------------------

    def expect(self, replica: int, through: BucketId) -> None:
        """Raise `PeerError` unless this replica may attach with everything through this number."""
        self._expect_live(replica, "attached")
        if through < self.buffer.gone_through:
            gone = self.buffer.gone_through
            raise PeerError(f"replica {replica} needs what follows {through}, and {gone} is gone")

    def outdated(self, replica: int, through: BucketId) -> bool:
        """Whether a copy of the consumer named this number before this copy had its state: it has
        acknowledged more to the copy that lent its state.
        """
        return through < self._acked_to_lender.get(replica, NOTHING)

    def _attach(self, replica: int, through: BucketId) -> None:
        self.expect(replica, through)
        self._acked_to_lender.pop(replica, None)
        self.attached.add(replica)
        self.sending.discard(replica)
        self.buffer.ack(replica, through)
        self.buffer.trim(self.live)

    def _detach(self, replica: int) -> None:
        self.attached.discard(replica)
        self.sending.discard(replica)

    def _expect_live(self, replica: int, what: str) -> None:
        if replica not in self.status:
            raise PeerError(f"replica {replica} is no copy of this consumer, and {what}")
        if self.status[replica] is Status.DEAD:
            raise PeerError(f"replica {replica} is dead and {what}")

    def _expect_attached(self, replica: int, event: object) -> None:
        if replica not in self.attached:
            raise PeerError(f"{event} came over a connection that is not there")

    def _expect_kept(self, replica: int, through: BucketId) -> None:
        acked = self.buffer.floor[replica]
        if through < acked:
            raise PeerError(f"replica {replica} asks for what follows {through}, but acknowledged {acked}")

    # --- moving ------------------------------------------------------------------------------------------

    def state(self) -> OutletState:
        floors = tuple((replica, self.buffer.floor[replica]) for replica in self.live)
        return OutletState(tuple(self.buffer), self.buffer.produced_through, self.buffer.gone_through, floors)

    def install(self, state: OutletState) -> None:
        """Take over the buffer of a replica. Only for an outlet that was never used."""
        floors = dict(state.floors)
        # A copy that came after the state was taken gets what the slowest of the others lacks.
        least = min(floors.values(), default=state.gone_through)
        self.buffer.adopt(
            state.kept,
            produced_through=state.produced_through,
            gone_through=state.gone_through,
            floors={replica: floors.get(replica, least) for replica in self.live},
        )
        self._acked_to_lender = {r: through for r, through in floors.items() if r in self.live}
        self.buffer.trim(self.live)

    def check(self) -> None:
        self.buffer.check(self.live)
        require(self.attached <= set(self.live), "a dead copy is attached")
        require(self.sending <= self.attached, "data is sent over a connection that is not there")
