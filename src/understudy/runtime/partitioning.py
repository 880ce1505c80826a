"""A flow as partitions: how many each fragment has, and by what its input rows are dealt out.

A fragment that names the columns by which its state may be split has as many partitions as the run says;
one that names none has one.
"""

from __future__ import annotations

from understudy.core.topology import Topology
from understudy.flow.flow import Flow


def topology_of(flow: Flow, partitions: int) -> Topology:
    """The shape of a flow whose fragments have so many partitions where they may be split."""
    fragments = flow.fragments
    return Topology(
        inputs={name: fragment.inputs for name, fragment in fragments.items()},
        counts={name: partitions if fragment.partition_by else 1 for name, fragment in fragments.items()},
        sinks=frozenset(sink.input for sink in flow.sinks.values()),
    )
