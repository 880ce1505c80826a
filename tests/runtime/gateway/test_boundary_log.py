"""The boundary and its log: how far it is trimmed and forgotten, and who gets what out of it again."""

from __future__ import annotations

from pathlib import Path

import pytest
from boundary_kit import FAST, ROWS, Gateway, gateway

from understudy.core.edge.messages import Ack, Held
from understudy.core.host.parcels import PeerDown, ViewSeen
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.view import Seat, Seats, Status, View
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.ingest.buckets import SealedBucket
from understudy.runtime.payload import decode
from understudy.runtime.transport.wire import Frame

ONE, BOTH = Copy(Partition("one")), Copy(Partition("both"))
LOG = [SealedBucket("fast", number, ROWS) for number in range(1, 9)]


def attached(gate: Gateway, through: int = 0) -> None:
    gate.connect()
    gate.attach(ONE, FAST, through)
    gate.attach(BOTH, FAST, through)


def numbers_for(gate: Gateway, consumer: Copy) -> list[int]:
    return [bucket.number for bucket in gate.data_for(consumer)]


# --- trimmed and forgotten ----------------------------------------------------------------------------------


def test_without_saving_the_log_forgets_what_is_trimmed(made: list[Gateway], tmp_path: Path) -> None:
    gate = gateway(made, tmp_path)
    attached(gate)
    gate.sealed("fast", 1, 2, 3)
    gate.say(ONE, FAST, Ack(3))
    assert (gate.around.trimmed, gate.around.forgotten) == ({}, {})
    gate.say(BOTH, FAST, Ack(2))
    assert (gate.around.trimmed, gate.around.forgotten) == ({"fast": 2}, {"fast": 2})


def test_with_saving_the_log_keeps_what_a_saved_state_may_need(made: list[Gateway], tmp_path: Path) -> None:
    gate = gateway(made, tmp_path, saves=True)
    attached(gate)
    gate.sealed("fast", 1, 2, 3)
    gate.say(ONE, FAST, Ack(3))
    gate.say(BOTH, FAST, Ack(3))
    assert (gate.around.trimmed, gate.around.forgotten) == ({"fast": 3}, {})
    gate.say(ONE, FAST, Held(2))
    assert gate.around.forgotten == {}, "the other partition has saved nothing"
    gate.say(BOTH, FAST, Held(1))
    assert gate.around.forgotten == {"fast": 1}
    gate.say(BOTH, FAST, Held(3))
    assert gate.around.forgotten == {"fast": 2}


