"""The mesh between processes, over real connections: who is connected, and what arrives."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mesh_kit import WAIT_S, Caller, settings_in

from understudy.core.host.parcels import Here, Parcel, Relay
from understudy.core.host.places import GATEWAY
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.view import Seat, Seats, Status, View
from understudy.runtime.actor import Actor
from understudy.runtime.mesh import PURPOSE, VIEWS_KEPT, Mesh, RecentViews
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Endpoint, Refused, connect
from understudy.runtime.transport.wire import Frame

Heard = tuple[str, str, Any]


class Process:
    """A process with nothing but its mesh. What it hears waits in `heard`, with the connection's serial."""

    def __init__(self, name: str, settings: RunSettings, addresses: dict[str, str]) -> None:
        self.name, self.settings, self.addresses = name, settings, addresses
        self.heard: queue.Queue[Heard] = queue.Queue()
        self.endpoint = Endpoint(beat_s=settings.beat_s, silence_s=settings.silence_s)
        self.actor = Actor(name, lambda error: self.heard.put(("failed", name, error)))
        self.mesh = Mesh(name, settings, self.actor, self, addresses.get)
        self.mesh.listen_on(self.endpoint)
        self.endpoint.ready()
        addresses[name] = self.endpoint.address

    def peer_up(self, node: str, serial: int) -> None:
        self.heard.put(("up", node, serial))

    def peer_down(self, node: str, serial: int) -> None:
        self.heard.put(("down", node, serial))

    def parcel_arrived(self, node: str, serial: int, parcel: Parcel, cause: int) -> None:
        self.heard.put(("parcel", node, (parcel, cause, serial)))

    def frame_arrived(self, node: str, frame: Frame) -> None:
        self.heard.put(("frame", node, frame.head))

    def want(self, *nodes: str) -> None:
        self.actor.post(self.mesh.want, set(nodes))

    def send(self, node: str, parcel: Parcel, cause: int = 0) -> None:
        self.actor.post(self.mesh.send, node, parcel, cause)

    def cut(self, node: str, serial: int, *, breach: bool = False) -> None:
        self.actor.post(self.mesh.cut, node, serial, "for a test", breach)

    def next(self) -> Heard:
        return self.heard.get(timeout=WAIT_S)

    def parcel(self) -> Parcel:
        what, _, (parcel, _, _) = self.next()
        assert what == "parcel"
        found: Parcel = parcel
        return found

    def end(self) -> None:
        self.actor.end()
        self.mesh.end()
        self.endpoint.end()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[dict[str, Process]]:
    addresses: dict[str, str] = {}
    names = ("node-1", "node-2", GATEWAY)
    made = {name: Process(name, settings_in(tmp_path), addresses) for name in names}
    yield made
    for process in made.values():
        process.end()


def connected(processes: dict[str, Process], to: str = "node-2") -> tuple[Process, Process, int]:
    """Two processes that are connected, and their connection's serial."""
    one, other = processes["node-1"], processes[to]
    one.want(other.name)
    other.want(one.name)
    what, node, serial = one.next()
    assert (what, node) == ("up", other.name)
    assert other.next() == ("up", one.name, serial)
    return one, other, serial


def cut_between(one: Process, other: Process, serial: int) -> int:
    """Cut the connection, see that both hear of it and have it again; the serial of the new one."""
    one.cut(other.name, serial)
    assert one.next() == ("down", other.name, serial)
    assert other.next() == ("down", one.name, serial)
    what, _, later = one.next()
    assert (what, other.next()) == ("up", ("up", one.name, later))
    return int(later)


def here(index: int) -> Here:
    return Here(Copy(Partition("f", index)), 1)


@pytest.mark.parametrize("to", ["node-2", GATEWAY])
def test_two_processes_that_need_each_other_are_connected_once(
    processes: dict[str, Process], to: str
) -> None:
    one, other, serial = connected(processes, to)
    for index in range(3):
        one.send(other.name, here(index), 70 + index)
    expected = [("parcel", one.name, (here(index), 70 + index, serial)) for index in range(3)]
    assert [other.next() for _ in range(3)] == expected, "in order, each with its cause"
    other.send(one.name, here(9), 80)
    assert one.next() == ("parcel", other.name, (here(9), 80, serial))
    assert (one.heard.empty(), other.heard.empty()) == (True, True)


