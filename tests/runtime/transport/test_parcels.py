"""Parcels between processes as frames, and back."""

from __future__ import annotations

import pytest
from understudy.core.flux_view import FluxView
from understudy.core.messages import Ack, CSync, Data, Folded, Pause, Paused, PSync, Reverse
from understudy.core.parcels import Attach, Here, Parcel, Relay, Say, Welcome
from understudy.core.topology import EGRESS

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.errors import PeerError
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view import Seat, Slot, Status, View
from understudy.runtime.transport.parcels import frames_of_parcel, parcel_of
from understudy.runtime.transport.wire import Frame, frame_of

PRODUCER = Copy(Partition("sessions", 12), Slot.SEC)
CONSUMER = Copy(EGRESS, Slot.PRIM)
SEATS = {Slot.PRIM: Seat("node-1.1", 1, Status.ACTIVE), Slot.SEC: Seat("node-2.1", 3, Status.STDBY)}
VIEW = FluxView(7, {Partition("sessions", 12): View(3, SEATS)}, frozenset({"node-9.1"}))


def sent(parcel: Parcel) -> list[Parcel]:
    """What arrives at the other end."""
    frames = frames_of_parcel(parcel)
    return [parcel_of(frame_of(frame.metadata(), frame.batch())) for frame in frames]


@pytest.mark.parametrize(
    "parcel",
    [
        Here(PRODUCER, 3),
        Attach(CONSUMER, 0, PRODUCER, 3, 5, NOTHING, 2, 17),
        Welcome(PRODUCER, CONSUMER, 5, 2),
        Relay(VIEW),
        *(
            Say(CONSUMER, PRODUCER, 5, (message,))
            for message in (
                Ack(4),
                Reverse(NOTHING),
                CSync(2, 9),
                PSync(2),
                Pause(),
                Paused(),
                Folded(2, 44),
            )
        ),
    ],
    ids=lambda parcel: str(parcel)[:40],
)
def test_a_parcel_arrives_as_it_was_sent(parcel: Parcel) -> None:
    assert sent(parcel) == [parcel]


def test_buckets_that_go_together_share_a_frame_and_keep_their_order() -> None:
    said = (Data(Bucket(1, b"one", 3)), Data(Bucket(2)), PSync(1), Data(Bucket(5, b"five", 4)))
    first, second, third = sent(Say(PRODUCER, CONSUMER, 8, said))
    assert isinstance(first, Say)
    assert isinstance(third, Say)
    assert second == Say(PRODUCER, CONSUMER, 8, (PSync(1),))
    numbers = [m.bucket.number for m in (*first.messages, *third.messages) if isinstance(m, Data)]
    assert numbers == [1, 2, 5]


@pytest.mark.parametrize(
    "head",
    [
        {"kind": "here", "copy": "sessions:PRIM", "epoch": 1},
        {"kind": "here", "copy": "sessions/0:THIRD", "epoch": 1},
        {"kind": "here", "copy": "sessions/0:PRIM", "epoch": "1"},
        {"kind": "welcome", "from": "a/0:PRIM", "to": "b/0:PRIM", "serial": 1},
        {"kind": "ack", "number": 3},
        {"kind": "relay", "view": "{}"},
        {"kind": "gossip"},
    ],
)
def test_what_is_no_parcel_is_the_peers_fault(head: dict[str, object]) -> None:
    with pytest.raises(PeerError):
        parcel_of(Frame(head))
