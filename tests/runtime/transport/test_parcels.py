"""Parcels between processes as frames, and back."""

from __future__ import annotations

from typing import Any

import pytest

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.messages import Ack, Data, Held, Pause, Paused, Reverse
from understudy.core.errors import PeerError
from understudy.core.host.parcels import (
    Attach,
    Here,
    Lacking,
    Offering,
    Parcel,
    Relay,
    Request,
    Say,
    Welcome,
)
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.view import Seat, Seats, Status, View
from understudy.runtime.transport.parcels import frames_of, parcel_of
from understudy.runtime.transport.wire import MESSAGE_BUCKETS_MAX, MESSAGE_BYTES_MAX, Frame, frame_of

PRODUCER = Copy(Partition("sessions", 12), 2)
CONSUMER = Copy(Partition("sink:stats"))
SEATS = Seats(
    3,
    (Seat("node-1.1", 1, Status.ACTIVE), Seat("node-2.1", 3, Status.STDBY), Seat("node-3.1", 1, Status.DEAD)),
)
VIEW = View(
    7,
    {Partition("sessions", 12): SEATS, Partition("stats"): SEATS},
    frozenset({"node-9.1"}),
    {PRODUCER: "node-4.1"},
)
PARCELS: list[Parcel] = [
    Here(PRODUCER, 3),
    Attach(CONSUMER, 0, PRODUCER, 3, 5, NOTHING),
    Welcome(PRODUCER, CONSUMER, 5, 2),
    Lacking(PRODUCER, CONSUMER, 5),
    Relay(VIEW),
    Request(PRODUCER, 3, Copy(PRODUCER.partition, 0), 2),
    Offering(Copy(PRODUCER.partition, 0), 1, PRODUCER, 3, 2, 17),
    *(Say(CONSUMER, PRODUCER, 5, said) for said in (Ack(4), Held(3), Reverse(NOTHING), Pause(), Paused())),
    Say(PRODUCER, CONSUMER, 5, Data((Bucket(1, b"one", 3), Bucket(2), Bucket(5, b"", 0)))),
]


def sent(parcel: Parcel, cause: int = 0) -> list[tuple[Parcel, int]]:
    """What arrives at the other end."""
    return [parcel_of(frame_of(frame.metadata(), frame.batch())) for frame in frames_of(parcel, cause)]


@pytest.mark.parametrize("parcel", PARCELS, ids=lambda parcel: str(parcel)[:40])
def test_a_parcel_arrives_as_it_was_sent_and_with_its_cause(parcel: Parcel) -> None:
    assert sent(parcel, cause=41) == [(parcel, 41)]


@pytest.mark.parametrize("parcel", PARCELS, ids=lambda parcel: str(parcel)[:40])
def test_a_parcel_without_any_one_of_its_facts_is_the_peers_fault(parcel: Parcel) -> None:
    (frame,) = frames_of(parcel, 41)
    for fact in frame.head.keys() - {"kind"}:
        with pytest.raises(PeerError, match=f"malformed {frame.kind!r}.*{fact}"):
            parcel_of(Frame({k: v for k, v in frame.head.items() if k != fact}, frame.bodies))


@pytest.mark.parametrize("parcel", PARCELS, ids=lambda parcel: str(parcel)[:40])
@pytest.mark.parametrize(
    "nonsense", [None, True, 1.5, "rubbish", [[]], {}, "sessions/0", "/0:1", "s/-1:0"], ids=repr
)
def test_nonsense_in_any_fact_is_the_peers_fault(parcel: Parcel, nonsense: Any) -> None:
    (frame,) = frames_of(parcel, 41)
    # A standby that holds nothing says just that.
    for fact in frame.head.keys() - ({"kind", "holds"} if nonsense is None else {"kind"}):
        with pytest.raises(PeerError):
            parcel_of(Frame({**frame.head, fact: nonsense}, frame.bodies))


# --- runs of buckets -------------------------------------------------------------------------------------


def run(*buckets: Bucket) -> Say:
    return Say(PRODUCER, CONSUMER, 8, Data(buckets))


