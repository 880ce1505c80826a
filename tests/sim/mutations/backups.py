"""Breaks of backups: of what they hold and say, of shipping, and of taking over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.edge.inlet import Inlet
from understudy.core.edge.messages import Ack, Attached, Send
from understudy.core.edge.outlet import Outlet
from understudy.core.replica.backing import Backing
from understudy.core.replica.events import CopyState, ShipDue, SnapshotFailed
from understudy.core.replica.movement import Lending
from understudy.core.replica.replica import Replica
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.seating import Seating
from understudy.core.view.view import Seats, Status

Patch = pytest.MonkeyPatch

# --- what a backup holds and says ------------------------------------------------------------------------


def do_not_acknowledge(patch: Patch) -> None:
    """A backup holds a snapshot and keeps that to itself."""
    hold = Inlet.hold

    def silent(inlet: Inlet, through: BucketId) -> list[Any]:
        hold(inlet, through)
        return []

    patch.setattr(Inlet, "hold", silent)


def acknowledge_what_was_put_out(patch: Patch) -> None:
    """A backup acknowledges what its producers have put out, as the active copy would, not what it holds."""
    handle = Inlet.handle

    def ahead(inlet: Inlet, event: object) -> list[Any]:
        done = handle(inlet, event)
        if inlet.passive and isinstance(event, Attached) and event.through > inlet.taken:
            return [Send(event.replica, Ack(event.through))]
        return done

    patch.setattr(Inlet, "handle", ahead)


def do_not_count_backups(patch: Patch) -> None:
    """Producers keep only what active copies lack."""
    active = property(lambda outlet: [r for r, s in outlet.status.items() if s is Status.ACTIVE])
    patch.setattr(Outlet, "live", active)
    patch.setattr(Outlet, "check", lambda _: None)


def ask_for_data(patch: Patch) -> None:
    """A backup asks its producers to send, like any copy."""
    choose = Inlet._choose_sender

    def eager(inlet: Inlet) -> list[Any]:
        passive, inlet.passive = inlet.passive, False
        try:
            return choose(inlet)
        finally:
            inlet.passive = passive

    patch.setattr(Inlet, "_choose_sender", eager)


def let_a_fetch_hang(patch: Patch) -> None:
    patch.setattr(Backing, "stalled", lambda *_: [])


# --- shipping --------------------------------------------------------------------------------------------


def ship_while_busy(patch: Patch) -> None:
    """A snapshot is taken as soon as its time has come, whatever the engine does."""
    handle = Replica.handle

    def at_once(copy: Replica, event: object) -> list[Any]:
        done = handle(copy, event)
        busy = copy.begun and copy.below is not None and copy.below.busy and not copy.lending.paused
        if isinstance(event, ShipDue) and busy:
            assert copy.below is not None
            done += copy.lending.stands_still(copy.below.handed)
        return done

    patch.setattr(Replica, "handle", at_once)
    patch.setattr(Replica, "check", lambda _: None)


def ship_what_is_older_than_what_is_held(patch: Patch) -> None:
    """A backup is served though it holds more than the copy that has taken over."""
    asked = Lending.asked

    def any_will_do(lending: Lending, request: Any) -> list[Any]:
        return asked(lending, request if request.holds is None else replace(request, holds=NOTHING - 1))

    patch.setattr(Lending, "asked", any_will_do)


def forget_a_request_when_its_snapshot_fails(patch: Patch) -> None:
    taken = Lending.taken

    def forgetful(lending: Lending, event: Any, *args: Any, **rest: Any) -> list[Any]:
        if isinstance(event, SnapshotFailed):
            lending.taking = {}
        return taken(lending, event, *args, **rest)

    patch.setattr(Lending, "taken", forgetful)


# --- taking over -----------------------------------------------------------------------------------------


def resume_without_outlets(patch: Patch) -> None:
    """A backup takes over without the output that no consumer has acknowledged."""
    resume = Replica._resume

    def emptied(copy: Replica, backing: Backing, held: CopyState | None) -> list[Any]:
        assert held is not None
        outlets = tuple((p, replace(o, kept=(), gone_through=o.produced_through)) for p, o in held.outlets)
        return resume(copy, backing, replace(held, outlets=outlets))

    patch.setattr(Replica, "_resume", emptied)


def resume_one_bucket_late(patch: Patch) -> None:
    """A backup takes over and leaves out the first bucket after its snapshot."""
    take_over = Inlet.take_over

    def late(inlet: Inlet) -> list[Any]:
        inlet.received += 1
        return take_over(inlet)

    patch.setattr(Inlet, "take_over", late)


def never_promote(patch: Patch) -> None:
    patch.setattr(Seating, "take_over", lambda _: {})


def promote_all(patch: Patch) -> None:
    """Every backup of a partition takes over."""
    take_over = Seating.take_over

    def all_of_them(seating: Seating) -> dict[Partition, Seats]:
        done = take_over(seating)
        for partition, seats in done.items():
            for replica, seat in enumerate(seats.seats):
                if seat.status is Status.BACKUP:
                    active = replace(seat, status=Status.ACTIVE)
                    done[partition] = done[partition].with_seat(replica, active, seats.epoch)
        return done

    patch.setattr(Seating, "take_over", all_of_them)


def promote_a_standby(patch: Patch) -> None:
    """A standby takes over, whether it holds a snapshot or not."""
    take_over = Seating.take_over

    def hasty(seating: Seating) -> dict[Partition, Seats]:
        done = take_over(seating)
        for partition, seats in seating.view.partitions.items():
            held = any(seat.status.has_state for seat in seats.seats)
            for replica, seat in enumerate(seats.seats):
                if seat.status is Status.STDBY and not held:
                    active = replace(seat, status=Status.ACTIVE)
                    done[partition] = seating.with_seat(Copy(partition, replica), active)
        return done

    patch.setattr(Seating, "take_over", hasty)
