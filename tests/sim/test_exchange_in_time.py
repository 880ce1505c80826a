"""A partitioned flow in virtual time: what `studies/flux_scale.py` measures is there to be measured."""

from __future__ import annotations

import pytest
from understudy.core.parcels import Parcel
from understudy.core.topology import chain_of

from understudy.sim.exchange_timed import Costs, TimedExchange

SECOND_US = 1_000_000.0


def made(partitions: int, nodes: int, **costs: float) -> TimedExchange:
    def size_of(sender: str, receiver: str, parcel: Parcel) -> tuple[int, int, int]:
        return 1, 100, 0

    world = TimedExchange(
        chain_of(f0=partitions, f1=partitions),
        nodes,
        1,
        size_of=size_of,
        view_bytes=lambda view: 1_000,
        bucket_bytes=2**20,
        costs=Costs(**costs),  # type: ignore[arg-type]
    )
    world.run_until(lambda: False)
    return world


def feed(world: TimedExchange, buckets: int) -> None:
    for _ in range(buckets):
        world.seal(len(world.sealed_us))
        world.run_until(world.now_us + SECOND_US)


def latency_us(world: TimedExchange) -> float:
    last = max(world.delivered_us)
    return world.delivered_us[last] - world.sealed_us[last]


def test_a_bucket_takes_at_least_what_its_engines_take() -> None:
    world = made(4, 4)
    feed(world, 3)
    assert world.delivered_us.keys() == world.sealed_us.keys()
    assert 2 * world.costs.group_us < latency_us(world) < 3 * world.costs.group_us


@pytest.mark.parametrize("dearer", ["parcel_us", "latency_us"])
def test_dearer_messages_make_it_slower(dearer: str) -> None:
    cheap, dear = made(4, 4), made(4, 4, **{dearer: 5_000})
    for world in (cheap, dear):
        feed(world, 3)
    assert latency_us(dear) > latency_us(cheap) + 3 * 4_000


def test_a_dead_node_is_replaced_and_every_bucket_comes_out() -> None:
    world = made(4, 4)
    feed(world, 2)
    killed_us = world.now_us
    world.kill(world.view.nodes_alive[0])
    feed(world, 15)
    assert world.whole
    assert world.published[-1][0] > killed_us + world.costs.detect_us + 2 * world.costs.restore_us
    assert world.delivered_us.keys() == world.sealed_us.keys()


def test_frames_of_an_exchange_grow_with_the_square_of_the_partitions() -> None:
    frames = []
    for partitions in (4, 8, 16):
        world = made(partitions, partitions)
        feed(world, 2)
        before = world.counts.frames
        feed(world, 2)
        frames.append(world.counts.frames - before)
    assert 3 < frames[1] / frames[0] < 5
    assert 3 < frames[2] / frames[1] < 5
