"""Breaks of saved state: of what is kept for the store, of logs that are read again, and of going back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.edge.buffer import Buffer
from understudy.core.edge.inlet import Inlet
from understudy.core.edge.messages import Data, Held, Send
from understudy.core.edge.outlet import Outlet, OutletState
from understudy.core.host.edges import Edges
from understudy.core.host.places import Places
from understudy.core.replica.consumer import Consumer
from understudy.core.replica.events import CopyState, DropSnapshot
from understudy.core.replica.movement import Lending
from understudy.core.replica.producer import Producer
from understudy.core.replica.replica import Replica
from understudy.core.shape.partition import Partition
from understudy.core.view.controller import Controller
from understudy.core.view.seating import Seating
from understudy.core.view.view import Seats, Status
from understudy.sim import world
from understudy.sim.vault import Vault

Patch = pytest.MonkeyPatch


# --- going back ------------------------------------------------------------------------------------------


def ignore_what_the_log_has_forgotten(patch: Patch) -> None:
    """A source lets every copy attach, as if its log went back for ever."""
    lacks = Outlet.lacks
    patch.setattr(Outlet, "lacks", lambda outlet, through: not outlet.backed and lacks(outlet, through))


def go_back_alone(patch: Patch) -> None:
    """A copy that its producer cannot serve goes back, and its producer does not."""
    bury = Controller._bury

    def one(controller: Controller, copies: Any, why: str, *rest: Any) -> list[Any]:
        return bury(controller, copies[:1] if "was given up, since" in why else copies, why, *rest)

    patch.setattr(Controller, "_bury", one)


def ignore_lacking(patch: Patch) -> None:
    """A consumer does not hear that its producer cannot serve it."""
    patch.setattr(Edges, "lacking", lambda *_: False)


def believe_moved_floors_of_new_seats(patch: Patch) -> None:
    """A moved outlet counts what the former occupant of a seat had acknowledged to the lender."""
    install = Outlet.install

    def trusting(outlet: Outlet, state: OutletState, *, saved: bool = False) -> None:
        unheard, outlet._unheard = outlet._unheard, set()
        install(outlet, state, saved=saved)
        outlet._unheard = unheard

    patch.setattr(Outlet, "install", trusting)


def forget_what_sinks_hold(patch: Patch) -> None:
    """An outlet that was saved forgets what the sink had acknowledged, as it forgets it of copies."""
    install = Outlet.install

    def forgetful(outlet: Outlet, state: OutletState, *, saved: bool = False) -> None:
        install(outlet, state, saved=saved)
        outlet._acked_to_lender = {} if saved else outlet._acked_to_lender

    patch.setattr(Outlet, "install", forgetful)


def never_restore(patch: Patch) -> None:
    """A partition that lost all its copies stays lost."""
    patch.setattr(Seating, "restore", lambda _: {})


def restore_as_a_standby(patch: Patch) -> None:
    """A copy that is to begin with a saved state waits for a live one to lend its state."""
    restore = Seating.restore

    def waiting(seating: Seating) -> dict[Partition, Seats]:
        return {
            partition: replace(seats, seats=(replace(seats.seats[0], status=Status.STDBY), *seats.seats[1:]))
            for partition, seats in restore(seating).items()
        }

    patch.setattr(Seating, "restore", waiting)


# --- what is kept for the store --------------------------------------------------------------------------


def floor_of_the_newest(patch: Patch) -> None:
    """Producers keep what the newest snapshot lacks, not the oldest."""

    def newest(vault: Vault, partition: Partition) -> BucketId:
        kept = vault.get(partition, ())
        return kept[-1].state.through if kept else NOTHING

    patch.setattr(world, "floor_of", newest)


def floor_of_the_only_one(patch: Patch) -> None:
    """The first snapshot of all lets producers forget, though it may be damaged."""

    def oldest(vault: Vault, partition: Partition) -> BucketId:
        kept = vault.get(partition, ())
        return kept[0].state.through if kept else NOTHING

    patch.setattr(world, "floor_of", oldest)


def do_not_count_the_store(patch: Patch) -> None:
    """Copies drop their output when all live copies of the consumer have it."""
    patch.setattr(Outlet, "_reserved", property(lambda _: ()))


def forget_logs_by_live_copies(patch: Patch) -> None:
    """A log forgets what all live copies have."""
    patch.setattr(Producer, "log_needed", Producer.trimmed_through)
    patch.setattr(Outlet, "_trim", lambda outlet: outlet.buffer.trim(outlet.live, outlet._reserved))


def do_not_say_what_the_store_holds(patch: Patch) -> None:
    patch.setattr(Consumer, "held", lambda *_: [])


def do_not_repeat_what_the_store_holds(patch: Patch) -> None:
    """What the store holds is said once, and lost with a connection or a gateway."""
    attach = Inlet._attach

    def silent(inlet: Inlet, replica: int) -> list[Any]:
        done = attach(inlet, replica)
        return [each for each in done if not (isinstance(each, Send) and isinstance(each.message, Held))]

    patch.setattr(Inlet, "_attach", silent)


def save_with_a_gap(patch: Patch) -> None:
    """A state is saved though its output would not do for an older state of the consumer."""
    patch.setattr(Producer, "gap", property(lambda _: False))


def reserves_make_full(patch: Patch) -> None:
    """A producer waits for room that only a save of its consumer can make."""

    def full(buffer: Buffer) -> bool:
        return len(buffer) >= buffer.buckets_max or buffer.size_bytes >= buffer.bytes_max

    patch.setattr(Buffer, "full", property(full))


def save_in_every_copy(patch: Patch) -> None:
    """All active copies of a partition save its state, not one."""
    patch.setattr(Places, "saves", lambda places, copy: copy in places.lenders(copy.partition))


def drop_the_snapshot_before_it_is_saved(patch: Patch) -> None:
    """A snapshot that no standby needs any more goes, though it is on its way to the store."""
    patch.setattr(Lending, "_drop_unused", lambda _, version: [DropSnapshot(version)])


# --- beginning with a saved state ------------------------------------------------------------------------


def begin_without_outlets(patch: Patch) -> None:
    """A saved state is installed without the output that it keeps."""
    install = Producer.install

    def bare(producer: Producer, outlets: Any, *, saved: bool = False) -> None:
        kept = [
            (partition, replace(state, kept=())) if saved else (partition, state)
            for partition, state in outlets
        ]
        install(producer, tuple(kept), saved=saved)

    patch.setattr(Producer, "install", bare)


def begin_without_its_number(patch: Patch) -> None:
    """A saved state is installed, and its input begins anew."""
    take_over = Replica._take_over

    def from_the_start(replica: Replica, state: CopyState, *, saved: bool) -> None:
        take_over(replica, replace(state, through=NOTHING) if saved else state, saved=saved)

    patch.setattr(Replica, "_take_over", from_the_start)


def believe_saved_floors(patch: Patch) -> None:
    """A saved outlet counts what replicas had acknowledged when it was saved."""
    install = Outlet.install

    def trusting(outlet: Outlet, state: OutletState, *, saved: bool = False) -> None:
        install(outlet, state, saved=False)

    patch.setattr(Outlet, "install", trusting)


def do_not_correct_the_guess(patch: Patch) -> None:
    """What is kept for a copy in a new seat is not corrected when it says what it has."""
    attach = Outlet._attach

    def stubborn(outlet: Outlet, replica: int, through: BucketId) -> None:
        outlet._unheard.discard(replica)
        attach(outlet, replica, through)

    patch.setattr(Outlet, "_attach", stubborn)


# --- logs that are read again ----------------------------------------------------------------------------


def go_on_from_memory(patch: Patch) -> None:
    """What is gone from memory is not read again."""

    def begin_sending(outlet: Outlet, replica: int, after: BucketId) -> None:
        outlet.sending.add(replica)
        outlet.buffer.rewind(replica, after)

    patch.setattr(Outlet, "_begin_sending", begin_sending)


def refill_one_bucket_short(patch: Patch) -> None:
    """Memory is said to begin one bucket before it does."""
    refilled = Outlet._refilled

    def short(outlet: Outlet, replica: int, after: BucketId, buckets: tuple[Bucket, ...]) -> list[Send]:
        gone, outlet.buffer.gone_through = outlet.buffer.gone_through, outlet.buffer.gone_through - 1
        try:
            return refilled(outlet, replica, after, buckets)
        finally:
            outlet.buffer.gone_through = gone

    patch.setattr(Outlet, "_refilled", short)


def refill_one_piece(patch: Patch) -> None:
    """After the first piece of the log the rest comes from memory."""
    refilled = Outlet._refilled

    def once(outlet: Outlet, replica: int, after: BucketId, buckets: tuple[Bucket, ...]) -> list[Send]:
        done = refilled(outlet, replica, after, buckets)
        if done and outlet.refills.pop(replica, None) is not None:
            outlet.buffer.rewind(replica, buckets[-1].number)
        return done

    patch.setattr(Outlet, "_refilled", once)


def refill_for_whom_it_may_concern(patch: Patch) -> None:
    """A piece of the log is sent although it was asked for before the copy asked anew."""

    def refilled(outlet: Outlet, replica: int, after: BucketId, buckets: tuple[Bucket, ...]) -> list[Send]:
        refill = outlet.refills.get(replica)
        if refill is None:
            return []
        refill.sent(buckets)
        if refill.after >= outlet.buffer.gone_through:
            del outlet.refills[replica]
            outlet.buffer.rewind(replica, buckets[-1].number)
        return [Send(replica, Data(buckets))]

    patch.setattr(Outlet, "_refilled", refilled)


def keep_refilling_a_copy_that_paused(patch: Patch) -> None:
    """A copy that asked to pause, or is gone, is sent the rest of the log all the same."""

    def refilled(outlet: Outlet, replica: int, after: BucketId, buckets: tuple[Bucket, ...]) -> list[Send]:
        return [Send(replica, Data(buckets))]

    patch.setattr(Outlet, "_refilled", refilled)
