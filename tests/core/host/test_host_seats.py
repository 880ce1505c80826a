"""A host and its views: which copies it starts, which it leaves, and what it tells others."""

from __future__ import annotations

import pytest
from core_kit import copies, run, seats, view
from host_kit import (
    NODES,
    SINK,
    SOURCE,
    TOPOLOGY,
    F,
    first_view,
    gateway,
    node,
    of_kind,
    own,
    parcels,
    working,
)

from understudy.core.bucket import NOTHING
from understudy.core.edge.messages import Reverse
from understudy.core.host.host import Host
from understudy.core.host.limits import Timing
from understudy.core.host.parcels import (
    Attach,
    Await,
    Began,
    Here,
    Inside,
    Leave,
    ParcelFrom,
    PeerDown,
    PeerUp,
    Relay,
    Say,
    Start,
    ViewSeen,
    Welcome,
)
from understudy.core.host.places import GATEWAY
from understudy.core.replica.events import Produced
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import Topology, chain_of
from understudy.core.timers import SetTimer

ABSENT_GATEWAY = SetTimer(("absent", GATEWAY), 4_000)
FIRST, SECOND = copies("f", 2)


# --- seats -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_node_starts_the_copies_that_the_first_view_seats_on_it_and_waits_for_the_gateway(
    replicas: int,
) -> None:
    for replica in range(replicas):
        host = Host(NODES[replica], TOPOLOGY)
        assert host.handle(ViewSeen(first_view(replicas))) == [Start(Copy(F, replica), 1), ABSENT_GATEWAY]
        assert host.needed == {GATEWAY}


def test_a_node_without_a_seat_does_nothing_and_needs_no_peer() -> None:
    host = Host("z", TOPOLOGY)
    assert host.handle(ViewSeen(first_view(2))) == []
    assert host.needed == set()


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_the_gateway_hosts_every_source_and_sink_and_needs_every_node(replicas: int) -> None:
    host = Host(GATEWAY, TOPOLOGY, delivered={"sink": 5})
    assert host.handle(ViewSeen(first_view(replicas))) == [
        SetTimer(("absent", each), 4_000) for each in NODES[:replicas]
    ]
    assert list(host.residents) == [SOURCE, SINK]
    assert all(resident.begun for resident in host.residents.values())
    sink = host.end("sink")
    assert sink is not None
    assert sink.below is not None
    assert sink.below.handed == 5
    assert host.end("nothing") is None


def test_every_source_is_an_end_of_its_own_and_so_is_every_sink() -> None:
    shop = Topology({"f": ("clicks", "orders")}, {"f": 1}, {"sales": "f", "log": "f"})
    host = Host(GATEWAY, shop)
    host.handle(ViewSeen(first_view(1)))
    assert [str(copy) for copy in host.residents] == ["clicks/0:0", "orders/0:0", "sales/0:0", "log/0:0"]


def test_a_standby_waits_asks_for_its_state_and_is_watched() -> None:
    host = Host("c", TOPOLOGY, timing=Timing(absent_ms=40, ask_ms=50, stuck_ms=60))
    done = host.handle(ViewSeen(view(3, f=seats(3, "a", "c@3 STDBY"))))
    assert done == [
        Await(SECOND, 3),
        SetTimer(("stuck", SECOND, 3), 60),
        SetTimer(("ask", SECOND, 3), 50),
        SetTimer(("absent", "a"), 40),
        SetTimer(("absent", GATEWAY), 40),
    ]
    assert host.needed == {GATEWAY, "a"}, "it needs its lender"


def test_a_copy_whose_seat_was_taken_away_is_left_and_all_that_it_still_says_is_void() -> None:
    host = working("b")
    assert host.handle(ViewSeen(view(2, f=seats(2, "a", "b DEAD")))) == [Leave(SECOND, 1)]
    assert host.residents == {}
    assert host.handle(Inside(SECOND, 1, Produced(((SINK.partition, run(1)),)))) == []
    assert host.handle(Began(SECOND, 1)) == []
    assert host.handle(ParcelFrom(GATEWAY, 1, Attach(SINK, 0, SECOND, 1, 71, -1))) == []


