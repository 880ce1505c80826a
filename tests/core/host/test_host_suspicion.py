"""Suspicion: which process a host reports, and when."""

from __future__ import annotations

from core_kit import copies, run, seats, view
from host_kit import SOURCE, TOPOLOGY, first_view, gateway, of_kind, parcels, working

from understudy.core.bucket import NOTHING
from understudy.core.edge.messages import Data, From
from understudy.core.host.host import Host
from understudy.core.host.limits import Timing
from understudy.core.host.parcels import (
    Attach,
    Cut,
    Here,
    Inside,
    ParcelFrom,
    PeerDown,
    PeerUp,
    Relay,
    Say,
    Tell,
    ViewSeen,
)
from understudy.core.host.places import GATEWAY
from understudy.core.replica.events import Produced
from understudy.core.shape.topology import chain_of
from understudy.core.timers import SetTimer, TimerFired
from understudy.core.view.events import CopySuspected

FIRST, SECOND = copies("f", 2)
FIRED = TimerFired(("absent", "b"))
SUSPECTED = Tell(CopySuspected(SECOND, 1, GATEWAY))


def timer(delay_ms: int) -> SetTimer:
    return SetTimer(("absent", "b"), delay_ms)


def test_a_process_whose_connection_broke_is_suspected_unless_it_stands_again_in_time() -> None:
    host = gateway()
    assert host.handle(PeerDown("b", 1)) == [timer(300)]
    assert host.handle(FIRED) == [SUSPECTED, timer(4_000)]
    again = gateway()
    again.handle(PeerDown("b", 1))
    again.handle(PeerUp("b", 2))
    assert again.handle(FIRED) == []


def test_a_process_that_never_connected_is_suspected_later_and_again_as_long_as_it_is_needed() -> None:
    host = Host(GATEWAY, TOPOLOGY, timing=Timing(suspect_ms=1, absent_ms=7))
    assert timer(7) in host.handle(ViewSeen(first_view(2)))
    for _ in range(2):
        assert host.handle(FIRED) == [SUSPECTED, timer(7)]
    host.handle(ViewSeen(view(2, f=seats(2, "a", "b DEAD"))))
    assert host.handle(FIRED) == []


def test_a_process_that_is_not_needed_is_not_suspected() -> None:
    host = working("a")
    host.handle(PeerUp("b", 1))
    assert host.handle(PeerDown("b", 1)) == []


def test_a_process_is_awaited_once_however_many_views_name_it() -> None:
    host = Host("a", TOPOLOGY)
    host.handle(ViewSeen(first_view(2)))
    assert host.handle(ViewSeen(view(2, f=seats(2, "a", "b DEAD")))) == []


def test_a_suspicion_names_every_copy_on_that_node_with_the_epoch_of_its_seat() -> None:
    host = Host(GATEWAY, chain_of(low=1, high=1))
    host.handle(ViewSeen(view(5, low=seats(3, "a", "b@3"), high=seats(5, "b@4", "a@5 STDBY"))))
    low, high = copies("low", 2)[1], copies("high", 2)[0]
    assert of_kind(host.handle(FIRED), Tell) == [
        Tell(CopySuspected(high, 4, GATEWAY)),
        Tell(CopySuspected(low, 3, GATEWAY)),
    ]


def test_the_gateway_has_no_seat_that_could_be_suspected() -> None:
    host = working()
    host.handle(PeerDown(GATEWAY, 1))
    absent = TimerFired(("absent", GATEWAY))
    assert host.handle(absent) == [SetTimer(("absent", GATEWAY), 4_000)]


def test_a_peer_that_breaks_the_protocol_is_cut_off_and_suspected_when_it_does_not_come_back() -> None:
    host = gateway()
    for serial in (2, 3, 4):
        host.handle(PeerUp("b", serial))
        host.handle(ParcelFrom("b", serial, Attach(SECOND, 1, SOURCE, 0, serial, NOTHING)))
        data = Say(SECOND, SOURCE, serial, Data(run(1)))
        cut = Cut("b", serial, f"an outlet does not take {From(1, data.message)}", breach=True)
        assert host.handle(ParcelFrom("b", serial, data)) == [cut]
    host.handle(PeerDown("b", 4))
    assert of_kind(host.handle(FIRED), Tell) == [SUSPECTED]


def test_a_peer_that_breaks_the_protocol_before_the_first_view_is_cut_off() -> None:
    host = Host("a", TOPOLOGY)
    host.handle(PeerUp("b", 1))
    (cut,) = host.handle(ParcelFrom("b", 1, Relay(view(1, other=seats(1, "a", "b")))))
    assert isinstance(cut, Cut)
    assert cut.breach


def test_a_consumer_that_asks_for_what_is_gone_opens_no_edge() -> None:
    host = gateway()
    host.handle(Inside(SOURCE, 0, Produced(((FIRST.partition, run(1, 2, 3)),))))
    for node, copy in (("a", FIRST), ("b", SECOND)):
        host.handle(ParcelFrom(node, 1, Attach(copy, 1, SOURCE, 0, 1, 2)))
    host.handle(PeerDown("b", 1))
    host.handle(PeerUp("b", 2))
    (cut,) = host.handle(ParcelFrom("b", 2, Attach(SECOND, 1, SOURCE, 0, 2, 1)))
    assert cut == Cut("b", 2, "replica 1 needs what follows 1, and 2 is gone", breach=True)
    assert SECOND not in host.residents[SOURCE].edges


def test_what_a_peer_said_before_it_broke_the_protocol_stands() -> None:
    host = working()
    for numbers in ((1, 2), (3,)):
        host.handle(ParcelFrom(GATEWAY, 1, Say(SOURCE, FIRST, 1, Data(run(*numbers)))))
    (cut,) = host.handle(ParcelFrom(GATEWAY, 1, Say(SOURCE, FIRST, 1, Data(run(3)))))
    assert cut == Cut(GATEWAY, 1, "replica 0 sent bucket 3 after 3", breach=True)
    assert host.residents[FIRST].taken_from(SOURCE) == 2
    assert host.handle(ParcelFrom(GATEWAY, 1, Here(SOURCE, 0))) == [], "its edge stands until it is gone"
    again = parcels([*host.handle(PeerDown(GATEWAY, 1)), *host.handle(PeerUp(GATEWAY, 2))], GATEWAY)
    assert again[-1] == Attach(FIRST, 1, SOURCE, 0, 2, 2)
