"""A small flow that is upgraded, for schedules written by hand: how far an upgrade is, and what to wait for.

Version 1 is the base, version 2 the candidate. What is waited for is of the version that `on` named last.
"""

from __future__ import annotations

from saved_flows import saved

from understudy.core.host.places import GATEWAY
from understudy.core.replica.consumer import Consumer
from understudy.sim.scenario import Act, Wait, feed, until, wait
from understudy.sim.upgrade_scenario import On, Wish, on, run_of, wish
from understudy.sim.world import World

Acts = list[Act | Wish | On]


def sink_of(world: World) -> Consumer | None:
    """The end of this version that takes output for the sink, if the gateway hosts it."""
    gateway = world.processes.get(GATEWAY)
    end = gateway.host.end("sink") if gateway is not None else None
    return None if end is None else end.below


def _in_hand(world: World) -> bool:
    sink = sink_of(world)
    return sink is not None and sink.busy


def _told_to_rest(world: World) -> bool:
    sink = sink_of(world)
    return sink is not None and sink.to_rest


def _takes(world: World) -> bool:
    sink = sink_of(world)
    return sink is not None and not sink.rests and not sink.to_rest


def behind(buckets: int) -> Wait:
    """Wait until the sink holds so much more than has come from this version."""

    def moment(world: World) -> bool:
        sink, held = sink_of(world), world.disk.delivered["sink"]
        known = world.setup.flow.inputs["source"]
        return sink is not None and sum(sink.merge.frontier < b.number <= held for b in known) >= buckets

    return until(f"this version is {buckets} buckets behind", moment)


def unheard(kind: str) -> Wait:
    return until(
        f"the gateway has yet to hear of something: {kind}",
        lambda world: bool(run_of(world).unheard[kind]),
    )


def untold(version: int) -> Wait:
    return until(
        f"the sink of version {version} has yet to be told something",
        lambda world: bool(run_of(world).untold.get(version)),
    )


def adopted(partitions: int) -> Wait:
    return until(
        f"the candidate has adopted {partitions} partitions",
        lambda world: len(run_of(world).versions[-1].vault) == partitions,
    )


IN_HAND = until("a group of this version is in the hands of the sink's writer", _in_hand)
TOLD_TO_REST = until("the sink of this version was told to rest", _told_to_rest)
TAKES = until("the sink takes this version's output", _takes)
DECIDED = until("a view of this version is to be stored", lambda world: bool(world.store.leader.publishing))
SEATED = until("this version has a view", lambda world: world.view is not None)
OPEN = until("the gateway hosts the ends of this version", lambda world: sink_of(world) is not None)

#: The base works and its state is saved; the candidate works, too; the candidate delivers.
SAVED: Acts = [wait("active"), feed(4), wait("delivered"), saved(4)]
BEGUN: Acts = [*SAVED, wish("begin"), on(2), wait("active"), OPEN]
TURNED: Acts = [*BEGUN, wish("turn"), TAKES, feed(2), wait("delivered")]