def test_a_node_may_sit_in_the_same_seat_again_under_a_later_epoch() -> None:
    host = working("b")
    host.handle(ViewSeen(view(2, f=seats(2, "a", "b DEAD"))))
    assert host.handle(ViewSeen(view(3, f=seats(3, "a", "b@3 STDBY"))))[0] == Await(SECOND, 3)
    assert host.handle(Began(SECOND, 1)) == [], "what the first one's engine still says"
    skipped = working("b")
    done = skipped.handle(ViewSeen(view(3, f=seats(3, "a", "b@3 STDBY"))))
    assert done[:2] == [Leave(SECOND, 1), Await(SECOND, 3)]


def test_views_never_go_back() -> None:
    host = working()
    host.handle(ViewSeen(view(3, f=seats(2, "a", "b DEAD"))))
    for epoch in (1, 2, 3):
        assert host.handle(ViewSeen(view(epoch, f=seats(1, "x", "y")))) == []
    assert host.view is not None
    assert host.view.epoch == 3


# --- telling views ---------------------------------------------------------------------------------------


def test_a_view_goes_ahead_of_what_is_done_because_of_it_and_is_sent_once_on_each_connection() -> None:
    host = node()
    relay, attach, here = parcels(host.handle(Began(FIRST, 1)), GATEWAY)
    assert relay == Relay(first_view(2))
    assert attach == Attach(FIRST, 1, SOURCE, 0, 1, NOTHING)
    assert here == Here(FIRST, 1)
    (said,) = parcels(host.handle(ParcelFrom(GATEWAY, 1, Welcome(SOURCE, FIRST, 1, 0))), GATEWAY)
    assert said == Say(FIRST, SOURCE, 1, Reverse(NOTHING))
    host.handle(PeerDown(GATEWAY, 1))
    again = parcels(host.handle(PeerUp(GATEWAY, 2)), GATEWAY)
    assert again == [Relay(first_view(2)), Attach(FIRST, 1, SOURCE, 0, 2, NOTHING)]


def test_a_later_view_is_sent_before_the_next_parcel() -> None:
    host = working()
    later = view(2, f=seats(2, "a", "b DEAD"))
    host.handle(ViewSeen(later))
    done = parcels(host.handle(Inside(FIRST, 1, Produced(((SINK.partition, run(1)),)))), GATEWAY)
    assert done == [], "no parcel is sent, so no view is"
    answered = parcels(host.handle(ParcelFrom(GATEWAY, 1, Attach(SINK, 0, FIRST, 1, 71, -1))), GATEWAY)
    assert answered == [Relay(later), Welcome(FIRST, SINK, 71, 1)]


def test_a_view_is_not_sent_back_to_its_sender() -> None:
    host = working()
    host.handle(ParcelFrom(GATEWAY, 1, Relay(view(2, f=seats(2, "a", "b DEAD")))))
    answered = parcels(host.handle(ParcelFrom(GATEWAY, 1, Attach(SINK, 0, FIRST, 1, 71, -1))), GATEWAY)
    assert answered == [Welcome(FIRST, SINK, 71, NOTHING)]


def test_a_view_that_others_act_on_is_acted_on_first() -> None:
    host = working("b")
    assert host.handle(ParcelFrom(GATEWAY, 1, Relay(view(2, f=seats(2, "a", "b DEAD"))))) == [
        Leave(SECOND, 1)
    ]
    assert host.handle(ParcelFrom(GATEWAY, 1, Relay(first_view(2)))) == []


def test_the_first_view_must_come_from_the_controller() -> None:
    host = Host("a", TOPOLOGY)
    host.handle(PeerUp(GATEWAY, 1))
    assert host.handle(ParcelFrom(GATEWAY, 1, Relay(first_view(2)))) == []
    assert host.view is None
    assert of_kind(host.handle(ViewSeen(first_view(2))), Start) == [Start(FIRST, 1)]


