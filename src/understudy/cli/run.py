"""`understudy run`: a flow on this machine, from the first process to the last.

The flow is loaded here first, so that a mistake in it is told before anything starts. Then this process
only looks after the others: it starts again what died, shows how things are, and ends everything when the
work is done, when it is asked to, or when the flow is lost.
"""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from understudy.cli.folders import fresh_folder, outputs, require_empty_outputs
from understudy.cli.interruption import Interruption
from understudy.cli.picture import figures, node_lines
from understudy.cli.view import View, view_for
from understudy.cli.watching import Seen, Watch
from understudy.flow.errors import UserError
from understudy.flow.flow import Flow
from understudy.flow.loading import load
from understudy.flow.policy import policy_named
from understudy.runtime.local import LocalRun
from understudy.runtime.settings import RunSettings

LOST = 1
_PERIOD_S = 0.25
_RATE_OVER_S = 3.0
_STALE_S = 5.0


def execute(arguments: Namespace) -> int:
    flow = load(arguments.flow)
    nodes, standby = _node_counts(arguments)
    require_empty_outputs(flow)
    folder = fresh_folder(arguments.folder, flow.name)
    settings = RunSettings(
        run=folder.name,
        flow_path=str(Path(arguments.flow).resolve()),
        folder=str(folder),
        zookeeper=arguments.zookeeper or "",
        policy=arguments.policy,
        gateway_port=arguments.port,
        heap_mb=arguments.heap,
        history=not arguments.no_history,
    )
    title = f"{flow.name}, policy {arguments.policy}"
    with Interruption() as interruption, view_for(title, plain=arguments.plain) as view:
        view.say(f"run folder {folder}")
        with _local_run(settings, nodes, standby, view) as run:
            code = _looked_after(run, view, interruption, arguments.seconds)
            view.say("ending every process")
    _say_where(flow, settings)
    return code


def _node_counts(arguments: Namespace) -> tuple[int, int]:
    replicas = policy_named(arguments.policy).replicas
    nodes = replicas if arguments.nodes is None else arguments.nodes
    standby = (1 if replicas > 1 else 0) if arguments.standby is None else arguments.standby
    if nodes < replicas:
        raise UserError(
            f"policy {arguments.policy!r} needs {replicas} nodes, not {nodes}. "
            "Leave --nodes out, or choose --policy none."
        )
    return nodes, standby


def _local_run(settings: RunSettings, nodes: int, standby: int, view: View) -> LocalRun:
    if settings.zookeeper:
        return LocalRun(settings, nodes=nodes, standby=standby, respawn=True)
    view.say("starting ZooKeeper")
    settings.path.mkdir(parents=True, exist_ok=True)
    return LocalRun.on_own_zookeeper(settings, nodes=nodes, standby=standby, respawn=True)


def _looked_after(run: LocalRun, view: View, interruption: Interruption, seconds: float | None) -> int:
    """Keep the run going until it ends, one way or another; the exit code."""
    # The watch connects first: a ZooKeeper that does not answer is told before anything else starts.
    with Watch(run.settings) as watch:
        run.start()
        view.say(f"starting the gateway and Spark on {', '.join(run.node_names)}")
        began_s = time.monotonic()
        shown = _Shown(run, view)
        while not interruption.wait(_PERIOD_S):
            if run.finished:
                view.say("every source has ended and everything is delivered")
                return 0
            run.check()
            seen = watch.latest
            shown.update(seen)
            lost = seen.status.get("lost")
            if lost:
                view.say(f"The flow is lost: {lost.rstrip('.')}. Start it again in a new folder.")
                return LOST
            if seconds is not None and time.monotonic() - began_s >= seconds:
                view.say(f"{seconds:g} seconds are over")
                return 0
    view.say("asked to end")
    return interruption.exit_code


class _Shown:
    """Turns what was seen into what is shown, with rates over the last seconds."""

    def __init__(self, run: LocalRun, view: View) -> None:
        self._run = run
        self._view = view
        self._earlier: list[dict[str, Any]] = []
        self._stale = False
        self._incarnations: dict[str, int] = {}

    def update(self, seen: Seen) -> None:
        self._tell_if_stale(seen)
        self._tell_restarts()
        running = {name: child.running for name, child in self._run.children.items() if name != "gateway"}
        ready = {m.name: str(m.facts.get("node", m.name)) for m in seen.members if m.kind == "node"}
        status = seen.status
        if status and (not self._earlier or self._earlier[-1]["at_us"] != status["at_us"]):
            self._earlier.append(status)
            while status["at_us"] - self._earlier[0]["at_us"] > _RATE_OVER_S * 1e6:
                self._earlier.pop(0)
        before = self._earlier[0] if self._earlier else {}
        now = figures(before, status)
        self._view.show(status.get("epoch", 0), node_lines(status, ready, running), now)

    def _tell_restarts(self) -> None:
        for name, child in self._run.children.items():
            if child.incarnation > self._incarnations.get(name, 1):
                self._view.say(f"{name} died and was started again")
            self._incarnations[name] = child.incarnation

    def _tell_if_stale(self, seen: Seen) -> None:
        stale = seen.at_s > 0 and time.monotonic() - seen.at_s > _STALE_S
        if stale and not self._stale:
            self._view.say("ZooKeeper does not answer; the run goes on with what was last decided")
        self._stale = stale


def _say_where(flow: Flow, settings: RunSettings) -> None:
    for folder in outputs(flow):
        print(f"output   {folder}")
    print(f"logs     {settings.path / 'logs'}")
    if settings.history:
        print(f"history  {settings.path / 'history'}   (understudy check {settings.folder})")
