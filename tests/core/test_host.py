"""A host: seats, edges, and who may speak over them."""

from __future__ import annotations

from collections.abc import Iterable

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.exchange import ProducedFor
from understudy.core.flux_view import FluxView
from understudy.core.host import GATEWAY, Host
from understudy.core.instructions import Process
from understudy.core.messages import Ack, Data, Reverse
from understudy.core.parcels import (
    Attach,
    Began,
    Carry,
    Cut,
    Dispatch,
    Here,
    HostInstruction,
    Inside,
    LeaveSeat,
    Parcel,
    ParcelFrom,
    PeerDown,
    PeerUp,
    Relay,
    Say,
    TakeSeat,
    ViewSeen,
    Welcome,
)
from understudy.core.partition import Copy, Partition
from understudy.core.topology import INGRESS, chain_of
from understudy.core.view import Seat, Slot, Status, View

TOPOLOGY = chain_of(f=1)
F = Partition("f", 0)
PRIM, SEC = Copy(F, Slot.PRIM), Copy(F, Slot.SEC)
SOURCE = Copy(INGRESS, Slot.PRIM)


def view(epoch: int, prim: str = "a", sec: str = "b", *, sec_epoch: int = 1, dead: bool = False) -> FluxView:
    status = Status.DEAD if dead else (Status.ACTIVE if sec_epoch == 1 else Status.STDBY)
    seats = {Slot.PRIM: Seat(prim, 1, Status.ACTIVE), Slot.SEC: Seat(sec, sec_epoch, status)}
    return FluxView(epoch, {F: View(max(1, min(epoch, sec_epoch)) if not dead else epoch, seats)})


def parcels(done: Iterable[HostInstruction], to: str) -> list[Parcel]:
    return [each.parcel for each in done if isinstance(each, Dispatch) and each.node == to]


def node(name: str = "a") -> Host:
    """A node with its copy ready and its connection to the gateway up."""
    host = Host(name, TOPOLOGY)
    host.handle(ViewSeen(view(1)))
    host.handle(PeerUp(GATEWAY))
    return host


def test_a_node_takes_the_seats_that_the_first_view_gives_it() -> None:
    host = Host("b", TOPOLOGY)
    assert host.handle(ViewSeen(view(1))) == [TakeSeat(SEC, 1, Status.ACTIVE)]
    assert host.needed == {GATEWAY}


def test_a_copy_opens_its_edges_and_says_that_it_is_here_once_it_has_begun() -> None:
    host = node()
    relay, attach, here = parcels(host.handle(Began(PRIM, 1)), GATEWAY)
    assert isinstance(relay, Relay), "a view goes ahead of what is done because of it"
    assert attach == Attach(PRIM, 1, SOURCE, 0, 1, NOTHING, 0, NOTHING)
    assert here == Here(PRIM, 1)


def test_an_edge_counts_from_the_answer_to_the_latest_attempt_only() -> None:
    host = node()
    host.handle(Began(PRIM, 1))
    host.handle(PeerDown(GATEWAY))
    (attach,) = [p for p in parcels(host.handle(PeerUp(GATEWAY)), GATEWAY) if isinstance(p, Attach)]
    late = host.handle(ParcelFrom(GATEWAY, Welcome(SOURCE, PRIM, attach.serial - 1, 0)))
    assert late == []
    done = parcels(host.handle(ParcelFrom(GATEWAY, Welcome(SOURCE, PRIM, attach.serial, 0))), GATEWAY)
    assert done == [Say(PRIM, SOURCE, attach.serial, (Reverse(NOTHING),))]


def test_what_comes_over_an_edge_that_is_no_more_is_left_out() -> None:
    host = node()
    host.handle(Began(PRIM, 1))
    host.handle(ParcelFrom(GATEWAY, Welcome(SOURCE, PRIM, 1, 0)))
    data = Data(Bucket(4, "rows", 1))
    assert host.handle(ParcelFrom(GATEWAY, Say(SOURCE, PRIM, 2, (data,)))) == []
    done = host.handle(ParcelFrom(GATEWAY, Say(SOURCE, PRIM, 1, (data,))))
    (carried,) = [each.instruction for each in done if isinstance(each, Carry)]
    assert isinstance(carried, Process)
    assert Say(PRIM, SOURCE, 1, (Ack(4),)) in parcels(done, GATEWAY)


def test_a_copy_whose_seat_was_given_away_is_dropped_and_what_it_still_does_is_void() -> None:
    host = node("b")
    host.handle(Began(SEC, 1))
    assert host.handle(ViewSeen(view(2, dead=True))) == [LeaveSeat(SEC, 1)]
    assert host.handle(Inside(SEC, 1, (ProducedFor(F, Bucket(1)),))) == []
    assert host.handle(Began(SEC, 1)) == []


def test_a_node_may_sit_in_the_same_seat_again_under_a_later_epoch() -> None:
    host = node("b")
    host.handle(ViewSeen(view(2, dead=True)))
    done = host.handle(ViewSeen(view(3, sec_epoch=3)))
    assert done[0] == TakeSeat(SEC, 3, Status.STDBY)


def gateway() -> Host:
    host = Host(GATEWAY, TOPOLOGY)
    host.handle(ViewSeen(view(1)))
    for name in ("a", "b"):
        host.handle(PeerUp(name))
    return host


def test_only_who_holds_the_seat_may_open_an_edge() -> None:
    host = gateway()
    attach = Attach(PRIM, 1, SOURCE, 0, 9, NOTHING, 0, NOTHING)
    assert parcels(host.handle(ParcelFrom("b", attach)), "b") == []
    welcome = parcels(host.handle(ParcelFrom("a", attach)), "a")
    assert Welcome(SOURCE, PRIM, 9, 0) in welcome


def test_a_view_that_others_act_on_is_acted_on_first() -> None:
    host = gateway()
    host.handle(ParcelFrom("a", Relay(view(2, dead=True))))
    assert host.view is not None
    assert host.view.epoch == 2
    assert host.handle(ViewSeen(view(1))) == [], "views never go back"


def test_a_peer_that_breaks_the_protocol_is_cut_off_and_what_it_said_before_stands() -> None:
    host = node()
    host.handle(Began(PRIM, 1))
    host.handle(ParcelFrom(GATEWAY, Welcome(SOURCE, PRIM, 1, 0)))
    twice = (Data(Bucket(4, "rows", 1)), Data(Bucket(4, "rows", 1)))
    done = host.handle(ParcelFrom(GATEWAY, Say(SOURCE, PRIM, 1, twice)))
    assert any(isinstance(each, Carry) for each in done)
    assert isinstance(done[-1], Cut)
    assert done[-1].node == GATEWAY
