"""The shape of a run: its flow under its policy, as the hosts and the controller need it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from understudy.core.bucket import BucketId
from understudy.core.host.host import Host
from understudy.core.host.limits import Timing
from understudy.core.shape.topology import Topology
from understudy.core.view.controller import Controller
from understudy.core.view.view import View
from understudy.engine.segments import fragments_of, topology_of
from understudy.flow.errors import EnvironmentFailed
from understudy.flow.flow import Flow
from understudy.runtime.process import seated_file
from understudy.runtime.settings import RunSettings

#: A process that was never reached is suspected after this many times the silence limit.
ABSENT_SILENCES = 2


@dataclass(frozen=True)
class Dataflow:
    """All that a gateway must know of a version of a flow: its shape, and by which columns the rows of a
    source are dealt out to the partitions of a segment. It is plain data, because a process that has loaded
    one version's code must not load another's: modules of the same name would be mixed up.
    """

    topology: Topology
    keys: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, flow: Flow, settings: RunSettings) -> Dataflow:
        unit = settings.policy.unit
        topology = topology_of(flow, unit, settings.partition_count)
        split = {name: members for name, members in fragments_of(flow, unit).items() if len(members) == 1}
        keys = {name: tuple(flow.fragments[only].partition_by) for name, (only,) in split.items()}
        return cls(topology, keys)

    @property
    def ends(self) -> frozenset[str]:
        """The names of sources and sinks in the topology."""
        return frozenset(partition.name for partition in self.topology.ends)

    def to_json(self) -> dict[str, Any]:
        topology = self.topology
        return {
            "inputs": [[name, list(read)] for name, read in topology.inputs.items()],
            "counts": dict(topology.counts),
            "sinks": dict(topology.sinks),
            "keys": {name: list(columns) for name, columns in self.keys.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Dataflow:
        inputs = {str(name): tuple(map(str, read)) for name, read in values["inputs"]}
        keys = {str(name): tuple(map(str, columns)) for name, columns in values["keys"].items()}
        return cls(Topology(inputs, dict(values["counts"]), dict(values["sinks"])), keys)


def host_for(
    name: str,
    topology: Topology,
    settings: RunSettings,
    *,
    delivered: Mapping[str, BucketId] | None = None,
    trimmed: Mapping[str, BucketId] | None = None,
    forgotten: Mapping[str, BucketId] | None = None,
    rests: bool = False,
) -> Host:
    """The host of one process of this run. Only a gateway has delivered anything, or a log."""
    return Host(
        name,
        topology,
        settings.limits,
        timing=Timing(
            absent_ms=ABSENT_SILENCES * settings.policy.silence_ms,
            ship_ms=settings.policy.ship_ms,
            save_ms=settings.snapshot_every_ms if settings.saves else 0,
        ),
        delivered=delivered,
        trimmed=trimmed,
        forgotten=forgotten,
        isolated=settings.policy.isolated,
        rests=rests,
    )


def controller_for(topology: Topology, settings: RunSettings) -> Callable[[View | None], Controller]:
    """From the stored view to the controller of this run."""
    policy = settings.policy

    def make(view: View | None) -> Controller:
        require_view(view, settings)
        return Controller(
            topology,
            policy.replicas,
            settings.nodes,
            view,
            isolated=policy.isolated,
            saved=settings.saves,
            passive=policy.ship_ms > 0,
            first_epoch=settings.first_epoch,
            early=settings.saves and settings.generation > 1,
        )

    return make


def require_view(view: View | None, settings: RunSettings) -> None:
    """Refuse to begin anew where copies have state: a first view would seat empty ones in their places."""
    if view is None and seated_file(settings.version_path).exists():
        raise EnvironmentFailed(
            f"ZooKeeper at {settings.zookeeper} does not know which nodes hold the state of this run: its "
            "data is lost. Put it back if there is a copy. Or end the run and start it again in its folder: "
            "if its state was saved, it goes on from there."
        )
