"""The world in virtual time: what a bucket and a death cost, at the same machines."""

from __future__ import annotations

from understudy.core.edge.messages import Data
from understudy.core.host.parcels import Parcel, Say
from understudy.core.shape.topology import chain_of
from understudy.core.view.view import View
from understudy.sim.costs import Counts, EvenFlow, Sized, TimedWorld
from understudy.sim.setup import Setup

BUCKET_BYTES = 1_000
SECOND_US = 1_000_000.0


def size_of(sender: str, receiver: str, parcel: Parcel) -> Sized:
    data = isinstance(parcel, Say) and isinstance(parcel.message, Data)
    body = sum(b.size_bytes for b in parcel.message.buckets) if data else 0  # type: ignore[union-attr]
    return 1, 100, body


def view_bytes(view: View) -> int:
    return 100 * len(view.seats)


def world_of(*partitions: int, nodes: int = 4) -> TimedWorld:
    topology = chain_of(**{f"f{level}": count for level, count in enumerate(partitions)})
    setup = Setup(EvenFlow.of(topology, BUCKET_BYTES), 2, nodes)
    world = TimedWorld(setup, 1, size_of=size_of, view_bytes=view_bytes)
    world.run_until(SECOND_US)
    return world


def feed(world: TimedWorld, buckets: int) -> None:
    for _ in range(buckets):
        world.seal()
        world.run_until(world.now_us + SECOND_US)


def test_every_copy_is_connected_to_every_copy_of_its_neighbours() -> None:
    assert world_of(4).edges == 2 * 4 + 2 * 4
    assert world_of(4, 4).edges == 2 * 4 + 4 * 4 * 4 + 2 * 4


def test_a_bucket_takes_as_long_as_its_engines_and_its_way() -> None:
    world = world_of(4, 4)
    feed(world, 3)
    assert world.all_delivered
    latencies = [world.delivered_us[n] - at for n, at in world.sealed_us.items()]
    groups_us = 2 * world.costs.group_us
    assert all(groups_us < latency < groups_us + 50_000 for latency in latencies)


def test_the_number_of_frames_for_a_bucket_is_the_same_from_bucket_to_bucket() -> None:
    world = world_of(4, 4)
    feed(world, 2)
    frames = []
    for _ in range(3):
        world.counts = Counts()
        feed(world, 1)
        frames.append(world.counts.frames)
    assert len(set(frames)) == 1


def test_a_death_is_survived_and_every_copy_is_active_again() -> None:
    world = world_of(4, 4)
    feed(world, 2)
    lost_us = world.now_us
    world.lose("n02")
    while len(world.published) == 1 or not world.whole:
        feed(world, 1)
    feed(world, 2)
    assert world.all_delivered
    again_us = world.published[-1][0] - lost_us
    # Its neighbours suspect it before its session ends; then a state is fetched and restored, twice.
    suspected_us = world.setup.timing.suspect_ms * 1_000
    levels_us = 2 * world.costs.restore_us
    assert suspected_us + levels_us < again_us < world.costs.detect_us + levels_us


def test_the_same_flow_takes_the_same_time_again() -> None:
    first, second = world_of(4, 4), world_of(4, 4)
    for world in (first, second):
        feed(world, 2)
        world.lose("n02")
        feed(world, 6)
    assert first.delivered_us == second.delivered_us
    assert first.seen_us == second.seen_us