def numbers_in(frames: list[Frame]) -> list[list[int]]:
    return [list(frame.head["numbers"]) for frame in frames]


def test_buckets_share_a_frame_up_to_a_size_and_a_number() -> None:
    third = bytes(MESSAGE_BYTES_MAX // 3)
    heavy = [Bucket(n, third, len(third)) for n in range(7)]
    assert numbers_in(frames_of(run(*heavy))) == [[0, 1, 2], [3, 4, 5], [6]]
    empty = [Bucket(n) for n in range(2 * MESSAGE_BUCKETS_MAX + 1)]
    full = MESSAGE_BUCKETS_MAX
    assert [len(frame.bodies) for frame in frames_of(run(*empty))] == [full, full, 1]


def test_a_bucket_that_is_larger_than_a_frame_should_be_has_one_to_itself() -> None:
    heavy = bytes(MESSAGE_BYTES_MAX + 1)
    buckets = (Bucket(1, b"x", 1), Bucket(2, heavy, len(heavy)), Bucket(3, b"x", 1), Bucket(4))
    assert numbers_in(frames_of(run(*buckets))) == [[1], [2], [3, 4]]


def test_a_run_in_several_frames_arrives_as_runs_over_the_same_edge_in_order() -> None:
    third = bytes(MESSAGE_BYTES_MAX // 3)
    buckets = tuple(Bucket(n, third, len(third)) for n in range(5))
    assert sent(run(*buckets), cause=6) == [(run(*buckets[:3]), 6), (run(*buckets[3:]), 6)]


def test_payloads_are_passed_on_and_not_copied() -> None:
    payload = bytes(1_000)
    (frame,) = frames_of(run(Bucket(1, payload, 1_000)))
    assert frame.bodies[0] is payload


@pytest.mark.parametrize(
    ("numbers", "bodies", "why"),
    [
        ([1, 2], (b"one",), "2 numbers came with 1 bodies"),
        ([], (), "a run of buckets has at least one"),
        (["1"], (b"one",), "is not a whole number"),
        ([True], (b"one",), "is not a whole number"),
        (7, (b"one",), "not iterable"),
    ],
)
def test_a_run_that_does_not_fit_together_is_the_peers_fault(
    numbers: Any, bodies: tuple[bytes, ...], why: str
) -> None:
    head = {**frames_of(run(Bucket(1)))[0].head, "numbers": numbers}
    with pytest.raises(PeerError, match=why):
        parcel_of(Frame(head, bodies))


# --- views -----------------------------------------------------------------------------------------------


def later(epoch: int) -> View:
    moved = Seats(epoch, (*SEATS.seats[:2], Seat("node-5.1", epoch, Status.ACTIVE)))
    return View(epoch, {**VIEW.partitions, Partition("stats"): moved})


def test_of_a_view_only_what_the_receiver_lacks_is_sent() -> None:
    (whole,), (changes,) = frames_of(Relay(later(9))), frames_of(Relay(later(9)), since=VIEW)
    assert "sessions" in whole.head["view"]
    assert "sessions" not in changes.head["view"]
    assert parcel_of(changes, {7: VIEW})[0] == parcel_of(whole)[0] == Relay(later(9))


def test_changes_since_a_view_that_is_not_known_here_are_the_peers_fault() -> None:
    (changes,) = frames_of(Relay(later(9)), since=VIEW)
    with pytest.raises(PeerError, match="changes since 7, which is not known here"):
        parcel_of(changes, {6: VIEW})


@pytest.mark.parametrize(
    "head",
    [
        {"kind": "here", "copy": "sessions:0", "epoch": 1, "cause": 1},
        {"kind": "here", "copy": "sessions/0:THIRD", "epoch": 1, "cause": 1},
        {"kind": "here", "copy": "sessions/0:0", "epoch": 1, "cause": "1"},
        {"kind": "relay", "view": "{}", "cause": 1},
        {"kind": "gossip", "cause": 1},
        {"kind": "beat"},
    ],
)
def test_what_is_no_parcel_is_the_peers_fault(head: dict[str, object]) -> None:
    with pytest.raises(PeerError):
        parcel_of(Frame(head))
