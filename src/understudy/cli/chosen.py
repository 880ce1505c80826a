"""The settings of a run: those of a new one, or those of the next generation of one that goes on.

What an option does not say stays as it was. A change that the state or the log could not take is refused
here, before anything starts.
"""

from __future__ import annotations

import secrets
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from understudy.cli.policies import chosen_policy
from understudy.flow.errors import UserError
from understudy.flow.flow import Flow
from understudy.flow.policy import Policy
from understudy.runtime.going_on import has_begun, require_able
from understudy.runtime.saving.opening import without_keys
from understudy.runtime.settings import RunSettings


def chosen_settings(
    arguments: Namespace, flow: Flow, folder: Path, former: RunSettings | None = None
) -> RunSettings:
    """What the options say of a new run in this folder, or of its next generation. Nothing is changed on
    disk.
    """
    if former is not None:
        return _going_on(arguments, flow, former)
    policy = _policy(arguments, None)
    nodes, standby = _node_counts(arguments, policy)
    settings = RunSettings(
        run=folder.name,
        flow=flow.name,
        flow_path=str(Path(arguments.flow).resolve()),
        folder=str(folder),
        zookeeper=arguments.zookeeper or "",
        policy=policy,
        nodes=nodes,
        standby=standby,
        partitions=_partitions(arguments, policy),
        gateway_port=arguments.port or 0,
        heap_mb=arguments.heap or RunSettings.heap_mb,
        history=not arguments.no_history,
        saved_as=f"{folder.name}-{secrets.token_hex(4)}",
    )
    return _saving(arguments, settings)


def _going_on(arguments: Namespace, flow: Flow, former: RunSettings) -> RunSettings:
    require_able(former)
    if former.flow != flow.name:
        raise UserError(
            f"{former.folder} holds a run of flow {former.flow!r}, not of {flow.name!r}. "
            "Name that flow's file, or another folder."
        )
    policy = _policy(arguments, former.policy)
    begun = has_begun(former)
    if begun:
        _require_fitting(arguments, policy, former)
    again = replace(
        former,
        flow_path=str(Path(arguments.flow).resolve()),
        zookeeper=arguments.zookeeper or ("" if former.own_zookeeper else former.zookeeper),
        own_zookeeper=False,
        policy=policy,
        heap_mb=arguments.heap or former.heap_mb,
        gateway_port=former.gateway_port if arguments.port is None else arguments.port,
        history=former.history and not arguments.no_history,
        crowd=None,
    )
    nodes, standby = _node_counts(arguments, policy, former)
    again = replace(again, nodes=nodes, standby=standby)
    if arguments.partitions is not None:
        again = replace(again, partitions=_partitions(arguments, policy))
    elif policy.partitioned and begun:
        # As many as there were, also on another number of nodes: their states are cut that way.
        again = replace(again, partitions=former.partition_count)
    return _saving(arguments, again)


def _require_fitting(arguments: Namespace, policy: Policy, former: RunSettings) -> None:
    """Refuse what the saved state could not take."""
    if policy.unit != former.policy.unit or policy.isolated:
        raise UserError(
            f"{former.folder} holds a run with policy {former.policy.name!r}. Its state is not cut as policy "
            f"{policy.name!r} cuts it, so it cannot go on with that. Leave --policy out, or start a new run."
        )
    if policy.partitioned and arguments.partitions not in (None, former.partition_count):
        raise UserError(
            f"The state of the run in {former.folder} is cut into {former.partition_count} partitions. Leave "
            "--partitions out, or start a new run."
        )
    saved_in = without_keys(former.store_url)
    if arguments.store is not None and without_keys(_absolute(arguments.store)) != saved_in:
        raise UserError(
            f"The state of the run in {former.folder} is saved in {saved_in}. Leave --store out: a run goes "
            "on where its state is."
        )
    if arguments.snapshot_every == 0:
        raise UserError(
            f"The run in {former.folder} goes on from its saved state, so it has to save its state as well. "
            "Leave --snapshot-every 0 out, or start a new run."
        )


def _saving(arguments: Namespace, settings: RunSettings) -> RunSettings:
    if settings.policy.isolated and (arguments.snapshot_every or arguments.store):
        raise UserError(
            f"policy {settings.policy.name!r} is a baseline and saves no state. Leave --snapshot-every and "
            "--store out, or choose --policy flux."
        )
    if arguments.snapshot_every is not None:
        settings = replace(settings, snapshot_every_ms=round(arguments.snapshot_every * 1_000))
    if arguments.store is not None and not settings.saves:
        raise UserError("With --snapshot-every 0 nothing is saved: leave --store out.")
    return replace(settings, store=_absolute(arguments.store)) if arguments.store is not None else settings


def _absolute(store: str) -> str:
    """Processes may stand anywhere."""
    return store if "://" in store or not store else str(Path(store).resolve())


def _policy(arguments: Namespace, former: Policy | None) -> Policy:
    wanted = {"silence_ms": arguments.silence_ms, "ship_ms": arguments.ship_ms}
    given: dict[str, int] = {name: value for name, value in wanted.items() if value is not None}
    if former is None:
        return chosen_policy(arguments.policy or "pair", arguments.replicas, **given)
    name = arguments.policy or former.name
    if name == former.name and arguments.replicas is None:
        return replace(former, **given)  # type: ignore[arg-type]
    return chosen_policy(name, arguments.replicas, **{"silence_ms": former.silence_ms, **given})


def _node_counts(arguments: Namespace, policy: Policy, former: RunSettings | None = None) -> tuple[int, int]:
    same = former is not None and former.policy.name == policy.name and arguments.replicas is None
    usual = former.nodes if former is not None and same else policy.nodes_usual
    waiting = former.standby if former is not None and same else policy.standby
    nodes = usual if arguments.nodes is None else arguments.nodes
    standby = waiting if arguments.standby is None else arguments.standby
    if nodes < policy.nodes_least:
        raise UserError(
            f"policy {policy.name!r} needs {policy.nodes_least} nodes, not {nodes}: one for each replica. "
            "Leave --nodes out, or choose --policy none."
        )
    if policy.isolated and nodes % policy.replicas:
        raise UserError(
            f"policy {policy.name!r} needs a multiple of {policy.replicas} nodes, as many for each replica "
            f"of the flow, not {nodes}."
        )
    if policy.isolated and standby:
        raise UserError(
            f"policy {policy.name!r} replaces no node, so a standby would wait for ever. "
            "Leave --standby out, or choose --policy flux."
        )
    return nodes, standby


def _partitions(arguments: Namespace, policy: Policy) -> int:
    if arguments.partitions is not None and not policy.partitioned:
        raise UserError(
            f"policy {policy.name!r} does not split fragments into partitions. "
            "Leave --partitions out, or choose --policy flux."
        )
    return arguments.partitions or 0
