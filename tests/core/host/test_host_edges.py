"""Edges between hosts: who may open one, what goes over it, and when it is closed."""

from __future__ import annotations

import pytest
from core_kit import copies, run, seats, view
from host_kit import SINK, SOURCE, first_view, gateway, node, of_kind, own, parcels, working

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.messages import Ack, Data, Pause, Paused, Reverse
from understudy.core.host.host import Host
from understudy.core.host.parcels import (
    Attach,
    Began,
    Cut,
    Dispatch,
    Here,
    Inside,
    ParcelFrom,
    PeerDown,
    PeerUp,
    Say,
    ViewSeen,
    Welcome,
    Work,
)
from understudy.core.host.places import GATEWAY
from understudy.core.replica.events import Processed, Produced
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import chain_of
from understudy.core.timers import SetTimer

FIRST, SECOND = copies("f", 2)


def said(host: Host, message: object, *, serial: int = 1, node: str = GATEWAY, up: int = 1) -> list[object]:
    """The source says this to the node's copy."""
    parcel = Say(SOURCE, own(host), serial, message)  # type: ignore[arg-type]
    return host.handle(ParcelFrom(node, up, parcel))  # type: ignore[return-value]


def group(*numbers: int) -> Work:
    return Work(FIRST, 1, tuple(Bucket(n, ((SOURCE.partition, f"rows of {n}"),), 1) for n in numbers))


# --- opening ---------------------------------------------------------------------------------------------


def test_an_edge_counts_from_the_answer_to_the_latest_attempt_only() -> None:
    host = node()
    host.handle(Began(FIRST, 1))
    host.handle(PeerDown(GATEWAY, 1))
    host.handle(PeerUp(GATEWAY, 2))
    assert host.handle(ParcelFrom(GATEWAY, 2, Welcome(SOURCE, FIRST, 1, 0))) == []
    done = parcels(host.handle(ParcelFrom(GATEWAY, 2, Welcome(SOURCE, FIRST, 2, 0))), GATEWAY)
    assert done == [Say(FIRST, SOURCE, 2, Reverse(NOTHING))]


def test_a_producer_that_says_it_is_here_is_tried_unless_its_edge_is_open() -> None:
    host = node()
    host.handle(Began(FIRST, 1))
    here = ParcelFrom(GATEWAY, 1, Here(SOURCE, 0))
    assert parcels(host.handle(here), GATEWAY) == [Attach(FIRST, 1, SOURCE, 0, 2, NOTHING)]
    host.handle(ParcelFrom(GATEWAY, 1, Welcome(SOURCE, FIRST, 2, 0)))
    assert host.handle(here) == []


def test_a_copy_that_has_not_begun_opens_no_edge_and_lets_none_be_opened() -> None:
    host = node()
    assert host.handle(ParcelFrom(GATEWAY, 1, Here(SOURCE, 0))) == []
    assert host.handle(ParcelFrom(GATEWAY, 1, Attach(SINK, 0, FIRST, 1, 5, -1))) == []


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_producer_lets_in_every_holder_of_a_seat(replicas: int) -> None:
    host = gateway(replicas)
    for replica, name in enumerate("abc"[:replicas]):
        copy = Copy(FIRST.partition, replica)
        done = parcels(host.handle(ParcelFrom(name, 1, Attach(copy, 1, SOURCE, 0, 9, NOTHING))), name)
        assert done == [Welcome(SOURCE, copy, 9, NOTHING)]


@pytest.mark.parametrize(
    ("name", "parcel"),
    [
        ("b", Attach(FIRST, 1, SOURCE, 0, 9, NOTHING)),
        ("a", Attach(FIRST, 2, SOURCE, 0, 9, NOTHING)),
        ("a", Attach(FIRST, 1, SOURCE, 3, 9, NOTHING)),
        ("a", Attach(FIRST, 1, Copy(Partition("other")), 0, 9, NOTHING)),
        ("a", Attach(Copy(FIRST.partition, 7), 1, SOURCE, 0, 9, NOTHING)),
    ],
    ids=["another node", "another epoch", "another seat", "no such producer", "no such replica"],
)
def test_only_the_holder_of_a_seat_may_open_an_edge_and_only_to_a_copy_in_its_seat(
    name: str, parcel: Attach
) -> None:
    assert gateway().handle(ParcelFrom(name, 1, parcel)) == []


def test_of_two_attempts_by_one_consumer_the_later_counts() -> None:
    host = gateway()
    for serial in (9, 10):
        host.handle(ParcelFrom("a", 1, Attach(FIRST, 1, SOURCE, 0, serial, NOTHING)))
    host.handle(ParcelFrom("a", 1, Say(FIRST, SOURCE, 9, Reverse(NOTHING))))
    produced = Inside(SOURCE, 0, Produced(((FIRST.partition, run(1)),)))
    assert host.handle(produced) == [], "no consumer asked over the edge that stands"
    done = host.handle(ParcelFrom("a", 1, Say(FIRST, SOURCE, 10, Reverse(NOTHING))))
    assert parcels(done, "a") == [Say(SOURCE, FIRST, 10, Data(run(1)))]


def test_two_copies_on_one_host_open_their_edge_in_the_same_way() -> None:
    host = Host("a", chain_of(low=1, high=1))
    host.handle(ViewSeen(view(1, low=seats(1, "a"), high=seats(1, "a"))))
    low, high = Copy(Partition("low")), Copy(Partition("high"))
    host.handle(Began(high, 1))
    host.handle(Began(low, 1))
    attach = Attach(high, 1, low, 1, 2, NOTHING)
    assert host.handle(ParcelFrom("a", 0, Here(low, 1))) == [Dispatch("a", attach)]
    welcome = Welcome(low, high, 2, NOTHING)
    assert host.handle(ParcelFrom("a", 0, attach)) == [Dispatch("a", welcome)]
    reverse = Say(high, low, 2, Reverse(NOTHING))
    assert host.handle(ParcelFrom("a", 0, welcome)) == [Dispatch("a", reverse)]


