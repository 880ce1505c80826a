"""Where the copies of partitions sit at the start: chained declustering (Flux paper, section 5.4).

The primary copy of partition i sits on node i, its secondary on the next node, round the ring. So when one
node is lost, each of its partitions lives on with its other copy on one of the two neighbours, and no node
has both copies of anything. A layout of one's own is fine as long as that holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from understudy.core.errors import require
from understudy.core.partition import Copy, Partition
from understudy.core.view import Slot


class LayoutError(ValueError):
    """This layout would not survive the loss of one node, or does not fit the flow."""


def levels_of(fragments: Mapping[str, int]) -> list[list[Partition]]:
    """The partitions of each fragment, lowest first."""
    for name, count in fragments.items():
        if count < 1:
            raise LayoutError(f"fragment {name!r} must have at least one partition, not {count}")
    return [[Partition(name, index) for index in range(count)] for name, count in fragments.items()]


def chained(levels: Sequence[Sequence[Partition]], nodes: Sequence[str]) -> dict[Copy, str]:
    """A chained layout over these nodes."""
    if len(nodes) < 2:
        raise LayoutError(f"partition pairs need at least 2 nodes, there are {len(nodes)}")
    require(len(set(nodes)) == len(nodes), f"a node is named twice: {nodes}")
    return {
        Copy(partition, slot): nodes[(partition.index + step) % len(nodes)]
        for level in levels
        for partition in level
        for step, slot in enumerate((Slot.PRIM, Slot.SEC))
    }


def check_layout(
    layout: Mapping[Copy, str], levels: Sequence[Sequence[Partition]], nodes: Sequence[str]
) -> None:
    """Raise `LayoutError` unless every partition has two copies, on two different nodes that are there."""
    wanted = {Copy(partition, slot) for level in levels for partition in level for slot in Slot}
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
