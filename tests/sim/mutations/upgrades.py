"""Breaks of an upgrade: of the turn of a sink, of what a sink that rests does, and of what is kept for a
version that is being prepared.
"""

from __future__ import annotations

from typing import Any

import pytest

from understudy.core.bucket import BucketId
from understudy.core.replica.consumer import Consumer
from understudy.core.replica.events import Passed, Rest, Rests, Wake
from understudy.core.shape.partition import Partition
from understudy.core.shape.topology import Topology
from understudy.core.turning import Delivered, TellSink, Turning, TurningEvent
from understudy.sim import upgrading
from understudy.sim.disk import Disk
from understudy.sim.upgrading import Upgrading
from understudy.sim.vault import with_saved
from understudy.sim.versions import Floors, SharedDisk, Version
from understudy.sim.world import Choice

Patch = pytest.MonkeyPatch


# --- the turn of a sink ----------------------------------------------------------------------------------


def wake_without_waiting(patch: Patch) -> None:
    """The next version is woken when the one before is told to rest."""
    lay_to_rest = Turning._lay_to_rest

    def hasty(turning: Turning) -> list[TellSink]:
        told = lay_to_rest(turning)
        for sink in turning._resting:
            del turning.awake[sink]
        turning._resting = set()
        return [*told, *turning._wake()]

    patch.setattr(Turning, "_lay_to_rest", hasty)


def _wake_beside(patch: Patch, by: int) -> None:
    wake = Turning._wake

    def beside(turning: Turning) -> list[TellSink]:
        return [
            TellSink(told.version, told.sink, Wake(told.event.through + by))
            for told in wake(turning)
            if isinstance(told.event, Wake)
        ]

    patch.setattr(Turning, "_wake", beside)


def wake_one_too_high(patch: Patch) -> None:
    _wake_beside(patch, 1)


def wake_one_too_low(patch: Patch) -> None:
    _wake_beside(patch, -1)


def wake_without_a_number(patch: Patch) -> None:
    """A sink that is woken goes on after what it was told to drop, whatever was delivered since."""
    told = Consumer.told

    def unaware(consumer: Consumer, event: Rest | Passed | Wake) -> list[Any]:
        return told(consumer, Wake(consumer.passed) if isinstance(event, Wake) else event)

    patch.setattr(Consumer, "told", unaware)


def rest_with_a_group_in_hand(patch: Patch) -> None:
    """A sink says that it rests before its group is delivered."""
    told = Consumer.told

    def at_once(consumer: Consumer, event: Rest | Passed | Wake) -> list[Any]:
        if not isinstance(event, Rest) or consumer.rests:
            return told(consumer, event)
        consumer.rests = True
        return [Rests(consumer.handed)]

    patch.setattr(Consumer, "told", at_once)


def do_not_tell_what_is_delivered(patch: Patch) -> None:
    """The version that rests does not hear what the other one delivers."""
    handle = Turning._handle

    def silent(turning: Turning, event: TurningEvent) -> list[TellSink]:
        told = handle(turning, event)
        return [] if isinstance(event, Delivered) else told

    patch.setattr(Turning, "_handle", silent)


def begin_again_awake(patch: Patch) -> None:
    """The base's sinks are awake as soon as the gateway hosts them, whichever version is wanted."""
    tell = Version.tell

    def unless_awake(version: Version, told: TellSink) -> None:
        end = version.processes[upgrading.GATEWAY].host.end(told.sink)
        if not isinstance(told.event, Wake) or (
            end is not None and end.below is not None and end.below.rests
        ):
            tell(version, told)

    patch.setattr(Version, "sinks_rest", property(lambda version: not version.is_base))
    patch.setattr(Version, "tell", unless_awake)