# --- what goes over an edge ------------------------------------------------------------------------------


def test_data_is_acknowledged_and_becomes_work_and_its_output_goes_to_the_consumer_that_asked() -> None:
    host = working()
    assert said(host, Data(run(1, 2))) == [
        Dispatch(GATEWAY, Say(FIRST, SOURCE, 1, Ack(2))),
        group(1, 2),
    ]
    host.handle(ParcelFrom(GATEWAY, 1, Say(SINK, FIRST, 70, Reverse(NOTHING))))
    assert host.handle(Inside(FIRST, 1, Produced(((SINK.partition, run(2)),)))) == [
        Dispatch(GATEWAY, Say(FIRST, SINK, 70, Data(run(2))))
    ]
    assert host.handle(Inside(FIRST, 1, Processed())) == []


def test_a_reverse_is_answered_with_what_was_not_received_and_a_pause_with_its_answer() -> None:
    host = working()
    host.handle(Inside(FIRST, 1, Produced(((SINK.partition, run(1, 2, 3)),))))
    asked = host.handle(ParcelFrom(GATEWAY, 1, Say(SINK, FIRST, 70, Reverse(2))))
    assert parcels(asked, GATEWAY) == [Say(FIRST, SINK, 70, Data(run(3)))]
    paused = host.handle(ParcelFrom(GATEWAY, 1, Say(SINK, FIRST, 70, Pause())))
    assert parcels(paused, GATEWAY) == [Say(FIRST, SINK, 70, Paused())]


@pytest.mark.parametrize(
    "over",
    [{"serial": 2}, {"node": "b"}, {"up": 9}],
    ids=["another attempt", "another process", "an older connection"],
)
def test_what_comes_over_an_edge_that_does_not_stand_is_left_out(over: dict[str, object]) -> None:
    host = working()
    host.handle(PeerUp("b", 1))
    assert said(host, Data(run(4)), **over) == []  # type: ignore[arg-type]
    assert of_kind(said(host, Data(run(4))), Work) == [group(4)]  # type: ignore[arg-type]


def test_an_end_delivers_to_its_sink_and_acknowledges_what_was_written() -> None:
    host = gateway(1)
    (attach,) = parcels(host.handle(ParcelFrom("a", 1, Here(FIRST, 1))), "a")
    assert isinstance(attach, Attach)
    host.handle(ParcelFrom("a", 1, Welcome(FIRST, SINK, attach.serial, NOTHING)))
    done = host.handle(ParcelFrom("a", 1, Say(FIRST, SINK, attach.serial, Data(run(3)))))
    assert done == [Work(SINK, 0, (Bucket(3, ((FIRST.partition, "rows of 3"),), 1),))]
    assert parcels(host.handle(Inside(SINK, 0, Processed())), "a") == [
        Say(SINK, FIRST, attach.serial, Ack(3))
    ]


# --- connections -----------------------------------------------------------------------------------------


def test_a_lost_connection_closes_its_edges_and_they_are_opened_again_with_the_next() -> None:
    host = working()
    said(host, Data(run(4)))
    assert host.handle(PeerDown(GATEWAY, 1)) == [SetTimer(("absent", GATEWAY), 300)]
    assert host.residents[FIRST].edges == {}
    assert host.handle(Inside(FIRST, 1, Produced(((SINK.partition, run(4)),)))) == []
    done = parcels(host.handle(PeerUp(GATEWAY, 2)), GATEWAY)
    assert done[1:] == [Attach(FIRST, 1, SOURCE, 0, 2, 4)]


def test_of_two_connections_to_one_process_the_later_counts_whichever_arrives_first() -> None:
    host = working()
    done = host.handle(PeerUp(GATEWAY, 2))
    assert done[0] == Cut(GATEWAY, 1, "a newer connection took its place")
    assert host.residents[FIRST].edges == {}
    assert isinstance(parcels(done, GATEWAY)[-1], Attach), "and its edges are opened again"
    for late in (1, 2):
        assert host.handle(PeerUp(GATEWAY, late)) == [Cut(GATEWAY, late, "a newer connection took its place")]
    assert host.handle(PeerDown(GATEWAY, 1)) == [], "the end of the older one"
    assert host.handle(ParcelFrom(GATEWAY, 1, Here(SOURCE, 0))) == [], "and what it still carried"


def test_a_process_that_calls_itself_by_the_name_of_this_host_is_cut_off() -> None:
    host = working()
    edges = dict(host.residents[FIRST].edges)
    (cut,) = host.handle(PeerUp("a", 5))
    assert isinstance(cut, Cut)
    assert (cut.node, cut.serial) == ("a", 5)
    assert host.handle(PeerDown("a", 5)) == []
    assert host.residents[FIRST].edges == edges
    assert host.handle(ParcelFrom("a", 0, Here(FIRST, 1))) == []


def test_a_dead_consumer_is_closed_out_before_it_says_another_word() -> None:
    host = gateway()
    for copy, name in ((FIRST, "a"), (SECOND, "b")):
        host.handle(ParcelFrom(name, 1, Attach(copy, 1, SOURCE, 0, 9, NOTHING)))
    host.handle(ViewSeen(view(2, f=seats(2, "a", "b DEAD"))))
    assert SECOND not in host.residents[SOURCE].edges
    assert host.handle(ParcelFrom("b", 1, Say(SECOND, SOURCE, 9, Reverse(NOTHING)))) == []
    assert first_view(2).epoch == 1
