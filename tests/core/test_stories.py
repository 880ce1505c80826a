"""What a machine can tell: its last events with their causes, and no rows."""

from __future__ import annotations

import gc
import weakref

import pytest
from controller_kit import controller
from core_kit import copies, run, seats, view
from fleet import Fleet
from host_kit import SINK, SOURCE, working

from understudy.core.bucket import Bucket
from understudy.core.edge.messages import Ack, Data
from understudy.core.edge.outlet import OutletState
from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.host.parcels import Began, Inside, ParcelFrom, PeerUp, Relay, Say, ViewSeen
from understudy.core.host.places import GATEWAY
from understudy.core.machine import STORY_EVENTS_MAX, Machine
from understudy.core.replica.events import CopyState, Installed, LogRead, Processed, Produced
from understudy.core.shape.topology import chain_of
from understudy.core.timers import SetTimer, TimerFired
from understudy.core.view.events import MemberJoined

FIRST, SECOND = copies("f", 2)


class Rows:
    """A payload that can be watched."""

    alive: list[weakref.ref[Rows]] = []  # noqa: RUF012

    def __init__(self) -> None:
        Rows.alive.append(weakref.ref(self))


def alive() -> int:
    gc.collect()
    return sum(ref() is not None for ref in Rows.alive)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_once_everything_is_acknowledged_no_payload_is_alive_although_the_stories_tell_of_it(
    replicas: int,
) -> None:
    Rows.alive.clear()
    fleet = Fleet(chain_of(low=1, high=1), replicas, "abc", replicas, engine=lambda payload: Rows())
    for number in range(1, 11):
        fleet.produce(Bucket(number, Rows(), 1))
    assert alive() >= 10
    fleet.settle()
    assert [bucket.number for bucket in fleet.delivered] == list(range(1, 11))
    fleet.delivered.clear()
    # A host's last list of instructions is its driver's; any further event replaces it.
    for name in fleet.processes:
        fleet.host(name).handle(PeerUp("stranger", 1))
    assert alive() == 0
    assert "Data " in fleet.host("a").story()
    assert "Produced " in fleet.host("a").story()


def test_no_payload_of_a_borrowed_state_is_alive_once_it_was_trimmed() -> None:
    Rows.alive.clear()
    fleet = Fleet(chain_of(f=1), 2, "abc", 2, engine=lambda payload: Rows())
    fleet.produce(Bucket(1, Rows(), 1))
    fleet.kill("b")
    fleet.settle()
    fleet.produce(Bucket(2, Rows(), 1))
    fleet.settle()
    assert "Installed f/0:1@3: attempt 1, version 1" in fleet.host("c").story()
    fleet.delivered.clear()
    for process in fleet.processes.values():
        process.lent.clear()
        process.driver.host.handle(PeerUp("stranger", 1))
    assert alive() == 0


def test_no_payload_of_a_saved_state_or_of_a_log_that_was_read_again_is_alive_once_it_was_trimmed() -> None:
    Rows.alive.clear()
    fleet = Fleet(chain_of(low=1, high=1), 1, "ab", 2, engine=lambda payload: Rows(), saved=True)
    for number in (1, 2):
        fleet.produce(Bucket(number, Rows(), 1))
        fleet.settle()
        fleet.fire("save")
    fleet.produce(Bucket(3, Rows(), 1))
    fleet.settle()
    fleet.kill("a")
    fleet.kill("b")
    fleet.add("c")
    for _ in range(3):
        fleet.fire("save")
    told = fleet.host("c").story() + fleet.host(GATEWAY).story()
    assert "Began low/0:0@" in told
    assert "LogRead source/0:0@0 after" in told
    fleet.delivered.clear()
    fleet.log.clear()
    fleet.vault.clear()
    for process in fleet.processes.values():
        process.lent.clear()
        process.driver.host.handle(PeerUp("stranger", 1))
    assert alive() == 0


def test_the_story_shows_even_a_rejected_event_without_its_rows() -> None:
    host = working()
    with pytest.raises(BrokenInvariant) as raised:
        host.handle(Inside(FIRST, 1, Produced(((SINK.partition, run(2, 1)),))))
    assert "Produced f/0:0@1: 2..1 > sink/0 -> rejected" in str(raised.value)
    assert "rows of" not in str(raised.value)