@pytest.mark.parametrize("kind", ["stats", "save"])
def test_what_is_said_beside_the_protocol_is_no_parcel(processes: dict[str, Process], kind: str) -> None:
    one, other, _ = connected(processes)
    one.actor.post(one.mesh.tell, other.name, Frame({"kind": kind, "rows_in": 4}))
    assert other.next() == ("frame", one.name, {"kind": kind, "rows_in": 4})


def test_what_is_no_parcel_costs_the_connection(processes: dict[str, Process]) -> None:
    one, other, serial = connected(processes)
    one.actor.post(one.mesh.tell, other.name, Frame({"kind": "gossip", "cause": 1}))
    assert other.next() == ("down", one.name, serial)
    assert one.next() == ("down", other.name, serial)


def test_a_connection_that_is_cut_is_reported_and_made_again_under_a_greater_serial(
    processes: dict[str, Process],
) -> None:
    one, other, serial = connected(processes)
    assert cut_between(one, other, serial) > serial


def test_cutting_a_connection_that_is_gone_leaves_the_next_one_alone(processes: dict[str, Process]) -> None:
    one, other, first = connected(processes)
    second = cut_between(one, other, first)
    one.cut(other.name, first)
    one.send(other.name, here(1))
    assert other.next() == ("parcel", one.name, (here(1), 0, second))


def test_who_is_no_longer_needed_is_let_go_of_and_later_called_under_a_greater_serial(
    processes: dict[str, Process],
) -> None:
    one, other, serial = connected(processes)
    other.want()
    assert one.next() == ("down", other.name, serial)
    assert other.next() == ("down", one.name, serial)
    other.want(one.name)
    what, _, later = one.next()
    assert what == "up"
    assert later > serial
    assert other.next() == ("up", one.name, later)


@pytest.mark.parametrize(
    "hello",
    [
        {},
        {"node": "node-9"},
        {"node": "", "serial": 1},
        {"node": 7, "serial": 1},
        {"node": "a", "serial": "1"},
    ],
)
def test_who_does_not_say_who_it_is_and_which_attempt_is_not_let_in(
    processes: dict[str, Process], hello: dict[str, Any]
) -> None:
    one = processes["node-1"]
    with pytest.raises(Refused, match="must name itself and number its attempts"):
        connect(one.endpoint.address, PURPOSE, hello, on_open=ignore, on_frame=ignore, on_closed=ignore)
    assert one.heard.empty()


def ignore(_: object) -> None:
    pass


# --- two connections to one process -----------------------------------------------------------------------


@pytest.mark.parametrize("serials", [(5, 6), (6, 5)])
def test_of_two_connections_the_one_with_the_greater_serial_carries_what_is_sent(
    processes: dict[str, Process], serials: tuple[int, int]
) -> None:
    one = processes["node-1"]
    callers = {}
    for serial in serials:
        callers[serial] = Caller(one.endpoint.address, serial)
        assert one.next() == ("up", "node-9", serial)
    one.send("node-9", here(1))
    assert callers[6].arrived.get(timeout=WAIT_S) == (here(1), 0)
    for serial, caller in callers.items():
        caller.say(here(serial))
        assert one.next() == ("parcel", "node-9", (here(serial), 0, serial)), "the owner decides which counts"
    one.cut("node-9", 5)
    assert one.next() == ("down", "node-9", 5)
    assert callers[5].closed.wait(WAIT_S)
    one.cut("node-9", 6)
    assert one.next() == ("down", "node-9", 6)
    one.send("node-9", here(2))
    assert callers[6].arrived.empty()


@contextmanager
def held_up(process: Process) -> Iterator[queue.Queue[str]]:
    """The actor does nothing meanwhile. Yields the names of the calls that wait for it."""
    go_on = threading.Event()
    waiting: queue.Queue[str] = queue.Queue()
    post = process.actor.post

    def noted(call: Callable[..., object], *arguments: Any) -> None:
        post(call, *arguments)
        waiting.put(call.__name__)

    post(go_on.wait, WAIT_S)
    process.actor.post = noted  # type: ignore[method-assign]
    yield waiting
    process.actor.post = post  # type: ignore[method-assign]
    go_on.set()


