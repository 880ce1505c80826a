"""The boundary between the machines and their connections, with real machines and no network."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.errors import Fenced, PeerError
from understudy.core.messages import Ack, CSync, Message
from understudy.core.view import Seat, Slot, Status, View
from understudy.runtime.actor import Actor
from understudy.runtime.gateway.boundary import EGRESS, INGRESS, Boundary
from understudy.runtime.recording import Recorder
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Accepted, NotYet
from understudy.runtime.transport.wire import frames_of

ACTIVE, STDBY, DEAD = Status.ACTIVE, Status.STDBY, Status.DEAD


class Around:
    """Keeps what the boundary asks its process for."""

    def __init__(self) -> None:
        self.has_room = True
        self.trimmed: list[BucketId] = []
        self.reports: list[tuple[str, dict[str, Any]]] = []

    def deliver(self, bucket: Bucket) -> None:
        raise AssertionError("nobody sends output in these tests")

    def trim(self, through: BucketId) -> None:
        self.trimmed.append(through)

    def room(self, there_is: bool) -> None:
        self.has_room = there_is

    def report(self, kind: str, facts: dict[str, Any]) -> None:
        self.reports.append((kind, facts))

    def stats(self, node: str, facts: Mapping[str, Any]) -> None:
        pass


class Gate:
    """A boundary of two buckets' size, and the replicas that connect to it."""

    def __init__(self, folder: Path) -> None:
        settings = RunSettings(
            run="r", flow_path="", folder=str(folder), zookeeper="", input_buckets_max=2, history=False
        )
        self.around = Around()
        self.failures: list[BaseException] = []
        self.actor = Actor("boundary", self.failures.append)
        self.boundary = Boundary(
            settings,
            "gateway",
            self.actor,
            self.around,
            recorder=Recorder(settings, "flow", "gateway"),
            recovered=(),
            delivered=NOTHING,
        )

    def view(self, epoch: int, prim: Seat, sec: Seat) -> None:
        self.boundary.on_view(View(epoch, {Slot.PRIM: prim, Slot.SEC: sec}))
        self.settle()

    def attach(self, end: str, slot: Slot, node: str, epoch: int, view: int, **position: int) -> Replica:
        hello = {"slot": slot.value, "node": node, "epoch": epoch, "view": view}
        accepted = self.boundary.admit(end)(
            {**hello, "through": NOTHING, "version": 0, "checkpoint": NOTHING, "serial": 1, **position}
        )
        replica = Replica(self, accepted, epoch)
        self.settle()
        return replica

    def seal(self, *numbers: int) -> None:
        self.boundary.on_sealed([Bucket(number, b"rows", 4) for number in numbers])
        self.settle()

    def settle(self) -> None:
        """Wait until everything posted so far is done."""
        done = threading.Event()
        self.actor.post(done.set)
        assert done.wait(5)
        assert self.failures == []


class Replica:
    """The far end of a connection: what it says arrives at once."""

    def __init__(self, gate: Gate, accepted: Accepted, epoch: int) -> None:
        self._gate = gate
        self._accepted = accepted
        self._epoch = epoch
        self.closed: list[str] = []
        self.channel = Channel("replica", lambda _frame: None, self._on_closed, epoch=epoch)
        accepted.on_open(self.channel)

    def _on_closed(self, why: str) -> None:
        self.closed.append(why)
        self._accepted.on_closed(why)

    def says(self, *messages: Message, view: int, epoch: int | None = None) -> None:
        for frame in frames_of(messages, self._epoch if epoch is None else epoch, view):
            self._accepted.on_frame(frame)
        self._gate.settle()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path)
    yield gate
    gate.actor.end()


BOTH = (Seat("a", 1, ACTIVE), Seat("b", 1, ACTIVE))


def test_sources_wait_while_the_buffer_is_full_and_go_on_when_it_drains(gate: Gate) -> None:
    gate.view(1, *BOTH)
    a = gate.attach(INGRESS, Slot.PRIM, "a", 1, view=1)
    b = gate.attach(INGRESS, Slot.SEC, "b", 1, view=1)
    gate.seal(1, 2)
    assert not gate.around.has_room
    a.says(Ack(2), view=1)
    assert not gate.around.has_room, "the other replica still needs them"
    b.says(Ack(2), view=1)
    assert gate.around.has_room
    assert gate.around.trimmed[-1] == 2


def test_what_does_not_fit_waits_its_turn(gate: Gate) -> None:
    gate.view(1, *BOTH)
    replicas = [
        gate.attach(INGRESS, Slot.PRIM, "a", 1, view=1),
        gate.attach(INGRESS, Slot.SEC, "b", 1, view=1),
    ]
    gate.seal(1, 2, 3, 4, 5)
    assert gate.boundary.ingress is not None
    assert len(gate.boundary.ingress.buffer) == 2
    for number in (2, 4, 5):
        for replica in replicas:
            replica.says(Ack(number), view=1)
    assert gate.around.trimmed[-1] == 5
    assert gate.around.has_room


def test_only_the_seat_that_the_view_holds_is_let_in(gate: Gate) -> None:
    with pytest.raises(NotYet):
        gate.attach(INGRESS, Slot.PRIM, "a", 1, view=1)
    gate.view(3, Seat("c", 3, STDBY), Seat("b", 1, ACTIVE))
    with pytest.raises(Fenced):
        gate.attach(INGRESS, Slot.PRIM, "a", 1, view=3)
    with pytest.raises(NotYet):
        gate.attach(EGRESS, Slot.SEC, "b", 1, view=4)
    with pytest.raises(PeerError, match="must name"):
        gate.boundary.admit(EGRESS)({"slot": "THIRD"})


def test_a_message_of_another_epoch_closes_its_connection_and_changes_nothing(gate: Gate) -> None:
    gate.view(1, *BOTH)
    a = gate.attach(INGRESS, Slot.PRIM, "a", 1, view=1)
    gate.attach(INGRESS, Slot.SEC, "b", 1, view=1)
    gate.seal(1, 2)
    a.says(Ack(2), view=1, epoch=0)
    assert "epoch 0" in a.closed[0]
    assert max(gate.around.trimmed, default=0) < 1
    assert ("suspected", {"node": "a", "epoch": 1, "by": "gateway"}) in gate.around.reports


def test_a_csync_waits_for_the_view_of_the_standby_that_it_is_about(gate: Gate) -> None:
    gate.view(2, Seat("a", 1, DEAD), Seat("b", 1, ACTIVE))
    b = gate.attach(INGRESS, Slot.SEC, "b", 1, view=2)
    gate.seal(1, 2)
    # Replica b has seen view 3, which seats a standby; the gateway has not.
    b.says(Ack(1), CSync(1, 1), Ack(2), view=3)
    assert max(gate.around.trimmed, default=0) < 1
    gate.view(3, Seat("c", 3, STDBY), Seat("b", 1, ACTIVE))
    assert gate.boundary.ingress is not None
    assert [bucket.number for bucket in gate.boundary.ingress.buffer] == [2], "kept for the standby"


def test_a_late_hello_does_not_replace_the_connection_that_came_after_it(gate: Gate) -> None:
    gate.view(1, *BOTH)
    newer = gate.attach(INGRESS, Slot.PRIM, "a", 1, view=1, serial=2)
    older = gate.attach(INGRESS, Slot.PRIM, "a", 1, view=1, serial=1)
    assert older.closed == ["a newer connection is there"]
    assert newer.closed == []
    assert gate.around.reports == []
