"""A flow as partitions: how many each fragment has, and by what its input rows are dealt out.

A fragment that names the columns by which its state may be split has as many partitions as it says itself, or
else as the run says; one that names none has one.
"""

from __future__ import annotations

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.host import Host, Limits
from understudy.core.topology import Topology
from understudy.flow.flow import Flow
from understudy.flow.model import Fragment
from understudy.flow.policy import ClusterPairs
from understudy.runtime.settings import RunSettings


def topology_of(flow: Flow, partitions: int) -> Topology:
    """The shape of a flow whose fragments have so many partitions where they may be split and do not say."""
    fragments = flow.fragments
    return Topology(
        inputs={name: fragment.inputs for name, fragment in fragments.items()},
        counts={name: _count(fragment, partitions) for name, fragment in fragments.items()},
        sinks=frozenset(sink.input for sink in flow.sinks.values()),
    )


def _count(fragment: Fragment, partitions: int) -> int:
    if not fragment.partition_by:
        return 1
    return partitions if fragment.partitions is None else fragment.partitions


def host_for(name: str, flow: Flow, settings: RunSettings, *, delivered: BucketId = NOTHING) -> Host:
    """The host of one process of this run. Only a gateway has delivered anything."""
    limits = Limits(
        input_buckets_max=settings.input_buckets_max,
        input_bytes_max=settings.input_bytes_max,
        output_buckets_max=settings.output_buckets_max,
        output_bytes_max=settings.output_bytes_max,
        group_buckets_max=settings.group_buckets_max,
        group_bytes_max=settings.group_bytes_max,
    )
    topology = topology_of(flow, settings.partition_count)
    whole = settings.policy == ClusterPairs.name
    return Host(name, topology, limits, delivered=delivered, whole=whole)
