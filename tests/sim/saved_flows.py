"""A small flow that saves its state, for schedules written by hand."""

from __future__ import annotations

from random import Random

from understudy.core.bucket import BucketId
from understudy.core.host.limits import Limits, Timing
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import chain_of
from understudy.sim.scenario import Wait, copies, until
from understudy.sim.setup import Setup
from understudy.sim.shapes import flow_of
from understudy.sim.vault import floor_of
from understudy.sim.world import World

FIRST, SECOND = copies("f", 2)
UPPER = Copy(Partition("g"))


def saving_flow(replicas: int = 1, *, buckets_max: int = 100, **segments: int) -> Setup:
    flow = flow_of(chain_of(**(segments or {"f": 1})), Random(1), buckets=16)
    limits = Limits(group_buckets_max=1, output_buckets_max=buckets_max, save_bytes_max=0)
    layout = tuple((copy, f"n{at:02}") for at, copy in enumerate(flow.topology.copies(replicas), start=1))
    return Setup(flow, replicas, len(layout), layout=layout, limits=limits, timing=Timing(save_ms=100))


def number(world: World, bucket: int) -> BucketId:
    return world.setup.flow.inputs["source"][bucket - 1].number


def saved(bucket: int, copy: Copy = FIRST) -> Wait:
    """Wait until every snapshot of a partition that is kept holds so many buckets."""
    return until(
        f"the vault keeps nothing of {copy} before bucket {bucket}",
        lambda world: floor_of(world.vault, copy.partition) >= number(world, bucket),
    )
