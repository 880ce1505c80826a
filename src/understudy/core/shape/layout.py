"""Where the copies of partitions sit at the start.

*Chained* (Flux paper, section 5.4): replica r of partition i sits r nodes further round the ring than node i.
So when one node is lost, each of its partitions lives on with another copy on one of its neighbours. A flow
in one partition has its replicas on the first nodes.

*Mirrored* (section 4.2, cluster pairs): the nodes are as many groups as there are replicas, and each group
runs the whole flow.

No node has two copies of one partition. Any other layout is accepted as long as that holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from understudy.core.errors import require
from understudy.core.shape.partition import Copy
from understudy.core.shape.topology import Topology


class LayoutError(ValueError):
    """This layout would not survive the loss of one node, or does not fit the flow."""


def chained(topology: Topology, nodes: Sequence[str], replicas: int) -> dict[Copy, str]:
    """A chained layout over these nodes."""
    if len(nodes) < replicas:
        raise LayoutError(f"{replicas} replicas need at least {replicas} nodes, there are {len(nodes)}")
    require(len(set(nodes)) == len(nodes), f"a node is named twice: {nodes}")
    return {
        copy: nodes[(copy.partition.index + copy.replica) % len(nodes)] for copy in topology.copies(replicas)
    }


def mirrored(topology: Topology, nodes: Sequence[str], replicas: int) -> dict[Copy, str]:
    """Replica r of everything on the r-th group of these nodes."""
    if len(nodes) < replicas or len(nodes) % replicas:
        raise LayoutError(
            f"{replicas} groups of nodes need a multiple of {replicas} nodes, there are {len(nodes)}"
        )
    require(len(set(nodes)) == len(nodes), f"a node is named twice: {nodes}")
    size = len(nodes) // replicas
    return {
        copy: nodes[copy.replica * size + copy.partition.index % size] for copy in topology.copies(replicas)
    }


def check_layout(layout: Mapping[Copy, str], topology: Topology, nodes: Sequence[str], replicas: int) -> None:
    """Raise `LayoutError` unless every copy of every partition has a node of its own that is present."""
    wanted = set(topology.copies(replicas))
    for copy in sorted(wanted - layout.keys()):
        raise LayoutError(f"{copy} has no node")
    for copy in sorted(layout.keys() - wanted):
        raise LayoutError(f"{copy} is no copy of any partition of this flow")
    for copy, node in layout.items():
        if node not in nodes:
            raise LayoutError(f"{copy} is assigned to {node!r}, which is not a member")
        for other in (Copy(copy.partition, r) for r in range(replicas) if r != copy.replica):
            if layout[other] == node:
                raise LayoutError(
                    f"two copies of {copy.partition} are assigned to {node!r}: losing it would lose both"
                )
