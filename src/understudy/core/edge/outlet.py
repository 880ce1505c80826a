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

*All copies of the consumer are lost.* With `stored`, the consumer's state is saved in a store, and a copy may
begin again from there. The store counts like a replica that is always alive: its floor is the number of the
oldest snapshot that it keeps, which the consumer's copies tell (`Held`). So everything after that number is
kept, whichever snapshot a copy begins with. A copy that an outlet cannot serve is told so (`lacks`), and goes
back to a saved state again, together with the producer. There are two reasons: a gap in the reserve; or a
copy that was declared dead and does not know yet has saved newer states, so that the one that the other copy
began with is none of those that the store keeps now.

*A log behind it.* With `backed`, the producer is a source and has all of that in its log. The outlet then
keeps nothing in memory for the store; a copy that attaches with a number from before its memory gets the log
read again (`core.edge.refill`). `log_needed` says from where on the log may still be read.
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
    Held,
    Pause,
    Paused,
    Put,
    Refilled,
    Reread,
    Reverse,
    Send,
    require_rising,
)
from understudy.core.edge.refill import PIECE_BYTES, Refill
from understudy.core.errors import PeerError, require
from understudy.core.shape.partition import STORE
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
    """One producer, the copies of one consumer partition.

    Of a source with a log, `through` says how far its memory was trimmed before it began again, and
    `forgotten` how much of the log is gone.
    """

    def __init__(
        self,
        name: str,
        statuses: Mapping[int, Status],
        *,
        buckets_max: int = 100_000,
        bytes_max: int = 256 * 2**20,
        stored: bool = False,
        backed: bool = False,
        through: BucketId = NOTHING,
        forgotten: BucketId = NOTHING,
    ) -> None:
        self.name = name
        self.status = dict(statuses)
        self.stored = stored
        self.backed = stored and backed
        kept_for = (*self.status, STORE) if stored and not backed else tuple(self.status)
        self.buffer = Buffer(kept_for, buckets_max=buckets_max, bytes_max=bytes_max, through=through)
        self.attached: set[int] = set()
        self.sending: set[int] = set()
        self.refills: dict[int, Refill] = {}
        #: Replicas that have a new seat and were not heard of since: what they have is not known yet.
        self._unheard: set[int] = set()
        #: With a log: what the store and each replica have, also from before this memory.
        self._log_floor: dict[int, BucketId] = (
            dict.fromkeys((*self.status, STORE), NOTHING) if self.backed else {}
        )
        #: How much of the log may be gone.
        self._log_gone = forgotten
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

    @property
    def _reserved(self) -> tuple[int, ...]:
        return (STORE,) if STORE in self.buffer.floor else ()

    @property
    def store_floor(self) -> BucketId:
        """What the oldest snapshot of the consumer holds that the store keeps, as far as is known here."""
        return self._log_floor[STORE] if self.backed else self.buffer.floor.get(STORE, NOTHING)

    @property
    def gap(self) -> bool:
        """Whether a copy that begins again from the oldest saved snapshot would lack something here."""
        return bool(self._reserved) and self.store_floor < self.buffer.gone_through

    @property
    def taken_through(self) -> BucketId:
        """What every live copy of the consumer has acknowledged, as far as was heard here."""
        floors = self._log_floor if self.backed else self.buffer.floor
        return min((floors[replica] for replica in self.live), default=NOTHING)

    def owes_rows(self, replica: int) -> bool:
        """Whether this copy of the consumer may have rows to come of what was put out: it has not
        acknowledged a bucket with rows that is kept here, or one that only the log has by now.
        """
        floor = (self._log_floor if self.backed else self.buffer.floor)[replica]
        if floor < self.buffer.gone_through:
            return True
        return bool(self.buffer.size_bytes) and floor < self.buffer.last_with_rows

    @property
    def log_needed(self) -> BucketId:
        """Everything through this number may go from the log, as far as this consumer is concerned."""
        if not self.backed:
            return self.buffer.gone_through if len(self.buffer) else self.buffer.produced_through
        return min(self._log_floor[each] for each in (STORE, *self.live))

    def handle(self, event: object) -> list[Send | Reread]:
        match event:
            case Put(buckets):
                self.buffer.put(buckets, self.live, self._reserved)
            case From(replica, Ack(through)):
                self._expect_attached(replica, event)
                self._acknowledged(replica, through)
            case From(replica, Held(through)):
                self._expect_attached(replica, event)
                self._held(through)
            case From(replica, Reverse(through)):
                self._expect_attached(replica, event)
                self._expect_kept(replica, through)
                self._begin_sending(replica, through)
            case From(replica, Pause()):
                self._expect_attached(replica, event)
                self.sending.discard(replica)
                self.refills.pop(replica, None)
                return [Send(replica, Paused())]
            case Refilled(replica, after, buckets):
                return [*self._refilled(replica, after, buckets), *self._sends()]
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

    def _sends(self) -> list[Send | Reread]:
        done: list[Send | Reread] = []
        for replica in self.status:
            if replica not in self.sending:
                continue
            refill = self.refills.get(replica)
            if refill is None:
                if buckets := self.buffer.unsent(replica):
                    done.append(Send(replica, Data(buckets)))
            elif refill.due:
                refill.asked = True
                done.append(Reread(replica, refill.after, PIECE_BYTES))
        return done

    def _trim(self) -> None:
        self.buffer.trim(self.live, self._reserved)
        if self.backed:
            self._log_gone = max(self._log_gone, self.log_needed)

    def _acknowledged(self, replica: int, through: BucketId) -> None:
        self.buffer.ack(replica, through)
        if self.backed:
            self._log_floor[replica] = max(self._log_floor[replica], through)
        if replica in self.refills:
            self.refills[replica].acknowledged(through)
        self._trim()

    def _held(self, through: BucketId) -> None:
        if self.backed:
            self._log_floor[STORE] = max(self._log_floor[STORE], through)
        elif self.stored:
            self.buffer.ack(STORE, through)
        self._trim()

    # --- the log -----------------------------------------------------------------------------------------

    def _begin_sending(self, replica: int, after: BucketId) -> None:
        self.sending.add(replica)
        self.refills.pop(replica, None)
        if after < self.buffer.gone_through:
            self.refills[replica] = Refill(after)
        else:
            self.buffer.rewind(replica, after)

    def _refilled(self, replica: int, after: BucketId, buckets: tuple[Bucket, ...]) -> list[Send]:
        refill = self.refills.get(replica)
        if refill is None or not refill.asked or refill.after != after:
            # It was asked for before the replica paused, was lost or began again.
            return []
        require_rising(buckets, after)
        refill.sent(buckets)
        if refill.after >= self.buffer.gone_through:
            del self.refills[replica]
            self.buffer.rewind(replica, refill.after)
        return [Send(replica, Data(buckets))]

    # --- take-over and catch-up --------------------------------------------------------------------------

    def _fail(self, replica: int) -> None:
        self.status[replica] = Status.DEAD
        self._acked_to_lender.pop(replica, None)
        self._unheard.discard(replica)
        self._detach(replica)
        self._trim()

    def _avail(self, replica: int) -> None:
        if self.status[replica] is not Status.DEAD:
            raise PeerError(f"a standby came for replica {replica}, which is {self.status[replica].name}")
        self.buffer.reserve(replica, self.live or self._reserved)
        if self.backed:
            # It may begin from the live copies' state, or from any snapshot that the store keeps now.
            self._log_floor[replica] = min(self._log_floor[each] for each in (STORE, *self.live))
        self._unheard.add(replica)
        self.status[replica] = Status.STDBY

    # --- connections -------------------------------------------------------------------------------------

    def expect(self, replica: int, through: BucketId) -> None:
        """Raise `PeerError` unless this replica may attach with everything through this number."""
        self._expect_live(replica, "attached")
        if self.lacks(through):
            gone = self._log_gone if self.backed else self.buffer.gone_through
            raise PeerError(f"replica {replica} needs what follows {through}, and {gone} is gone")

    def lacks(self, through: BucketId) -> bool:
        """Whether a copy that has everything through this number could not go on from here."""
        return through < (self._log_gone if self.backed else self.buffer.gone_through)

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
        self.refills.pop(replica, None)
        if replica in self._unheard:
            # What was kept for it was a guess. Now its number is known, and memory may go back that far.
            self._unheard.discard(replica)
            self.buffer.floor[replica] = max(through, self.buffer.gone_through)
            if self.backed:
                self._log_floor[replica] = through
        self._acknowledged(replica, through)

    def _detach(self, replica: int) -> None:
        self.attached.discard(replica)
        self.sending.discard(replica)
        self.refills.pop(replica, None)

    def _expect_live(self, replica: int, what: str) -> None:
        if replica not in self.status:
            raise PeerError(f"replica {replica} is no copy of this consumer, and {what}")
        if self.status[replica] is Status.DEAD:
            raise PeerError(f"replica {replica} is dead and {what}")

    def _expect_attached(self, replica: int, event: object) -> None:
        if replica not in self.attached:
            raise PeerError(f"{event} came over a connection that is not there")

    def _expect_kept(self, replica: int, through: BucketId) -> None:
        acked = self._log_floor[replica] if self.backed else self.buffer.floor[replica]
        if through < acked:
            raise PeerError(f"replica {replica} asks for what follows {through}, but acknowledged {acked}")

    # --- moving ------------------------------------------------------------------------------------------

    def state(self) -> OutletState:
        known = [replica for replica in self.live if replica not in self._unheard]
        floors = tuple((replica, self.buffer.floor[replica]) for replica in (*known, *self._reserved))
        return OutletState(tuple(self.buffer), self.buffer.produced_through, self.buffer.gone_through, floors)

    def install(self, state: OutletState, *, saved: bool = False) -> None:
        """Take over the buffer of a replica. Only for an outlet that was never used.

        What the state says of a replica is void if its seat was filled anew since: the successor may have
        begun with an older state. One that was `saved` may be so old that it is void of all of them, but for
        a sink, which has no seat. All that is left is kept for such a replica until it attaches. The store's
        floor stands: it never falls.
        """
        floors = dict(state.floors)
        stored = floors.pop(STORE, state.gone_through)
        void = set(floors) if saved and self.stored else self._unheard
        acked = {replica: n for replica, n in floors.items() if replica in self.live and replica not in void}
        self.buffer.adopt(
            state.kept,
            produced_through=state.produced_through,
            gone_through=state.gone_through,
            floors={
                **{replica: acked.get(replica, state.gone_through) for replica in self.live},
                **dict.fromkeys(self._reserved, stored),
            },
        )
        self._acked_to_lender = acked
        self._trim()

    def check(self) -> None:
        self.buffer.check(self.live, self._reserved)
        require(self.attached <= set(self.live), "a dead copy is attached")
        require(self.sending <= self.attached, "data is sent over a connection that is not there")
        require(self.refills.keys() <= self.sending, "the log is read for a replica that did not ask")
