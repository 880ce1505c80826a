"""The shape of a run: its flow under its policy, as the hosts and the controller need it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from understudy.core.bucket import BucketId
from understudy.core.host.host import Host
from understudy.core.host.limits import Timing
from understudy.core.shape.topology import Topology
from understudy.core.view.controller import Controller
from understudy.core.view.view import View
from understudy.engine.segments import topology_of
from understudy.flow.errors import EnvironmentFailed
from understudy.flow.flow import Flow
from understudy.runtime.process import seated_file
from understudy.runtime.settings import RunSettings

#: A process that was never reached is suspected after this many times the silence limit.
ABSENT_SILENCES = 2


def topology_for(flow: Flow, settings: RunSettings) -> Topology:
    return topology_of(flow, settings.policy.unit, settings.partition_count)


def host_for(
    name: str,
    flow: Flow,
    settings: RunSettings,
    *,
    delivered: Mapping[str, BucketId] | None = None,
    trimmed: Mapping[str, BucketId] | None = None,
    forgotten: Mapping[str, BucketId] | None = None,
) -> Host:
    """The host of one process of this run. Only a gateway has delivered anything, or a log."""
    return Host(
        name,
        topology_for(flow, settings),
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
    )


def controller_for(flow: Flow, settings: RunSettings) -> Callable[[View | None], Controller]:
    """From the stored view to the controller of this run."""
    topology, policy = topology_for(flow, settings), settings.policy

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
        )

    return make


def require_view(view: View | None, settings: RunSettings) -> None:
    """Refuse to begin anew where copies have state: a first view would seat empty ones in their places."""
    if view is None and seated_file(settings.path).exists():
        raise EnvironmentFailed(
            f"ZooKeeper at {settings.zookeeper} does not know which nodes hold the state of this run: its "
            "data is lost. Put it back if there is a copy. Or end the run and start it again in its folder: "
            "if its state was saved, it goes on from there."
        )