def test_an_exception_names_the_machine_the_reason_the_events_and_their_causes() -> None:
    host = working()
    host.handle(ParcelFrom(GATEWAY, 1, Say(SOURCE, FIRST, 1, Data(run(1, 2))), cause=41))
    host.handle(ParcelFrom(GATEWAY, 1, Say(SOURCE, FIRST, 1, Data(run(3))), cause=42))
    host.handle(Inside(FIRST, 1, Processed()))
    host.handle(ParcelFrom(GATEWAY, 1, Relay(view(2, f=seats(2, "a", "b DEAD"))), cause=43))
    host.handle(Inside(FIRST, 1, Processed()))
    with pytest.raises(BrokenInvariant) as raised:
        host.handle(Inside(FIRST, 1, Processed()))
    first, title, *lines = str(raised.value).splitlines()
    assert first == "a: the engine finished a group that it was never given"
    assert title == "the story of a:"
    shown = [line.split(maxsplit=1)[1] for line in lines[-6:]]
    assert shown[0] == "Data 1..2 source/0:0 > f/0:0, gateway#41"
    assert shown[1] == "Data 3..3 source/0:0 > f/0:0, gateway#42"
    assert shown[3] == "view 2, gateway#43"
    assert shown[-1].endswith("-> rejected")
    counted = [int(line.split(maxsplit=1)[0]) for line in lines]
    assert counted == list(range(1, len(lines) + 1)), "events are numbered without a gap"
    assert raised.value.__cause__ is not None


def test_a_rejected_event_is_not_part_of_the_story_afterwards() -> None:
    host = working()
    before, handled = host.story(), host.events_handled
    with pytest.raises(BrokenInvariant):
        host.handle(TimerFired("strange"))
    assert (host.story(), host.events_handled) == (before, handled)


def test_a_story_is_bounded_and_keeps_the_latest() -> None:
    host = working()
    for number in range(3 * STORY_EVENTS_MAX):
        host.handle(ParcelFrom(GATEWAY, 1, Say(SINK, FIRST, 70, Ack(number)), cause=number))
    lines = host.story().splitlines()[1:]
    assert len(lines) == STORY_EVENTS_MAX
    assert f"cause={3 * STORY_EVENTS_MAX - 1}" in lines[-1]
    assert int(lines[-1].split()[0]) == host.events_handled


def test_every_event_with_rows_or_a_whole_view_is_shortened() -> None:
    host = working()
    state = CopyState(5, 10, ((SINK.partition, OutletState(run(9), 10, 8, ())),))
    for event, shown in (
        (ViewSeen(view(1, f=seats(1, "a", "b"))), "view 1"),
        (ParcelFrom(GATEWAY, 1, Relay(view(1, f=seats(1, "a", "b"))), 3), "view 1, gateway#3"),
        (Inside(FIRST, 1, Produced(((SINK.partition, run(4, 6)),))), "Produced f/0:0@1: 4..6 > sink/0"),
        (Inside(SECOND, 9, Installed(2, state)), "Installed f/0:1@9: attempt 2, version 5"),
        (Began(SECOND, 9, state), "Began f/0:1@9: version 5, through 10"),
        (Inside(SOURCE, 9, LogRead(FIRST, 3, run(4, 6))), "LogRead source/0:0@9 after 3: 4..6 > f/0:0"),
    ):
        host.handle(event)
        assert host.story().splitlines()[-1].split(maxsplit=1)[1] == shown


def test_a_controller_tells_its_story_too() -> None:
    made = controller()
    with pytest.raises(BrokenInvariant, match="MemberJoined") as raised:
        made.handle(TimerFired("strange"))
    assert str(raised.value).startswith("controller: the controller set no timer for")
    made.handle(MemberJoined("e", 9))
    assert "MemberJoined(node='e', order=9)" in made.story()


class Broken(Machine[str, str]):
    """A machine of which the peer, or we, have broken the protocol."""

    def _handle(self, event: str) -> list[str]:
        raise PeerError(event) if event == "theirs" else ZeroDivisionError(event)

    def check(self) -> None:
        pass


def test_only_errors_of_the_protocol_come_with_the_story() -> None:
    machine = Broken("machine")
    with pytest.raises(PeerError, match=r"machine: theirs\nthe story of machine:\n.*1 theirs -> rejected"):
        machine.handle("theirs")
    with pytest.raises(ZeroDivisionError, match=r"^ours$"):
        machine.handle("ours")


def test_a_timer_is_not_set_in_the_past() -> None:
    with pytest.raises(BrokenInvariant, match="cannot fire 3 ms ago"):
        SetTimer("key", -3)
