"""A newcomer, its lender and its neighbours, where their messages meet in an unlucky order."""

from __future__ import annotations

from collections.abc import Iterable

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.messages import Ack, Attached
from understudy.core.edge.outlet import OutletState
from understudy.core.host.host import Host
from understudy.core.host.parcels import (
    Attach,
    Cut,
    Dispatch,
    Here,
    HostInstruction,
    Inside,
    Offering,
    Parcel,
    ParcelFrom,
    PeerUp,
    Relay,
    Request,
    Say,
    ViewSeen,
    Welcome,
)
from understudy.core.host.places import GATEWAY
from understudy.core.replica.consumer import Consumer
from understudy.core.replica.events import AtEdge, CaughtUp, CopyState, Installed, Offered, Produced
from understudy.core.replica.producer import Producer
from understudy.core.replica.replica import Replica
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import chain_of
from understudy.core.view.view import Seat, Seats, Status, View

TOPOLOGY = chain_of(f=1)
F, SOURCE, SINK = Partition("f"), Partition("source"), Partition("sink")
ACTIVE, DEAD, STDBY = Status.ACTIVE, Status.DEAD, Status.STDBY


def view(epoch: int, second: Seat) -> View:
    return View(epoch, {F: Seats(epoch, (Seat("a", 1, ACTIVE), second))})


BOTH = view(1, Seat("b", 1, ACTIVE))
ONE = view(2, Seat("b", 1, DEAD))
NEWCOMER = view(3, Seat("c", 3, STDBY))
ALL_ACTIVE = view(4, Seat("c", 3, ACTIVE))


def parcels(done: Iterable[HostInstruction], to: str) -> list[Parcel]:
    return [each.parcel for each in done if isinstance(each, Dispatch) and each.node == to]


def state(through: int) -> CopyState:
    outlet = OutletState((), through, through, ((0, through),))
    return CopyState(1, through, ((SINK, outlet),))


def test_a_newcomer_waits_for_no_more_than_the_slowest_of_its_producers_had_put_out() -> None:
    fast, slow = Partition("fast"), Partition("slow")
    below = Consumer("below", 0, {fast: {0: ACTIVE}, slow: {0: ACTIVE}})
    replica = Replica(Copy(F), below, Producer("above", {SINK: {0: ACTIVE}}))
    replica.borrow()
    replica.handle(Offered(Copy(F, 1), 1, 1))
    replica.handle(Installed(1, state(5)))
    replica.handle(AtEdge(SINK, Attached(0, 5)))
    replica.handle(AtEdge(fast, Attached(0, 16)))
    assert CaughtUp() in replica.handle(AtEdge(slow, Attached(0, 5)))


def test_a_consumer_that_tried_before_the_newcomer_had_its_state_is_asked_to_try_again() -> None:
    host = Host("c", TOPOLOGY)
    host.handle(ViewSeen(NEWCOMER))
    host.handle(PeerUp("a", 1))
    host.handle(PeerUp(GATEWAY, 2))
    host.handle(ParcelFrom("a", 1, Offering(Copy(F), 1, Copy(F, 1), 3, 1, 1)))
    host.handle(Inside(Copy(F, 1), 3, Installed(1, state(22))))
    tried = Attach(Copy(SINK), 0, Copy(F, 1), 3, 1, through=15)
    done = host.handle(ParcelFrom(GATEWAY, 2, tried))
    assert not [each for each in done if isinstance(each, Cut)]
    assert parcels(done, GATEWAY) == [Here(Copy(F, 1), 3)]
    again = Attach(Copy(SINK), 0, Copy(F, 1), 3, 2, through=22)
    assert Welcome(Copy(F, 1), Copy(SINK), 2, 22) in parcels(
        host.handle(ParcelFrom(GATEWAY, 2, again)), GATEWAY
    )


def test_a_standby_asks_again_when_it_can_reach_the_lender() -> None:
    host = Host("c", TOPOLOGY)
    host.handle(ViewSeen(NEWCOMER))
    assert Request(Copy(F, 1), 3, Copy(F), 1) in parcels(host.handle(PeerUp("a", 1)), "a")


def test_a_gateway_keeps_for_a_newcomer_that_it_heard_of_before_its_first_view() -> None:
    """The lender has sent the view that seats the newcomer, and acknowledges what its snapshot lacks."""
    host = Host(GATEWAY, TOPOLOGY)
    host.handle(PeerUp("a", 1))
    host.handle(ParcelFrom("a", 1, Relay(NEWCOMER)))
    host.handle(ViewSeen(ONE))
    host.handle(Inside(Copy(SOURCE), 0, Produced(((F, (Bucket(1, "rows", 1), Bucket(2, "rows", 1))),))))
    host.handle(ParcelFrom("a", 1, Attach(Copy(F), 1, Copy(SOURCE), 0, 1, NOTHING)))
    host.handle(ParcelFrom("a", 1, Say(Copy(F), Copy(SOURCE), 1, Ack(2))))
    source = host.end("source")
    assert source is not None
    assert source.above is not None
    assert [bucket.number for bucket in source.above.outlets[F].buffer] == [1, 2]