# --- views and edges -------------------------------------------------------------------------------------

CHAIN = chain_of(low=1, high=1)
LOW, HIGH = Partition("low"), Partition("high")


def consumer_of(low: str, epoch: int = 1) -> Host:
    """A node that holds a begun copy of the upper segment, connected to x, where a lower copy will sit."""
    host = Host("a", CHAIN)
    host.handle(ViewSeen(view(epoch, low=seats(epoch, "d", low), high=seats(1, "a", "b"))))
    for peer in ("d", "x"):
        host.handle(PeerUp(peer, 1))
    host.handle(Began(own(host), 1))
    return host


def test_an_edge_is_tried_again_when_the_seat_of_a_producer_that_said_it_was_here_becomes_known() -> None:
    host = consumer_of("b DEAD", epoch=2)
    said = ParcelFrom("x", 1, Here(Copy(LOW, 1), 3))
    assert host.handle(said) == [], "no view has shown that seat yet"
    later = view(3, low=seats(3, "d", "x@3 STDBY"), high=seats(1, "a", "b"))
    done = parcels(host.handle(ViewSeen(later)), "x")
    assert [each for each in done if isinstance(each, Attach)] == [
        Attach(Copy(HIGH), 1, Copy(LOW, 1), 3, 2, NOTHING)
    ]


def test_an_edge_that_is_being_opened_is_not_tried_again_with_every_view() -> None:
    host = consumer_of("x")
    done = host.handle(ViewSeen(view(2, low=seats(1, "d", "x"), high=seats(2, "a", "b DEAD"))))
    assert done == []


@pytest.mark.parametrize("welcomed", [True, False], ids=["open", "being opened"])
def test_an_edge_to_a_dead_producer_is_closed_and_one_to_its_successor_is_opened(welcomed: bool) -> None:
    host = consumer_of("x")
    low = Copy(LOW, 1)
    serial = host.residents[Copy(HIGH)].tried[low].serial
    if welcomed:
        host.handle(ParcelFrom("x", 1, Welcome(low, Copy(HIGH), serial, 0)))
    host.handle(ViewSeen(view(2, low=seats(2, "d", "x DEAD"), high=seats(1, "a", "b"))))
    resident = host.residents[Copy(HIGH)]
    assert low not in resident.edges
    assert low not in resident.tried
    assert host.handle(ParcelFrom("x", 1, Welcome(low, Copy(HIGH), serial, 0))) == []
    later = view(3, low=seats(3, "d", "x@3 STDBY"), high=seats(1, "a", "b"))
    (attach,) = [each for each in parcels(host.handle(ViewSeen(later)), "x") if isinstance(each, Attach)]
    assert (attach.to_epoch, attach.serial) == (3, serial + 1)


def test_with_isolated_replicas_a_copy_talks_only_to_copies_of_its_own_replica() -> None:
    host = Host("c", CHAIN, isolated=True)
    host.handle(ViewSeen(view(1, low=seats(1, "a", "b"), high=seats(1, "d", "c"))))
    assert host.needed == {GATEWAY, "b"}
    gate = Host(GATEWAY, CHAIN, isolated=True)
    gate.handle(ViewSeen(view(1, low=seats(1, "a", "b"), high=seats(1, "d", "c"))))
    assert gate.needed == set("abcd"), "the ends talk to all"


def test_a_gateway_that_begins_again_says_that_its_ends_are_here() -> None:
    host = Host(GATEWAY, TOPOLOGY)
    host.handle(PeerUp("a", 1))
    answered = parcels(host.handle(ViewSeen(first_view(1))), "a")
    assert answered == [
        Relay(first_view(1)),
        Here(SOURCE, 0),
        Attach(SINK, 0, FIRST, 1, 1, NOTHING),
    ]
    assert gateway(1).end("source") is not None