def test_a_connection_that_broke_before_the_owner_heard_of_it_is_not_reported(
    processes: dict[str, Process],
) -> None:
    one = processes["node-1"]
    with held_up(one) as waiting:
        caller = Caller(one.endpoint.address, 5)
        assert waiting.get(timeout=WAIT_S) == "_opened"
        caller.channel.close("for a test")
        assert waiting.get(timeout=WAIT_S) == "_closed"
    one.actor.ask(lambda: None)
    assert one.heard.empty()


def test_what_arrived_over_a_connection_before_it_was_cut_is_not_handed_on_after_that(
    processes: dict[str, Process],
) -> None:
    one = processes["node-1"]
    caller = Caller(one.endpoint.address, 5)
    assert one.next() == ("up", "node-9", 5)
    with held_up(one) as waiting:
        one.cut("node-9", 5)
        assert waiting.get(timeout=WAIT_S) == "cut"
        caller.say(here(1))
        assert waiting.get(timeout=WAIT_S) == "_arrived"
    assert one.next() == ("down", "node-9", 5)


# --- views -----------------------------------------------------------------------------------------------


def view(epoch: int, partitions: int = 100) -> View:
    """Every epoch changes one partition of many."""
    seats = {}
    for index in range(partitions):
        newest = max(1, epoch - (epoch - index) % partitions)
        both = tuple(Seat(f"node-{replica}", newest, Status.ACTIVE) for replica in range(2))
        seats[Partition("f", index)] = Seats(newest, both)
    return View(epoch, seats)


def test_views_arrive_completely_though_only_changes_are_sent(
    processes: dict[str, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    honest = Channel.send

    def weighed(channel: Channel, *frames: Frame) -> None:
        sizes.extend(len(frame.metadata()) for frame in frames)
        honest(channel, *frames)

    one, other, serial = connected(processes)
    monkeypatch.setattr(Channel, "send", weighed)
    relayed = [(one, other, 500), (one, other, 501), (other, one, 503), (one, other, 504), (other, one, 505)]
    for sender, receiver, epoch in relayed:
        sender.send(receiver.name, Relay(view(epoch)))
        assert receiver.parcel() == Relay(view(epoch))
    assert max(sizes[1:]) < sizes[0] / 10
    cut_between(one, other, serial)
    other.send(one.name, Relay(view(506)))
    assert one.parcel() == Relay(view(506))
    assert sizes[-1] > sizes[0] / 2, "what it had before its connection broke does not count"


def test_a_gateway_that_began_anew_is_sent_the_whole_view(processes: dict[str, Process]) -> None:
    """It has its old name and has none of the views that its predecessor was sent."""
    node, gateway, serial = connected(processes, to=GATEWAY)
    node.send(GATEWAY, Relay(view(500)))
    assert gateway.parcel() == Relay(view(500))
    processes.pop(GATEWAY).end()
    assert node.next() == ("down", GATEWAY, serial)
    again = processes[GATEWAY] = Process(GATEWAY, node.settings, node.addresses)
    again.want(node.name)
    assert node.next()[:2] == ("up", GATEWAY)
    assert again.next()[:2] == ("up", node.name)
    node.send(GATEWAY, Relay(view(501)))
    assert again.parcel() == Relay(view(501))


def test_changes_are_sent_since_a_view_that_both_have() -> None:
    views = RecentViews()
    assert views.exchanged("a", view(7)) is None
    assert views.exchanged("b", view(8)) is None
    assert views.exchanged("a", view(9)) == view(7)
    assert views.exchanged("a", view(11)) == view(9)
    assert views.exchanged("a", view(10)) is None, "older than what it has sent itself"
    assert len(view(11).to_json(since=view(9))) < len(view(11).to_json()) / 10
    views.forget("a")
    assert views.exchanged("a", view(12)) is None


def test_a_process_that_was_silent_for_long_is_sent_the_whole_view() -> None:
    views = RecentViews()
    views.exchanged("a", view(1))
    for epoch in range(2, 200):
        views.exchanged("b", view(epoch))
    assert views.exchanged("a", view(200)) is None
    assert len(views.known) <= VIEWS_KEPT + 1
