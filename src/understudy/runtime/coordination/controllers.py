"""Which controller decides for a policy, and in which kind of view it does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from understudy.core.controller import Controller
from understudy.core.flux_controller import FluxController
from understudy.core.flux_view import FluxView
from understudy.core.view import Slot, View
from understudy.flow.flow import Flow
from understudy.flow.policy import ClusterPairs, policy_named
from understudy.runtime.partitioning import topology_of
from understudy.runtime.settings import RunSettings


def view_type_of(policy: str) -> type[View] | type[FluxView]:
    return FluxView if policy_named(policy).partitioned else View


def pair_controller(policy: str) -> Callable[[View | None], Controller]:
    """From the stored view to the controller of a flow whose nodes run it whole."""
    return partial(Controller, tuple(Slot)[: policy_named(policy).replicas])


def flux_controller(settings: RunSettings, flow: Flow) -> Callable[[FluxView | None], FluxController]:
    """From the stored view to the controller of a partitioned flow."""
    return partial(
        FluxController,
        topology_of(flow, settings.partition_count),
        settings.nodes,
        whole=settings.policy == ClusterPairs.name,
    )
