"""Breaks of an edge: of producers and what they keep, and of consumers and what they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.buffer import Buffer
from understudy.core.edge.inlet import Inlet
from understudy.core.edge.merge import Merge
from understudy.core.edge.messages import Ack, From, Reread, Reverse, Send
from understudy.core.edge.outlet import Outlet, OutletState
from understudy.core.replica.consumer import Consumer
from understudy.core.view.view import Status

Patch = pytest.MonkeyPatch
NEVER = 2**62

# --- producers and what they keep ------------------------------------------------------------------------


def reserve_nothing(patch: Patch) -> None:
    """Nothing is kept for a newcomer until it attaches."""
    attach = Outlet._attach

    def avail(outlet: Outlet, replica: int) -> None:
        outlet.buffer.floor[replica] = NEVER
        outlet.buffer.sent[replica] = NOTHING
        outlet.status[replica] = Status.STDBY

    def attached(outlet: Outlet, replica: int, through: int) -> None:
        if outlet.buffer.floor[replica] == NEVER:
            outlet.buffer.floor[replica] = through
        attach(outlet, replica, through)

    patch.setattr(Outlet, "_avail", avail)
    patch.setattr(Outlet, "_attach", attached)


def reserve_what_the_fastest_lacks(patch: Patch) -> None:
    """A newcomer is kept what the fastest of the other copies lacks, not the slowest."""

    def reserve(buffer: Buffer, destination: int, like: Sequence[int]) -> None:
        buffer.floor[destination] = max((buffer.floor[other] for other in like), default=buffer.gone_through)
        buffer.sent[destination] = NOTHING

    patch.setattr(Buffer, "reserve", reserve)


def drop_on_first_ack(patch: Patch) -> None:
    """One copy's acknowledgement lets go of what another one has not got."""
    trim = Buffer.trim

    def eager(buffer: Buffer, required: Sequence[int], reserved: Sequence[int] = ()) -> None:
        furthest = max(required, key=lambda each: buffer.floor[each], default=None)
        trim(buffer, [] if furthest is None else [furthest], reserved)

    patch.setattr(Buffer, "trim", eager)
    patch.setattr(Buffer, "check", lambda *_: None)


def drop_when_sent(patch: Patch) -> None:
    """What was sent counts as delivered."""
    sends = Outlet._sends

    def forgetful(outlet: Outlet) -> list[Send | Reread]:
        done = sends(outlet)
        for each in done:
            outlet.buffer.ack(each.replica, outlet.buffer.produced_through)
        outlet._trim()
        return done

    patch.setattr(Outlet, "_sends", forgetful)


def ignore_reverse(patch: Patch) -> None:
    """A copy that is asked to send goes on from what it sent last."""
    patch.setattr(Buffer, "rewind", lambda *_: None)


def rewind_too_little(patch: Patch) -> None:
    rewind = Buffer.rewind
    patch.setattr(Buffer, "rewind", lambda buffer, to, after: rewind(buffer, to, after + 1))


def reverse_as_acknowledgement(patch: Patch) -> None:
    """What a consumer has received counts as taken."""
    handle = Outlet.handle

    def acknowledging(outlet: Outlet, event: object) -> list[Send | Reread]:
        done = handle(outlet, event)
        if isinstance(event, From) and isinstance(event.message, Reverse):
            outlet.buffer.ack(event.replica, event.message.through)
            outlet._trim()
        return done

    patch.setattr(Outlet, "handle", acknowledging)


def move_without_outlets(patch: Patch) -> None:
    """A state is moved without the output that no consumer has acknowledged."""
    state = Outlet.state

    def emptied(outlet: Outlet) -> OutletState:
        return replace(state(outlet), kept=())

    patch.setattr(Outlet, "state", emptied)


# --- consumers and what they take ------------------------------------------------------------------------


def ack_on_receipt(patch: Patch) -> None:
    data = Inlet._data

    def acknowledging(inlet: Inlet, replica: int, buckets: tuple[Bucket, ...]) -> list[Any]:
        done = data(inlet, replica, buckets)
        return [*done, *(Send(each, Ack(inlet.received)) for each in sorted(inlet.attached) if done)]

    patch.setattr(Inlet, "_data", acknowledging)


def ack_ahead_of_engine(patch: Patch) -> None:
    """A group is acknowledged as far as input is complete, not as far as it was handed on."""
    acknowledge = Consumer._acknowledge

    def ahead(consumer: Consumer) -> list[Any]:
        handed, consumer.merge.handed = consumer.merge.handed, consumer.merge.frontier
        try:
            return acknowledge(consumer)
        finally:
            consumer.merge.handed = handed

    patch.setattr(Consumer, "_acknowledge", ahead)
    patch.setattr(Consumer, "check", lambda _: None)


def sink_acks_before_it_wrote(patch: Patch) -> None:
    init = Consumer.__init__

    def hasty(consumer: Consumer, *args: Any, acks_when_processed: bool = False, **rest: Any) -> None:
        init(consumer, *args, **rest)

    patch.setattr(Consumer, "__init__", hasty)


def await_pauses_of_the_old_connection(patch: Patch) -> None:
    attach = Inlet._attach

    def remembering(inlet: Inlet, replica: int) -> list[Any]:
        pausing = inlet._pausing[replica]
        done = attach(inlet, replica)
        inlet._pausing[replica] = pausing
        return done

    patch.setattr(Inlet, "_attach", remembering)


def keep_the_lost_sender(patch: Patch) -> None:
    """A sender whose connection broke stays the sender."""

    def detach(inlet: Inlet, replica: int) -> list[Any]:
        inlet.attached.discard(replica)
        return []

    patch.setattr(Inlet, "_detach", detach)
    patch.setattr(Inlet, "check", lambda _: None)


def merge_without_waiting(patch: Patch) -> None:
    """What the fastest producer sent counts as complete."""
    put = Merge.put

    def eager(merge: Merge, producer: Any, buckets: Any) -> None:
        put(merge, producer, buckets)
        merge.frontier = max(merge._received.values())

    patch.setattr(Merge, "put", eager)
    patch.setattr(Merge, "check", lambda _: None)
    patch.setattr(Inlet, "_take", lambda inlet, through: _taken(inlet, min(through, inlet.received)))
    patch.setattr(Consumer, "check", lambda _: None)


def _taken(inlet: Inlet, through: int) -> list[Send]:
    inlet.taken = through
    return [Send(replica, Ack(through)) for replica in sorted(inlet.attached)]