def begin_again_with_the_base(patch: Patch) -> None:
    """A gateway that begins again lets the sinks take the base, whichever version is wanted."""
    started = Upgrading.gateway_started

    def forgetful(run: Upgrading, version: Version) -> None:
        wanted, run.wanted = run.wanted, run.base_number
        started(run, version)
        run.wanted = wanted

    patch.setattr(Upgrading, "gateway_started", forgetful)


def commit_while_awake(patch: Patch) -> None:
    """The base is closed as soon as the candidate is wanted."""
    wishes = Upgrading.wishes

    def eager(run: Upgrading) -> list[Choice]:
        found = wishes(run)
        candidate = run.candidate
        opened = candidate is not None and candidate.hosted and ("back",) in found
        return [*found, ("commit",)] if opened and ("commit",) not in found else found

    patch.setattr(Upgrading, "wishes", eager)


def commit_while_awake_unseen(patch: Patch) -> None:
    """The same, and the gateway's turning does not mind."""
    commit_while_awake(patch)
    patch.setattr(Turning, "takes", lambda *_: False)
    patch.setattr(Turning, "check", lambda _: None)


# --- a sink that rests -----------------------------------------------------------------------------------


def acknowledge_at_rest(patch: Patch) -> None:
    """A sink that rests drops all that comes, delivered or not."""
    turn = Consumer.turn

    def all_of_it(consumer: Consumer) -> list[Any]:
        passed = consumer.passed
        if consumer.rests:
            consumer.passed = consumer.merge.frontier
        try:
            return turn(consumer)
        finally:
            consumer.passed = passed

    patch.setattr(Consumer, "turn", all_of_it)


# --- what is kept ----------------------------------------------------------------------------------------


def do_not_pin(patch: Patch) -> None:
    """A version that is not hosted keeps nothing in the logs."""

    def needed(floors: Floors, source: str) -> BucketId:
        return min(said[source][1] for said in floors._said.values() if source in said)

    patch.setattr(Floors, "needed", needed)


def pin_until_the_gateway_is_gone(patch: Patch) -> None:
    """The pin is in the gateway's memory alone."""
    say = Floors.say

    def anew(floors: Floors, version: int, *said: Any) -> None:
        floors._said.setdefault(version, {})
        say(floors, version, *said)

    patch.setattr(Floors, "gateway_gone", lambda floors: floors._said.clear())
    patch.setattr(Floors, "drop", lambda floors, version: floors._said.pop(version, None))
    patch.setattr(Floors, "say", anew)


def keep_for_the_live_version(patch: Patch) -> None:
    """Logs forget what the version that is live has done with."""

    def trim(disk: SharedDisk, source: str, trimmed: BucketId, needed: BucketId) -> None:
        if disk._run.live.number == disk._version:
            Disk.trim(disk, source, trimmed, needed)

    patch.setattr(SharedDisk, "trim", trim)


def adopt_consumers_first(patch: Patch) -> None:
    def reverse(topology: Topology) -> tuple[Any, ...]:
        return tuple(reversed(topology.partitions))

    patch.setattr(upgrading, "adoption_order", reverse)


def adopt_beside_the_first_attempt(patch: Patch) -> None:
    """An adoption that begins anew keeps what the one before has adopted."""
    begin, adopt = Upgrading._begin_adopting, Upgrading._adopt

    def again(run: Upgrading) -> None:
        assert run.candidate is not None
        vault, adopted = run.candidate.vault, run.candidate.adopted
        begin(run)
        run.candidate.vault, run.candidate.adopted = vault, adopted

    def beside(run: Upgrading, partition: Partition, damaged: int) -> None:
        assert run.candidate is not None
        candidate, before = run.candidate, run.candidate.vault.get(partition, ())
        last = len(run.to_adopt) == 1
        adopt(run, partition, damaged)
        for kept in before:
            candidate.vault = with_saved(candidate.vault, partition, kept)
        if last:
            candidate.check_kept()

    patch.setattr(Upgrading, "_begin_adopting", again)
    patch.setattr(Upgrading, "_adopt", beside)