def test_what_is_saved_and_not_trimmed_is_forgotten_only_when_it_is(
    made: list[Gateway], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that is quick may have saved what its slow replica has not taken yet."""
    gate = gateway(made, tmp_path, "pair", saves=True)
    gate.connect("n")
    gate.connect("m")
    for partition in (Partition("one"), Partition("both")):
        for replica, node in enumerate(("n", "m")):
            gate.attach(Copy(partition, replica), FAST, 0, node)
    gate.sealed("fast", 1, 2, 3)
    told: list[int] = []
    honest = gate.around.forget
    monkeypatch.setattr(
        gate.around, "forget", lambda source, through: (told.append(through), honest(source, through))
    )
    for partition in (Partition("one"), Partition("both")):
        gate.say(Copy(partition, 0), FAST, Ack(3), "n")
        gate.say(Copy(partition, 0), FAST, Held(3), "n")
    assert told == []
    for partition in (Partition("one"), Partition("both")):
        gate.say(Copy(partition, 1), FAST, Ack(2), "m")
    assert (gate.around.trimmed, told) == ({"fast": 2}, [2])


# --- read again ---------------------------------------------------------------------------------------------


def test_a_copy_that_begins_again_gets_its_share_from_the_log_and_the_rest_from_memory(
    made: list[Gateway], tmp_path: Path
) -> None:
    """The gateway began again behind bucket 5, and its log goes further back."""
    gate = gateway(made, tmp_path, "flux", saves=True, recovered=LOG[5:], trimmed={"fast": 5}, log=LOG)
    part = Copy(Partition("one", 0))
    gate.connect()
    gate.attach(part, FAST, through=1)
    gate.until(lambda: numbers_for(gate, part)[-1:] == [8])
    assert numbers_for(gate, part) == [2, 3, 4, 5, 6, 7, 8]
    gate.attach(Copy(Partition("one", 1)), FAST, through=1)
    gate.until(lambda: numbers_for(gate, Copy(Partition("one", 1)))[-1:] == [8])
    keys = {
        index: [
            key
            for bucket in gate.data_for(Copy(Partition("one", index)))
            if not bucket.empty
            for key in decode(bucket.payload)["fast"]["k"].to_pylist()  # type: ignore[arg-type]
        ]
        for index in range(2)
    }
    assert sorted(keys[0] + keys[1]) == sorted(7 * [1, 2, 3, 4])
    assert not set(keys[0]) & set(keys[1]), "each got its own share, out of the log and out of memory"


def test_a_gateway_that_begins_again_goes_on_with_a_copy_that_was_being_refilled(
    made: list[Gateway], tmp_path: Path
) -> None:
    first = gateway(made, tmp_path, saves=True, recovered=LOG[5:], trimmed={"fast": 5}, log=LOG)
    first.around.may_read.clear()
    first.connect()
    first.attach(ONE, FAST, through=0)
    assert numbers_for(first, ONE) == []
    first.around.may_read.set()
    first.until(lambda: numbers_for(first, ONE)[:2] == [1, 2])
    # The copy has two buckets when the gateway is killed.
    again = gateway(made, tmp_path, saves=True, recovered=LOG[5:], trimmed={"fast": 5}, log=LOG)
    again.connect()
    again.attach(ONE, FAST, through=2)
    again.until(lambda: numbers_for(again, ONE)[-1:] == [8])
    assert numbers_for(again, ONE) == [3, 4, 5, 6, 7, 8]
    assert again.around.forgotten == {}


def test_a_log_that_cannot_be_read_again_ends_the_gateway_with_the_reason(
    made: list[Gateway], tmp_path: Path
) -> None:
    gate = gateway(made, tmp_path, saves=True, recovered=LOG[5:], trimmed={"fast": 5}, log=LOG)
    gate.around.forgotten["fast"] = 4
    gate.connect()
    gate.attach(ONE, FAST, through=1)
    gate.until(lambda: bool(gate.around.failures))
    (failure,) = gate.around.failures
    assert isinstance(failure, EnvironmentFailed)
    assert str(failure) == "what follows 1 is forgotten"
    gate.around.failures.clear()


@pytest.mark.parametrize("how", ["its connection broke", "it is dead"])
def test_a_copy_that_left_while_the_log_was_read_for_it_ends_nothing(
    made: list[Gateway], tmp_path: Path, how: str
) -> None:
    """Without it the log may let go of what it was to get."""
    gate = gateway(made, tmp_path, "pair", saves=True, recovered=LOG[5:], trimmed={"fast": 5}, log=LOG)
    gate.around.may_read.clear()
    gate.connect()
    gate.attach(ONE, FAST, through=1)
    if how == "it is dead":
        partitions = gate.boundary.host.topology.partitions
        seats = (Seat("n", 1, Status.DEAD), Seat("m", 1, Status.ACTIVE))
        gate.tell(ViewSeen(View(2, {partition: Seats(2, seats) for partition in partitions})))
    else:
        gate.tell(PeerDown("n", 1))
    gate.around.forgotten["fast"] = 4
    gate.around.may_read.set()
    gate.until(lambda: gate.around.refused == 1)
    # A second copy is read for by the same thread, after the first.
    gate.around.forgotten["fast"] = 0
    gate.connect("m")
    gate.attach(Copy(Partition("one"), 1), FAST, through=3, node="m")
    gate.until(lambda: numbers_for(gate, Copy(Partition("one"), 1))[-1:] == [8])
    assert gate.around.failures == []


def test_every_node_is_told_to_save(
    made: list[Gateway], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = gateway(made, tmp_path, "pair", saves=True)
    told: list[tuple[str, str]] = []
    monkeypatch.setattr(gate.boundary.mesh, "tell", lambda node, frame: told.append((node, frame.kind)))
    gate.boundary.have_all_saved()
    gate.settle()
    assert told == [("m", "save"), ("n", "save")]


def test_the_status_tells_which_partitions_are_down_and_which_were_restored(
    made: list[Gateway], tmp_path: Path
) -> None:
    gate = gateway(made, tmp_path, saves=True)
    dead = Seats(2, (Seat("n", 1, Status.DEAD),), lost="no copy is left")
    gate.tell(
        ViewSeen(
            View(2, {Partition("one"): dead, Partition("both"): Seats(1, (Seat("n", 1, Status.ACTIVE),))})
        )
    )
    status = gate.boundary.status()
    assert (status["down"], status["restored"], status["lost"]) == (["one/0"], {}, None)
    again = Seats(3, (Seat("m", 3, Status.ACTIVE),), restored=3)
    gate.tell(
        ViewSeen(
            View(3, {Partition("one"): again, Partition("both"): Seats(1, (Seat("n", 1, Status.ACTIVE),))})
        )
    )
    status = gate.boundary.status()
    assert (status["down"], status["restored"]) == ([], {"one/0": 3})


# --- what waits for copies ----------------------------------------------------------------------------------


def awaiting(gate: Gateway) -> list[str]:
    found: list[str] = gate.boundary.status()["awaiting_rows"]
    return found


@pytest.mark.parametrize("saves", [True, False])
def test_the_status_names_the_copies_that_have_rows_to_come(
    made: list[Gateway], tmp_path: Path, saves: bool
) -> None:
    gate = gateway(made, tmp_path, saves=saves)
    attached(gate)
    assert awaiting(gate) == []
    gate.sealed("fast", 1, 2, 3)
    assert awaiting(gate) == ["both/0:0", "one/0:0"]
    gate.say(ONE, FAST, Ack(3))
    gate.say(BOTH, FAST, Ack(2))
    assert awaiting(gate) == ["both/0:0"]
    gate.say(BOTH, FAST, Ack(3))
    gate.sealed("fast", 4, table=None)
    assert awaiting(gate) == [], "there are no rows in the last bucket"


def test_rows_that_wait_for_room_are_to_come_for_every_copy(made: list[Gateway], tmp_path: Path) -> None:
    gate = gateway(made, tmp_path, saves=True, input_buckets_max=2)
    attached(gate)
    gate.sealed("fast", 1, 2)
    gate.say(ONE, FAST, Ack(2))
    assert awaiting(gate) == ["both/0:0"]
    gate.sealed("fast", 3)
    assert numbers_for(gate, ONE) == [1, 2], "there is no room for the third"
    assert awaiting(gate) == ["both/0:0", "one/0:0"]


def test_after_a_restart_rows_are_to_come_until_a_copy_says_what_it_has(
    made: list[Gateway], tmp_path: Path
) -> None:
    log = [SealedBucket("fast", number, ROWS) for number in (1, 2, 3)]
    gate = gateway(made, tmp_path, saves=True, trimmed={"fast": 3}, log=log)
    gate.connect()
    assert awaiting(gate) == ["both/0:0", "one/0:0"], "the log has what they may lack"
    gate.attach(ONE, FAST, 3)
    gate.attach(BOTH, FAST, 1)
    assert awaiting(gate) == ["both/0:0"]
    gate.say(BOTH, FAST, Ack(3))
    assert awaiting(gate) == []


def test_the_status_tells_the_newest_save_of_each_partition(made: list[Gateway], tmp_path: Path) -> None:
    gate = gateway(made, tmp_path, saves=True)
    save = {"saved_through": 5, "saved_at_s": 9.0, "saved_bytes": 7}
    gate.boundary.frame_arrived("n", Frame({"kind": "stats", "copies": {"one/0:0": save}}))
    gate.boundary.frame_arrived("m", Frame({"kind": "stats", "copies": {"one/0:1": {"begun": True}}}))
    assert gate.boundary.status()["saved"] == {"one/0": {"through": 5, "at_s": 9.0, "bytes": 7}}
