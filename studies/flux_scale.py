"""What partition pairs cost as the cluster grows, and how long a recovery takes.

    python studies/flux_scale.py [--nodes-max 1000] [--exchange-max 64]

The real hosts and the real controller, in virtual time (`understudy.sim.costs`; `Costs` there holds
every constant: 0.5 ms and 1 Gbit/s links, 95 us and 16 us per kB to handle a parcel, 300 ms for a group,
2 s to notice a dead session, 10 MB of state, 4 ms for a snapshot, 2.7 s to restore one). One bucket of
1 MB a second, however many nodes there are, so what grows is overhead. Copies sit in a chain, one node is
spare. Three shapes:

* *one fragment*: source -> N partitions on N nodes -> sink
* *exchange*: two fragments of N partitions each on N nodes, each partition of one talks to all of the other
* *exchange of 16*: two fragments of 16 partitions, for any number of nodes

A frame is what the transport writes; control is the bytes of all heads. A node that holds copies is killed.
*Taken over*: when the last process has heard of the death. *Active*: when every copy is active again. *Late
by*: how much later than usual the latest bucket came out.

How it grows, with N partitions on N nodes, for each bucket:

                             one fragment   exchange        what would be done about it
    frames at a node         8              14 N            fewer partitions than nodes; or one frame per
                                                            bucket for all edges between two nodes
    frames in all            8 N            6.5 N^2         the same; 4 N^2 are acknowledgements
    frames at the gateway    8 N            7.3 N           several gateways, each with a share of the input
    edges                    4 N            4 N^2           one connection carries all edges of two nodes

and for each death, with V views of O(N) bytes each:

    from the store, bytes    O(V N^2)       O(V N^2)        what changed instead of the whole view
    relayed, bytes           O(V N)         O(V N^2)        (only what changed is relayed)
    views                    2 and one for each copy that comes back, level by level

The gateway stops it first: at 95 us for a frame, 1,000 partitions and one bucket a second keep its thread
busy for three quarters of the time, and with about 1,300 it falls behind. In an exchange of N by N the nodes
come to that at about 750. After a death the store takes longest: at 1,000 nodes it sends 158 kB to every
process, four times, and the last has heard of the death 1.3 s after the first. A store that takes 1 MB at
most for one view, as ZooKeeper does by default, takes about 6,000 partitions.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import matplotlib as mpl

from harness import RESULTS, save, say
from understudy.core.edge.messages import Data
from understudy.core.host.parcels import Parcel, Relay, Say
from understudy.core.host.places import GATEWAY
from understudy.core.shape.topology import chain_of
from understudy.core.view.view import View
from understudy.runtime.mesh import RecentViews
from understudy.runtime.transport.parcels import frames_of
from understudy.sim.costs import Costs, Counts, EvenFlow, Sized, TimedWorld
from understudy.sim.setup import Setup

mpl.use("Agg")
import matplotlib.pyplot as plt

BUCKET_BYTES = 2**20
BUCKET_EVERY_US = 1_000_000.0
SET_UP_STEP_US = 1_000.0
WARM_BUCKETS = 2
MEASURED_BUCKETS = 2

NODES = (4, 16, 64, 256, 1000)
EXCHANGE_NODES = (4, 8, 16, 32, 64, 128, 256)
FIXED_PARTITIONS = 16


class Sizes:
    """Frames as the transport writes them, measured once for each kind of parcel.

    Of a view, what has changed since the last view that the two exchanged.
    """

    def __init__(self) -> None:
        self._known: dict[object, Sized] = {}
        self._views: defaultdict[str, RecentViews] = defaultdict(RecentViews)

    def __call__(self, sender: str, receiver: str, parcel: Parcel) -> Sized:
        since: View | None = None
        match parcel:
            case Say(_, _, _, Data(buckets)):
                kind: object = (Data, len(buckets))
                body = sum(bucket.size_bytes for bucket in buckets)
            case Say(_, _, _, message):
                kind, body = type(message), 0
            case Relay(view):
                since = self._views[sender].exchanged(receiver, view)
                self._views[receiver].exchanged(sender, view)
                kind, body = (Relay, view.epoch, since and since.epoch), 0
            case _:
                kind, body = type(parcel), 0
        if kind not in self._known:
            frames = frames_of(parcel, since=since)
            self._known[kind] = len(frames), sum(len(frame.metadata()) for frame in frames), 0
        frames_count, heads, _ = self._known[kind]
        return frames_count, heads, body


def edges_of(partitions: tuple[int, ...]) -> int:
    """How many edges stand when every copy is connected to every copy of its neighbours."""
    inner = sum(4 * below * above for below, above in pairwise(partitions))
    return inner + 2 * partitions[0] + 2 * partitions[-1]


def view_bytes(view: View) -> int:
    return len(view.to_json())


class Trial:
    """One flow on one cluster, fed a bucket at a time."""

    def __init__(self, partitions: tuple[int, ...], nodes: int) -> None:
        self.partitions, self.nodes = partitions, nodes
        topology = chain_of(**{f"f{level}": count for level, count in enumerate(partitions)})
        setup = Setup(EvenFlow.of(topology, BUCKET_BYTES), 2, nodes)
        self.world = TimedWorld(setup, 1, size_of=Sizes(), view_bytes=view_bytes)

    def feed(self, buckets: int) -> None:
        for _ in range(buckets):
            self.world.seal()
            self.world.run_until(self.world.now_us + BUCKET_EVERY_US)

    def measured(self) -> dict[str, Any]:
        world, began = self.world, time.perf_counter()
        while world.edges < edges_of(self.partitions):
            world.run_until(world.now_us + SET_UP_STEP_US)
        set_up_us = world.now_us
        self.feed(WARM_BUCKETS)
        world.counts = Counts()
        self.feed(MEASURED_BUCKETS)
        steady = self._per_bucket()
        steady |= {"set_up_s": set_up_us / 1e6, "connections": len(world.connections), "edges": world.edges}
        began_failure = time.perf_counter()
        return {
            "partitions": list(self.partitions),
            "nodes": self.nodes,
            "steady": steady,
            "failure": self._failure(),
            "computing_s": [began_failure - began, time.perf_counter() - began_failure],
        }

    def _per_bucket(self) -> dict[str, float]:
        world, counts = self.world, self.world.counts
        nodes = [count for name, count in counts.by_host.items() if name != GATEWAY]
        last = max(world.delivered_us)
        return {
            "frames": counts.frames / MEASURED_BUCKETS,
            "data_frames": counts.data_frames / MEASURED_BUCKETS,
            "control_bytes": counts.control_bytes / MEASURED_BUCKETS,
            "frames_at_gateway": counts.by_host[GATEWAY] / MEASURED_BUCKETS,
            "frames_at_busiest_node": max(nodes) / MEASURED_BUCKETS,
            "kept_at_gateway": world.kept_at_most[GATEWAY],
            "kept_at_node": max(kept for name, kept in world.kept_at_most.items() if name != GATEWAY),
            "latency_s": (world.delivered_us[last] - world.sealed_us[last]) / 1e6,
        }

    def _failure(self) -> dict[str, Any]:
        """Kill a node that holds copies; watch until every process knows that all copies are active again."""
        world = self.world
        alive = sorted(world.newest.load)
        world.counts = Counts()
        before, killed_us = len(world.published), world.now_us
        world.lose(alive[len(alive) // 2])
        while len(world.published) == before or not world.whole or not self._all_know():
            self.feed(1)
        counts = world.counts
        self.feed(2)
        world.run_until(lambda: world.all_delivered)
        views = [view for _, view in world.published[before:]]
        heard = {
            name: [world.seen_us[name, view.epoch] for view in views if (name, view.epoch) in world.seen_us]
            for name in world.processes
        }
        late = [world.delivered_us[n] - at for n, at in world.sealed_us.items() if at >= killed_us - 1e6]
        return {
            "views": len(views),
            "view_bytes": max(view_bytes(view) for view in views),
            "store_bytes": sum(view_bytes(view) for view in views) * len(world.processes),
            "relays": counts.relays,
            "relay_bytes": counts.relay_bytes,
            "taken_over_s": (max(min(times) for times in heard.values()) - killed_us) / 1e6,
            "active_again_s": (world.published[-1][0] - killed_us) / 1e6,
            "all_know_s": (max(max(times) for times in heard.values()) - killed_us) / 1e6,
            "worst_latency_s": max(late) / 1e6,
        }

    def _all_know(self) -> bool:
        newest = self.world.newest.epoch
        return all(process.view_epoch == newest for process in self.world.processes.values())


def tried(nodes_max: int, exchange_max: int) -> dict[str, list[dict[str, Any]]]:
    fixed = FIXED_PARTITIONS
    ways: dict[str, tuple[list[int], Callable[[int], tuple[int, ...]]]] = {
        "one fragment": ([n for n in NODES if n <= nodes_max], lambda n: (n,)),
        "exchange": ([n for n in EXCHANGE_NODES if n <= min(nodes_max, exchange_max)], lambda n: (n, n)),
        "exchange of 16": ([n for n in NODES if fixed <= n <= nodes_max], lambda _: (fixed, fixed)),
    }
    result: dict[str, list[dict[str, Any]]] = {}
    say(
        f"{'':<15} {'nodes':>5} | per bucket: {'frames':>8} {'control':>9} {'gateway':>8} {'node':>6} "
        f"{'kept':>7} | {'edges':>7} | a death: {'views':>5} {'view':>8} {'relayed':>9} "
        f"{'taken over':>10} {'active':>7} {'late by':>7}"
    )
    for name, (sizes, shape) in ways.items():
        result[name] = []
        for nodes in sizes:
            point = Trial(shape(nodes), nodes).measured()
            result[name].append(point)
            steady, death = point["steady"], point["failure"]
            say(
                f"{name:<15} {nodes:>5} |             {steady['frames']:>8.0f} "
                f"{steady['control_bytes'] / 1e3:>6.0f} kB {steady['frames_at_gateway']:>8.0f} "
                f"{steady['frames_at_busiest_node']:>6.0f} {steady['kept_at_node']:>7} | "
                f"{steady['edges']:>7} |          {death['views']:>5} {death['view_bytes'] / 1e3:>5.1f} kB "
                f"{death['relay_bytes'] / 1e6:>6.1f} MB {death['taken_over_s']:>8.2f} s "
                f"{death['active_again_s']:>5.1f} s {death['worst_latency_s'] - steady['latency_s']:>5.2f} s"
                f"   ({sum(point['computing_s']):.0f} s)"
            )
    return result


def draw(result: dict[str, list[dict[str, Any]]]) -> None:
    pictures: list[tuple[str, Callable[[dict[str, Any]], float]]] = [
        ("frames per bucket, whole cluster", lambda p: p["steady"]["frames"]),
        ("frames per bucket, busiest node", lambda p: p["steady"]["frames_at_busiest_node"]),
        ("MB of views relayed after a death", lambda p: p["failure"]["relay_bytes"] / 1e6),
        ("seconds until all know of a death", lambda p: p["failure"]["taken_over_s"]),
    ]
    figure, axes = plt.subplots(2, 2, figsize=(10, 7), sharex=True)
    for axis, (title, value) in zip(axes.flat, pictures, strict=True):
        for at, (name, points) in enumerate(result.items()):
            nodes, values = [p["nodes"] for p in points], [value(p) for p in points]
            axis.plot(nodes, values, "os^"[at] + "-", label=name)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_title(title)
    for axis in axes[1]:
        axis.set_xlabel("nodes")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(RESULTS / "flux_scale.png", dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes-max", type=int, default=1000)
    parser.add_argument("--exchange-max", type=int, default=64, help="nodes with as many partitions on each")
    arguments = parser.parse_args()
    result = tried(arguments.nodes_max, arguments.exchange_max)
    draw(result)
    save("flux_scale", {"costs": asdict(Costs()), "bucket_bytes": BUCKET_BYTES, "points": result})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
