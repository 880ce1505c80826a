"""The boundary between the machines and their connections, with real machines and no network."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from understudy.core.messages import Ack, CSync, Message

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.errors import Fenced, PeerError
from understudy.core.view import Seat, Slot, Status, View
from understudy.runtime.actor import Actor
from understudy.runtime.gateway.boundary import EGRESS, INGRESS, Boundary
from understudy.runtime.recording import Recorder
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Accepted, NotYet
from understudy.runtime.transport.wire import Frame, frames_of

ACTIVE, STDBY, DEAD = Status.ACTIVE, Status.STDBY, Status.DEAD
BOTH = (Seat("a", 1, ACTIVE), Seat("b", 1, ACTIVE))


def view_of(epoch: int, prim: Seat, sec: Seat) -> View:
    return View(epoch, {Slot.PRIM: prim, Slot.SEC: sec})


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
            self.actor,
            self.around,
            recorder=Recorder(settings, "flow", "gateway"),
            recovered=(),
            delivered=NOTHING,
        )

    def view(self, epoch: int, prim: Seat, sec: Seat) -> None:
        self.boundary.on_view(view_of(epoch, prim, sec))
        self.settle()

    def attach(
        self, end: str, slot: Slot, node: str, epoch: int, view: View | None = None, **position: int
    ) -> Replica:
        seen = view or self.boundary.view or view_of(1, *BOTH)
        hello = {"slot": slot.value, "node": node, "epoch": epoch, "view": seen.to_json()}
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

    def says(self, *messages: Message, epoch: int | None = None) -> None:
        for frame in frames_of(messages, self._epoch if epoch is None else epoch):
            self._accepted.on_frame(frame)
        self._gate.settle()

    def acts_on(self, view: str) -> None:
        self._accepted.on_frame(Frame({"kind": "view", "view": view}))
        self._gate.settle()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path)
    yield gate
    gate.actor.end()


def test_sources_wait_while_the_buffer_is_full_and_go_on_when_it_drains(gate: Gate) -> None:
    gate.view(1, *BOTH)
    a = gate.attach(INGRESS, Slot.PRIM, "a", 1)
    b = gate.attach(INGRESS, Slot.SEC, "b", 1)
    gate.seal(1, 2)
    assert not gate.around.has_room
    a.says(Ack(2))
    assert not gate.around.has_room, "the other replica still needs them"
    b.says(Ack(2))
    assert gate.around.has_room
    assert gate.around.trimmed[-1] == 2


def test_what_does_not_fit_waits_its_turn(gate: Gate) -> None:
    gate.view(1, *BOTH)
    replicas = [
        gate.attach(INGRESS, Slot.PRIM, "a", 1),
        gate.attach(INGRESS, Slot.SEC, "b", 1),
    ]
    gate.seal(1, 2, 3, 4, 5)
    assert gate.boundary.ingress is not None
    assert len(gate.boundary.ingress.buffer) == 2
    for number in (2, 4, 5):
        for replica in replicas:
            replica.says(Ack(number))
    assert gate.around.trimmed[-1] == 5
    assert gate.around.has_room


def test_only_the_seat_that_the_view_holds_is_let_in(gate: Gate) -> None:
    with pytest.raises(NotYet):
        gate.attach(INGRESS, Slot.PRIM, "a", 1)
    gate.view(3, Seat("c", 3, STDBY), Seat("b", 1, ACTIVE))
    with pytest.raises(Fenced):
        gate.attach(INGRESS, Slot.PRIM, "a", 1)
    with pytest.raises(PeerError, match="must name"):
        gate.boundary.admit(EGRESS)({"slot": "THIRD"})


def test_a_message_of_another_epoch_closes_its_connection_and_changes_nothing(gate: Gate) -> None:
    gate.view(1, *BOTH)
    a = gate.attach(INGRESS, Slot.PRIM, "a", 1)
    gate.attach(INGRESS, Slot.SEC, "b", 1)
    gate.seal(1, 2)
    a.says(Ack(2), epoch=0)
    assert "epoch 0" in a.closed[0]
    assert max(gate.around.trimmed, default=0) < 1
    assert ("suspected", {"node": "a", "epoch": 1, "by": "gateway"}) in gate.around.reports


def test_a_view_comes_with_the_replica_that_acts_on_it_before_what_that_replica_does(gate: Gate) -> None:
    gate.view(2, Seat("a", 1, DEAD), Seat("b", 1, ACTIVE))
    b = gate.attach(INGRESS, Slot.SEC, "b", 1)
    gate.seal(1, 2)
    b.acts_on(view_of(3, Seat("c", 3, STDBY), Seat("b", 1, ACTIVE)).to_json())
    b.says(Ack(1), CSync(1, 1), Ack(2))
    assert gate.boundary.ingress is not None
    assert [bucket.number for bucket in gate.boundary.ingress.buffer] == [2], "kept for the standby"
    # The controller's own word comes later, an older one first: neither changes anything.
    gate.view(2, Seat("a", 1, DEAD), Seat("b", 1, ACTIVE))
    assert gate.boundary.view is not None
    assert gate.boundary.view.epoch == 3
    assert b.closed == []


def test_a_hello_brings_the_view_that_gave_the_seat(gate: Gate) -> None:
    gate.view(1, *BOTH)
    seen = view_of(3, Seat("c", 3, STDBY), Seat("b", 1, ACTIVE))
    gate.attach(INGRESS, Slot.PRIM, "c", 3, view=seen)
    assert gate.boundary.view == seen
    with pytest.raises(Fenced):
        gate.attach(INGRESS, Slot.PRIM, "a", 1)


@pytest.mark.parametrize(
    "nonsense",
    [
        "{}",
        "not JSON",
        View(9, {Slot.PRIM: Seat("a", 1, ACTIVE)}).to_json(),
        view_of(9, Seat("x", 1, ACTIVE), Seat("b", 1, ACTIVE)).to_json(),
    ],
)
def test_a_view_that_cannot_follow_closes_its_connection_and_changes_nothing(
    gate: Gate, nonsense: str
) -> None:
    gate.view(1, *BOTH)
    a = gate.attach(INGRESS, Slot.PRIM, "a", 1)
    a.acts_on(nonsense)
    assert "broke the protocol" in a.closed[0]
    assert gate.boundary.view == view_of(1, *BOTH)


def test_a_late_hello_does_not_replace_the_connection_that_came_after_it(gate: Gate) -> None:
    gate.view(1, *BOTH)
    newer = gate.attach(INGRESS, Slot.PRIM, "a", 1, serial=2)
    older = gate.attach(INGRESS, Slot.PRIM, "a", 1, serial=1)
    assert older.closed == ["a newer connection is there"]
    assert newer.closed == []
    assert gate.around.reports == []
