"""The mesh between processes, over real connections."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import pytest
from understudy.core.flux_view import FluxView
from understudy.core.parcels import Here, Parcel, Relay

from understudy.core.host import GATEWAY
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view import Seat, Slot, Status, View
from understudy.runtime.actor import Actor
from understudy.runtime.mesh import VIEWS_KEPT, Mesh, RecentViews
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.endpoint import Endpoint
from understudy.runtime.transport.wire import Frame

WAIT_S = 10.0


class Process:
    """A process with nothing but its mesh; what it hears waits in `heard`."""

    def __init__(self, name: str, settings: RunSettings, addresses: dict[str, str]) -> None:
        self.name, self.settings, self.addresses = name, settings, addresses
        self.heard: queue.Queue[tuple[str, str, object]] = queue.Queue()
        self.endpoint = Endpoint(beat_s=settings.beat_s, silence_s=settings.silence_s)
        self.actor = Actor(name, lambda error: self.heard.put(("failed", name, error)))
        self.mesh = Mesh(name, settings, self.actor, self, addresses.get)
        self.mesh.listen_on(self.endpoint)
        self.endpoint.ready()
        addresses[name] = self.endpoint.address

    def peer_up(self, node: str) -> None:
        self.heard.put(("up", node, None))

    def peer_down(self, node: str) -> None:
        self.heard.put(("down", node, None))

    def parcel_arrived(self, node: str, parcel: Parcel) -> None:
        self.heard.put(("parcel", node, parcel))

    def frame_arrived(self, node: str, frame: Frame) -> None:
        self.heard.put(("frame", node, frame.kind))

    def want(self, *nodes: str) -> None:
        self.actor.post(self.mesh.want, set(nodes))

    def next(self) -> tuple[str, str, object]:
        return self.heard.get(timeout=WAIT_S)

    def end(self) -> None:
        self.actor.end()
        self.mesh.end()
        self.endpoint.end()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[dict[str, Process]]:
    settings = RunSettings("run", "flow.py", str(tmp_path), "", silence_ms=500)
    addresses: dict[str, str] = {}
    made = {name: Process(name, settings, addresses) for name in ("node-1", "node-2", GATEWAY)}
    yield made
    for process in made.values():
        process.end()


def connected(processes: dict[str, Process], to: str = "node-2") -> tuple[Process, Process]:
    one, other = processes["node-1"], processes[to]
    one.want(other.name)
    other.want(one.name)
    assert one.next() == ("up", other.name, None)
    assert other.next() == ("up", one.name, None)
    return one, other


def cut_between(one: Process, other: Process) -> None:
    """Cut the connection, and see that both hear of it and have it again."""
    one.actor.post(one.mesh.cut, other.name, "for a test")
    assert [one.next()[0], one.next()[0]] == ["down", "up"]
    assert [other.next()[0], other.next()[0]] == ["down", "up"]


def here(index: int) -> Here:
    return Here(Copy(Partition("f", index), Slot.PRIM), 1)


@pytest.mark.parametrize("pair", [("node-1", "node-2"), ("node-1", GATEWAY)])
def test_two_processes_that_need_each_other_are_connected_once(
    processes: dict[str, Process], pair: tuple[str, str]
) -> None:
    one, other = (processes[name] for name in pair)
    one.want(other.name)
    other.want(one.name)
    assert one.next() == ("up", other.name, None)
    assert other.next() == ("up", one.name, None)
    for index in range(3):
        one.actor.post(one.mesh.send, other.name, here(index))
    assert [other.next() for _ in range(3)] == [("parcel", one.name, here(index)) for index in range(3)]
    other.actor.post(other.mesh.send, one.name, here(9))
    assert one.next() == ("parcel", other.name, here(9))


def test_a_connection_that_is_cut_is_told_and_made_again(processes: dict[str, Process]) -> None:
    one, other = connected(processes)
    cut_between(one, other)


def test_only_a_process_that_is_wanted_can_be_absent(processes: dict[str, Process]) -> None:
    one, other = processes["node-1"], processes["node-2"]
    one.want(other.name, "node-9")
    other.want(one.name)
    one.next()
    assert one.actor.ask(lambda: one.mesh.absent(0.0)) == ["node-9"]
    one.want()
    other.want()
    assert one.next() == ("down", other.name, None)
    assert one.actor.ask(lambda: one.mesh.absent(0.0)) == []


def test_what_is_no_parcel_costs_the_connection(processes: dict[str, Process]) -> None:
    one, other = connected(processes)
    one.actor.post(one.mesh.tell, other.name, Frame({"kind": "gossip"}))
    assert other.next()[0] == "down"


# --- views -----------------------------------------------------------------------------------------------


def view(epoch: int, partitions: int = 100) -> FluxView:
    """Every epoch changes one partition of many."""
    views = {
        Partition("f", index): View(
            newest := max(1, epoch - (epoch - index) % partitions),
            {slot: Seat(f"node-{slot.value}", newest, Status.ACTIVE) for slot in Slot},
        )
        for index in range(partitions)
    }
    return FluxView(epoch, views)


def test_views_arrive_whole_though_only_changes_are_sent(processes: dict[str, Process]) -> None:
    one, other = connected(processes)
    told = [(one, other, 500), (one, other, 501), (other, one, 503), (one, other, 504), (other, one, 505)]
    for sender, receiver, epoch in told:
        sender.actor.post(sender.mesh.send, receiver.name, Relay(view(epoch)))
        assert receiver.next() == ("parcel", sender.name, Relay(view(epoch)))
    cut_between(one, other)
    other.actor.post(other.mesh.send, one.name, Relay(view(506)))
    assert one.next() == ("parcel", other.name, Relay(view(506)))


def test_a_gateway_that_began_anew_is_told_the_whole_view(processes: dict[str, Process]) -> None:
    """It has its old name and knows nothing of what its predecessor was told."""
    node, gateway = connected(processes, to=GATEWAY)
    node.actor.post(node.mesh.send, GATEWAY, Relay(view(500)))
    assert gateway.next()[2] == Relay(view(500))
    processes.pop(GATEWAY).end()
    assert node.next() == ("down", GATEWAY, None)
    again = processes[GATEWAY] = Process(GATEWAY, node.settings, node.addresses)
    again.want(node.name)
    assert node.next() == ("up", GATEWAY, None)
    assert again.next() == ("up", node.name, None)
    node.actor.post(node.mesh.send, GATEWAY, Relay(view(501)))
    assert again.next() == ("parcel", node.name, Relay(view(501)))


def test_a_view_that_both_have_is_what_changes_are_told_since() -> None:
    views = RecentViews()
    assert views.exchanged("a", view(7)) is None
    assert views.exchanged("b", view(8)) is None
    assert views.exchanged("a", view(9)) == view(7)
    assert views.exchanged("a", view(11)) == view(9)
    assert len(view(11).to_json(since=view(9))) < len(view(11).to_json()) / 10
    views.forget("a")
    assert views.exchanged("a", view(12)) is None


def test_who_was_silent_for_long_is_told_the_whole_view() -> None:
    views = RecentViews()
    views.exchanged("a", view(1))
    for epoch in range(2, 200):
        views.exchanged("b", view(epoch))
    assert views.exchanged("a", view(200)) is None
    assert len(views.known) <= VIEWS_KEPT + 1
