"""Where the copies of partitions sit at the start.

*Chained* (Flux paper, section 5.4): the primary copy of partition i sits on node i, its secondary on the next
node, round the ring. So when one node is lost, each of its partitions lives on with its other copy on one of
the two neighbours.

*Mirrored* (section 4.2, cluster pairs): one half of the nodes has all primaries, the other half all
secondaries, so that each half runs the whole flow.

No node has both copies of anything. A layout of one's own is fine as long as that holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from understudy.core.errors import require
from understudy.core.partition import Copy
from understudy.core.topology import Topology
from understudy.core.view import Slot


class LayoutError(ValueError):
    """This layout would not survive the loss of one node, or does not fit the flow."""


def chained(topology: Topology, nodes: Sequence[str]) -> dict[Copy, str]:
    """A chained layout over these nodes."""
    if len(nodes) < 2:
        raise LayoutError(f"partition pairs need at least 2 nodes, there are {len(nodes)}")
    require(len(set(nodes)) == len(nodes), f"a node is named twice: {nodes}")
    return {
        copy: nodes[(copy.partition.index + (copy.slot is Slot.SEC)) % len(nodes)]
        for copy in copies_of(topology)
    }


def mirrored(topology: Topology, nodes: Sequence[str]) -> dict[Copy, str]:
    """All primaries on the first half of these nodes, all secondaries on the second."""
    if len(nodes) < 2 or len(nodes) % 2:
        raise LayoutError(f"cluster pairs need an even number of nodes, at least 2; there are {len(nodes)}")
    require(len(set(nodes)) == len(nodes), f"a node is named twice: {nodes}")
    half = len(nodes) // 2
    return {
        copy: nodes[copy.partition.index % half + (half if copy.slot is Slot.SEC else 0)]
        for copy in copies_of(topology)
    }


def copies_of(topology: Topology) -> list[Copy]:
    """Both copies of every partition, lowest level first."""
    return [Copy(partition, slot) for level in topology.levels for partition in level for slot in Slot]


def check_layout(layout: Mapping[Copy, str], topology: Topology, nodes: Sequence[str]) -> None:
    """Raise `LayoutError` unless every partition has two copies, on two different nodes that are there."""
    wanted = set(copies_of(topology))
    for copy in sorted(wanted - layout.keys(), key=str):
        raise LayoutError(f"{copy} has no node")
    for copy in sorted(layout.keys() - wanted, key=str):
        raise LayoutError(f"{copy} is no copy of any partition of this flow")
    for copy, node in layout.items():
        if node not in nodes:
            raise LayoutError(f"{copy} is to sit on {node!r}, which is not there")
        if layout[copy.other] == node:
            raise LayoutError(
                f"both copies of {copy.partition} are to sit on {node!r}: losing it would lose them both"
            )
