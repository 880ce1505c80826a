"""A flow as segments: which fragments run in one engine, how often each is split, and which feeds which.

A policy says what the **unit** of a flow's replication is:

- "fragment": every fragment is a segment of its own, in as many partitions as it may be split into.
- "flow": fragments that read one another, directly or through others, are one segment, in one partition.
  Sources do not link fragments. So fragments that have nothing to do with each other are segments that run
  side by side, and no sink waits for a fragment that does not feed it.

A fragment that names the columns by which its state may be split has as many partitions as it says itself, or
else as the run says; one that names none has one.

Nothing here needs Spark, so that every process of a run can ask.
"""

from __future__ import annotations

from collections.abc import Mapping

from understudy.core.errors import require
from understudy.core.shape.topology import Topology
from understudy.flow.flow import Flow
from understudy.flow.model import Fragment

UNITS = ("flow", "fragment")

#: A segment of more fragments is named by its first and the number of the others.
_NAMED_MAX = 3


#: A sink's partition in the topology is named like the sink, behind this.
SINK_PREFIX = "sink:"


def sink_partition(sink: str) -> str:
    """The name of the partition that a sink is in the topology."""
    return f"{SINK_PREFIX}{sink}"


def fragments_of(flow: Flow, unit: str) -> dict[str, tuple[str, ...]]:
    """The fragments of every segment by the segment's name, both in the order of the flow."""
    require(unit in UNITS, f"a flow is replicated by {' or '.join(UNITS)}, not by {unit!r}")
    fragments = flow.fragments
    groups = [(name,) for name in fragments] if unit == "fragment" else _connected(fragments)
    return {_name_of(group): group for group in groups}


def topology_of(flow: Flow, unit: str, partitions: int) -> Topology:
    """The shape of a flow whose fragments have so many partitions where they may be split and do not say."""
    fragments, segments = flow.fragments, fragments_of(flow, unit)
    inputs, counts, sinks = {}, {}, {}
    for segment, members in segments.items():
        read = [name for member in members for name in fragments[member].inputs if name not in members]
        inputs[segment] = tuple(dict.fromkeys(read))
        counts[segment] = _count(fragments[segment], partitions) if unit == "fragment" else 1
        for sink in flow.sinks.values():
            if sink.input in members:
                sinks[sink_partition(sink.name)] = segment
    return Topology(inputs, counts, sinks)


def _count(fragment: Fragment, partitions: int) -> int:
    if not fragment.partition_by:
        return 1
    return partitions if fragment.partitions is None else fragment.partitions


def _connected(fragments: Mapping[str, Fragment]) -> list[tuple[str, ...]]:
    """The fragments in groups that read nothing of each other."""
    group_of: dict[str, set[str]] = {}
    for name, fragment in fragments.items():
        joined = {name}.union(*(group_of[read] for read in fragment.inputs if read in fragments))
        group_of.update(dict.fromkeys(joined, joined))
    groups = {id(group): group for group in (group_of[name] for name in fragments)}
    return [tuple(name for name in fragments if name in group) for group in groups.values()]


def _name_of(members: tuple[str, ...]) -> str:
    """No two segments have one name: none starts with the same fragment, and none of these has a "+"."""
    if len(members) <= _NAMED_MAX:
        return "+".join(members)
    return f"{members[0]}+{len(members) - 1}"
