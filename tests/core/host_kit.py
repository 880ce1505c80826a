"""A flow of one segment between a source and a sink, and the hosts that run it."""

from __future__ import annotations

from core_kit import seats, view

from understudy.core.bucket import NOTHING
from understudy.core.host.host import Host
from understudy.core.host.parcels import (
    Attach,
    Began,
    Dispatch,
    HostInstruction,
    Parcel,
    ParcelFrom,
    PeerUp,
    ViewSeen,
    Welcome,
)
from understudy.core.host.places import GATEWAY
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import chain_of
from understudy.core.view.view import View

TOPOLOGY = chain_of(f=1)
F = Partition("f")
SOURCE, SINK = Copy(Partition("source")), Copy(Partition("sink"))
NODES = ("a", "b", "c")


def first_view(replicas: int) -> View:
    """Replica 0 sits on a, 1 on b, 2 on c."""
    return view(1, f=seats(1, *NODES[:replicas]))


def parcels(done: list[HostInstruction], to: str) -> list[Parcel]:
    return [each.parcel for each in done if isinstance(each, Dispatch) and each.node == to]


def of_kind(done: list[HostInstruction], kind: type) -> list[HostInstruction]:
    return [each for each in done if isinstance(each, kind)]


def gateway(replicas: int = 2) -> Host:
    """A gateway that has seen the first view and is connected to every node."""
    host = Host(GATEWAY, TOPOLOGY)
    host.handle(ViewSeen(first_view(replicas)))
    for node in NODES[:replicas]:
        host.handle(PeerUp(node, 1))
    return host


def node(name: str = "a", replicas: int = 2) -> Host:
    """A node that has seen the first view and is connected to the gateway; its copy has not begun."""
    host = Host(name, TOPOLOGY)
    host.handle(ViewSeen(first_view(replicas)))
    host.handle(PeerUp(GATEWAY, 1))
    return host


def own(host: Host) -> Copy:
    """The copy that sits on this node."""
    (copy,) = host.residents
    return copy


def working(name: str = "a", replicas: int = 2) -> Host:
    """A node whose copy has begun and takes data from the source; the sink takes data from it."""
    host = node(name, replicas)
    copy = own(host)
    host.handle(Began(copy, 1))
    host.handle(ParcelFrom(GATEWAY, 1, Welcome(SOURCE, copy, 1, NOTHING)))
    host.handle(ParcelFrom(GATEWAY, 1, Attach(SINK, 0, copy, 1, 70, NOTHING)))
    return host
