"""Hosts on meshes, over real connections: which connection counts, and who is cut off."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mesh_kit import WAIT_S, Caller, settings_in

from understudy.core.host.host import Host
from understudy.core.host.parcels import Began, Here, Relay
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import chain_of
from understudy.core.view.events import CopySuspected
from understudy.core.view.view import Seat, Seats, Status, View
from understudy.runtime.actor import Actor
from understudy.runtime.hosting import Hosting
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.endpoint import Endpoint
from understudy.runtime.transport.parcels import frames_of
from understudy.runtime.transport.wire import Frame


class Hosted(Hosting):
    """A process with a host, whose engines need nothing. `seen` wakes when anything was handled."""

    def __init__(self, name: str, settings: RunSettings, addresses: dict[str, str]) -> None:
        self.cuts: list[tuple[str, int, str]] = []
        self.reports: list[object] = []
        self.failures: list[BaseException] = []
        self.up: list[tuple[str, int]] = []
        self.said_up: Callable[[str, int], None] = lambda _node, _serial: None
        self.changed = threading.Condition()
        self.endpoint = Endpoint(beat_s=settings.beat_s, silence_s=settings.silence_s)
        actor = Actor(name, self.failures.append)
        super().__init__(Host(name, SHAPE), settings, actor, addresses.get, self.reports.append)
        self.mesh.listen_on(self.endpoint)
        self.endpoint.ready()
        addresses[name] = self.endpoint.address

    def handled(self, event: object) -> None:
        with self.changed:
            self.changed.notify_all()

    def peer_up(self, node: str, serial: int) -> None:
        self.up.append((node, serial))
        super().peer_up(node, serial)
        self.said_up(node, serial)

    def cut(self, node: str, serial: int, why: str, breach: bool) -> None:
        self.cuts.append((node, serial, why))
        super().cut(node, serial, why, breach)

    def start(self, copy: Copy, epoch: int) -> None: ...
    def wait(self, copy: Copy, epoch: int) -> None: ...
    def leave(self, copy: Copy, epoch: int) -> None: ...
    def fetch(self, wanted: Any) -> None: ...
    def process(self, copy: Copy, epoch: int, buckets: Any) -> None: ...
    def snapshot(self, copy: Copy, epoch: int, version: int) -> None: ...
    def lend(self, copy: Copy, epoch: int, state: Any) -> None: ...
    def unlend(self, copy: Copy, epoch: int, version: int) -> None: ...
    def save(self, copy: Copy, epoch: int, version: int) -> None: ...
    def read_again(self, source: Copy, consumer: Copy, after: int, bytes_max: int) -> None: ...
    def hold(self, copy: Copy, epoch: int, attempt: int) -> None: ...
    def start_held(self, copy: Copy, epoch: int) -> None: ...
    def rests(self, sink: Copy, through: int) -> None: ...

    def until(self, what: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(what, WAIT_S), (self.up, self.cuts, self.failures)

    @property
    def standing(self) -> dict[str, int]:
        """The connections that the host goes by."""
        return {node: serial for node, serial in self.host.connections.up.items() if node != self.host.name}

    def finish(self) -> None:
        self._actor.end()
        self.end()
        self.endpoint.end()


SHAPE = chain_of(low=1, high=1)
LOW, HIGH = Partition("low"), Partition("high")


def seated(epoch: int, low: str, high: str) -> View:
    """One copy of each partition; the two need each other if they sit on different nodes."""
    return View(
        epoch,
        {p: Seats(epoch, (Seat(node, epoch, Status.ACTIVE),)) for p, node in ((LOW, low), (HIGH, high))},
    )


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Hosted, Hosted]]:
    addresses: dict[str, str] = {}
    made = [Hosted(name, settings_in(tmp_path), addresses) for name in ("node-1", "node-2")]
    yield made[0], made[1]
    for each in made:
        each.finish()
        assert each.failures == []


def see(view: View, *hosts: Hosted) -> None:
    for each in hosts:
        each.on_view(view)


def test_a_link_that_was_dropped_and_made_anew_is_taken_for_newer_by_the_other_side(
    pair: tuple[Hosted, Hosted],
) -> None:
    one, other = pair
    serials: list[int] = []
    for epoch in itertools.count(1, 2):
        see(seated(epoch, "node-1", "node-2"), one, other)
        for each, peer in ((one, "node-2"), (other, "node-1")):
            each.until(lambda each=each, peer=peer: peer in each.standing)  # type: ignore[misc]
        serials.append(one.standing["node-2"])
        if len(serials) == 4:
            break
        # Both copies on one node: the connection is not needed any more.
        see(seated(epoch + 1, "node-1", "node-1"), one, other)
        for each in pair:
            each.until(lambda each=each: not each.standing)  # type: ignore[misc]
    assert serials == sorted(set(serials))
    assert [serial for _, serial in one.up] == serials, "no attempt was refused"
    assert one.cuts == other.cuts == []


def test_a_host_cuts_the_older_of_two_connections_and_a_late_one_that_was_given_up(
    pair: tuple[Hosted, Hosted],
) -> None:
    one, _ = pair
    old = Caller(one.endpoint.address, 5)
    one.until(lambda: one.standing == {"node-9": 5})
    new = Caller(one.endpoint.address, 6)
    one.until(lambda: one.standing == {"node-9": 6})
    assert old.closed.wait(WAIT_S)
    late = Caller(one.endpoint.address, 4)
    assert late.closed.wait(WAIT_S)
    assert [(serial, why) for _, serial, why in one.cuts] == [
        (5, "a newer connection took its place"),
        (4, "a newer connection took its place"),
    ]
    assert one.standing == {"node-9": 6}
    assert not new.closed.is_set()
    assert not one.mesh._breaches._last


def test_what_breaks_the_protocol_costs_that_connection_alone(pair: tuple[Hosted, Hosted]) -> None:
    one, other = pair
    see(seated(1, "node-1", "node-2"), one, other)
    for each, peer in ((one, "node-2"), (other, "node-1")):
        each.until(lambda each=each, peer=peer: peer in each.standing)  # type: ignore[misc]
    stranger = Caller(one.endpoint.address, 1)
    one.until(lambda: "node-9" in one.standing)
    stranger.say(Relay(replace(seated(2, "node-1", "node-2"), partitions={})))
    assert stranger.closed.wait(WAIT_S)
    ((node, serial, why),) = one.cuts
    assert (node, serial) == ("node-9", 1)
    assert "does not follow" in why
    one.until(lambda: list(one.standing) == ["node-2"])
    assert list(one.mesh._breaches._last) == ["node-9"], "it is not let in again at once"


@pytest.mark.parametrize(("bad", "good"), [(0, 1), (1, 0)], ids=["is called", "calls"])
def test_who_cannot_be_understood_over_any_connection_is_suspected(
    pair: tuple[Hosted, Hosted], bad: int, good: int
) -> None:
    """Each new connection stands at once, so that only being kept out makes the peer one that is absent."""
    breaks, suffers = pair[bad], pair[good]
    attempts: list[int] = []

    def gossip(node: str, serial: int) -> None:
        attempts.append(serial)
        breaks.mesh.tell(node, Frame({"kind": "gossip", "cause": 1}))

    breaks.said_up = gossip
    see(seated(1, "node-1", "node-2"), *pair)
    suffers.until(lambda: bool(suffers.reports))
    suspected = suffers.reports[0]
    assert isinstance(suspected, CopySuspected)
    assert suspected.copy == Copy((LOW, HIGH)[bad])
    assert 1 < len(attempts) < 10, "it was connected in between, and less and less often"


def test_a_cause_is_the_number_of_the_event_at_its_sender(pair: tuple[Hosted, Hosted]) -> None:
    """So that the stories of two processes can be read side by side."""
    one, _ = pair
    caller = Caller(one.endpoint.address, 1)
    one.until(lambda: "node-9" in one.standing)
    see(seated(1, "node-1", "node-9"), one)
    one.post(Began(Copy(LOW), 1))
    arrived = [caller.arrived.get(timeout=WAIT_S) for _ in range(2)]
    assert [parcel for parcel, _ in arrived] == [Relay(seated(1, "node-1", "node-9")), Here(Copy(LOW), 1)]
    ((first, second), story) = ([cause for _, cause in arrived], one._actor.ask(one.host.story))
    assert first == second == 3
    assert f"{first:>8} Began(" in story


def test_a_story_tells_the_cause_of_what_arrived(pair: tuple[Hosted, Hosted]) -> None:
    one, _ = pair
    caller = Caller(one.endpoint.address, 1)
    one.until(lambda: "node-9" in one.standing)
    before = one.host.events_handled
    caller.channel.send(*frames_of(Relay(seated(2, "node-1", "node-9")), 77))
    one.until(lambda: one.host.events_handled > before)
    assert "view 2, node-9#77" in one._actor.ask(one.host.story)


def test_the_clock_of_a_process_ends_with_it(pair: tuple[Hosted, Hosted]) -> None:
    one, _ = pair
    clock = one._timers._thread
    assert clock.is_alive()
    one.finish()
    clock.join(WAIT_S)
    assert not clock.is_alive()
