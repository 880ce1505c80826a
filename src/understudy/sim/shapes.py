"""Small flows for each policy, drawn by a seed: topology, input, limits, number of nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from understudy.core.bucket import Bucket
from understudy.core.host.limits import Limits, Timing
from understudy.core.shape.topology import Topology, chain_of
from understudy.sim.flow import Flow
from understudy.sim.setup import Setup

BUCKETS_MAX = 24
POLICIES = ("none", "pair", "flux", "cluster", "passive")


@dataclass(frozen=True, slots=True)
class Shape:
    """A world to begin with, and how many nodes wait for a seat."""

    setup: Setup
    spares: int


def shape_of(policy: str, random: Random, replicas: int | None = None, *, saved: bool = False) -> Shape:
    """A world of this policy, which saves its state or does not."""
    shape = _shape_of(policy, random, replicas)
    if not saved or shape.setup.isolated:
        return shape
    timing = replace(shape.setup.timing, save_ms=random.choice((100, 1_000, 4_000)))
    limits = replace(
        shape.setup.limits,
        save_bytes_max=random.choice((1, 8, 1_000)),
        # What is kept for the store alone is to exceed it often.
        output_buckets_max=random.choice((1, 3, shape.setup.limits.output_buckets_max)),
    )
    return Shape(replace(shape.setup, timing=timing, limits=limits), shape.spares)


def _shape_of(policy: str, random: Random, replicas: int | None) -> Shape:
    match policy:
        case "none":
            return Shape(_setup(random, _one_segment(random), replicas or 1, 1), random.randint(0, 1))
        case "pair":
            count = replicas or 2
            return Shape(_setup(random, _one_segment(random), count, count), random.choice((0, 1, 1, 2, 2)))
        case "flux":
            count = replicas or 2
            setup = _setup(random, _segments(random), count, random.randint(count, 5))
            return Shape(setup, random.randint(0, 3))
        case "passive":
            count = replicas or 2
            setup = _setup(random, _segments(random), count, random.randint(count, 5))
            timing = Timing(ship_ms=random.choice((100, 500)))
            return Shape(replace(setup, timing=timing), random.randint(0, 3))
        case "cluster":
            count = replicas or 2
            setup = _setup(random, _segments(random), count, count * random.randint(1, 2), isolated=True)
            return Shape(setup, 0)
    raise ValueError(f"there is no policy {policy!r}; known are {', '.join(POLICIES)}")


def _setup(random: Random, topology: Topology, replicas: int, nodes: int, *, isolated: bool = False) -> Setup:
    limits = Limits(
        input_buckets_max=random.randint(6, 12),
        output_buckets_max=random.randint(6, 12),
        group_buckets_max=random.randint(1, 4),
    )
    return Setup(flow_of(topology, random), replicas, nodes, isolated=isolated, limits=limits)


def flow_of(topology: Topology, random: Random, buckets: int | None = None) -> Flow:
    """A flow with input of its own: sparse numbers, few rows, some buckets empty."""
    count = buckets or random.randint(4, BUCKETS_MAX)
    last = 2 * count
    inputs = {}
    for source in topology.sources:
        numbers = sorted(random.sample(range(last), count - 1))
        inputs[source] = [_bucket(number, random) for number in (*numbers, last)]
    return Flow(topology, inputs, {name: random.randint(0, 1) for name in topology.inputs})


def _bucket(number: int, random: Random) -> Bucket:
    rows = sorted((random.randrange(20), random.randrange(1, 9)) for _ in range(random.randrange(4)))
    return Bucket(number, tuple(rows) or None, len(rows))


def _one_segment(random: Random) -> Topology:
    """A whole flow in one engine: one or two sources, one or two sinks."""
    sources = ("a", "b")[: random.choice((1, 1, 2))]
    sinks = ("x", "y")[: random.choice((1, 1, 2))]
    return Topology({"f": sources}, {"f": 1}, dict.fromkeys(sinks, "f"))


def _segments(random: Random) -> Topology:
    """One to three segments of one to three partitions: a chain, two that meet, or one that reads both."""
    counts = {name: random.randint(1, 3) for name in ("f", "g", "h")}
    shapes: tuple[tuple[dict[str, tuple[str, ...]], dict[str, str]], ...] = (
        ({"f": ("a",)}, {"x": "f"}),
        ({"f": ("a",), "g": ("f",)}, {"x": "g"}),
        ({"f": ("a",), "g": ("f",)}, {"x": "g", "y": "f"}),
        ({"f": ("a",), "g": ("f",), "h": ("g",)}, {"x": "h"}),
        ({"f": ("a",), "g": ("b",), "h": ("f", "g")}, {"x": "h"}),
        ({"f": ("a",), "g": ("a", "f")}, {"x": "g"}),
    )
    inputs, sinks = random.choice(shapes)
    return Topology(inputs, {name: counts[name] for name in inputs}, sinks)


# --- worlds small enough to try every order --------------------------------------------------------------


def small(policy: str, buckets: int, replicas: int | None = None, *, saved: bool = False) -> Setup:
    """One partition; or, of a partitioned flow, one producer and one consumer partition. Every copy has a
    node of its own. One that is `saved` keeps little output, so that what the store lacks may be gone.
    """
    partitioned = policy in ("flux", "cluster")
    count = replicas or (1 if policy == "none" else 2)
    topology = chain_of(f=1, g=1) if partitioned else chain_of(f=1)
    inputs = [Bucket(10 + k, ((1, k + 1),), 1) for k in range(buckets)]
    flow = Flow(topology, {"source": inputs}, dict.fromkeys(topology.inputs, 0))
    layout = tuple((copy, f"n{at:02}") for at, copy in enumerate(topology.copies(count), start=1))
    limits = Limits(group_buckets_max=2)
    timing = Timing()
    if saved:
        limits = Limits(group_buckets_max=1, output_buckets_max=1, save_bytes_max=0)
        timing = Timing(save_ms=1_000)
    if policy == "passive":
        timing = replace(timing, ship_ms=500)
    isolated = policy == "cluster"
    return Setup(flow, count, len(layout), isolated=isolated, layout=layout, limits=limits, timing=timing)
