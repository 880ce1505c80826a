"""`understudy run`: a flow on this machine, from the first process to the last.

The flow is loaded here first, so that a mistake in it is reported before anything starts. Then this process
only looks after the others: it starts dead processes again, shows the state of the run, and ends all
processes when the work is done, when it is asked to, or when the flow is lost.
"""

from __future__ import annotations

import time
from argparse import Namespace
from typing import Any

from understudy.cli.chosen import chosen_settings
from understudy.cli.folders import (
    folder_for_run,
    log_into,
    make,
    outputs,
    require_empty_outputs,
    require_inputs,
)
from understudy.cli.interruption import Interrupted, Interruption
from understudy.cli.picture import figures, node_lines
from understudy.cli.policies import titled
from understudy.cli.saved import SavedNews, goes_on_from, open_store, save_last
from understudy.cli.view import RunView, view_for
from understudy.flow.errors import UserError
from understudy.flow.flow import Flow
from understudy.flow.loading import load
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.server import require_free_port
from understudy.runtime.fit import go_on_with
from understudy.runtime.folder_lock import lock_of_run
from understudy.runtime.gateway.process import FACT
from understudy.runtime.going_on import next_generation
from understudy.runtime.local import LocalRun
from understudy.runtime.process import leave_failure
from understudy.runtime.process_tree import end_descendants
from understudy.runtime.settings import FILE, RunSettings

LOST = 1
_PERIOD_S = 0.5
_RATE_OVER_S = 3.0
#: Being away for less than this is no news: a gateway is back so soon after it died.
_AWAY_S = 3.0


def execute(arguments: Namespace) -> int:
    flow = load(arguments.flow)
    settings = chosen_settings(arguments, flow, folder_for_run(arguments.folder, flow.name))
    goes_on = (settings.path / FILE).exists()
    if not goes_on:
        require_empty_outputs(flow)
    require_inputs(flow)
    title = f"{flow.name}, policy {titled(settings.policy.name, settings.policy.replicas)}"
    with Interruption() as interruption, view_for(title, plain=arguments.plain) as view:
        view.say(f"run folder {settings.folder}")
        try:
            with interruption.unless(lambda: _local_run(flow, settings, goes_on, view)) as run:
                code = _looked_after(run, view, interruption, arguments.seconds)
                if settings.saves and not run.finished:
                    save_last(run, view, interruption)
                view.say("ending every process")
        except Interrupted:
            end_descendants()
            view.say("asked to end")
            code = interruption.exit_code
    _say_where(flow, settings)
    return code


def _local_run(flow: Flow, settings: RunSettings, goes_on: bool, view: RunView) -> LocalRun:
    """The run, not started yet but for a ZooKeeper of its own."""
    make(settings.path)
    lock = lock_of_run(settings.path)
    lock.take()
    try:
        require_free_port("The gateway", settings.host, settings.gateway_port)
        store = open_store(settings)
        if goes_on:
            view.say(goes_on_from(settings, store))
            for sentence in go_on_with(flow, RunSettings.load(settings.path), settings):
                view.say(sentence)
            settings = next_generation(settings)
        nodes, standby = settings.nodes, settings.standby
        if settings.zookeeper:
            return LocalRun(settings, nodes=nodes, standby=standby, respawn=True, lock=lock)
        view.say("starting ZooKeeper")
        return LocalRun.on_own_zookeeper(settings, nodes=nodes, standby=standby, respawn=True, lock=lock)
    except BaseException:
        lock.release()
        raise


def _looked_after(run: LocalRun, view: RunView, interruption: Interruption, seconds: float | None) -> int:
    """Keep the run going until it ends, one way or another; the exit code."""
    # Connected first: a ZooKeeper that does not answer is reported before anything else starts.
    address, name = run.settings.zookeeper, run.settings.coordinates
    with interruption.unless(lambda: Coordination(address, name)) as coordination:
        _require_new_name(coordination)
        log_into(run.settings)
        run.start()
        view.say(f"starting the gateway and Spark on {', '.join(run.node_names)}")
        began_s = time.monotonic()
        shown = _Shown(run, view, coordination)
        while not interruption.wait(_PERIOD_S):
            status = run.status()
            if run.finished:
                view.say("every source has ended and everything is delivered")
                return 0
            shown.update(status)
            lost = status and status["lost"]
            if lost:
                leave_failure(run.settings.path, "flow", lost)
                view.say(f"The flow is lost: {lost.rstrip('.')}. Start it again in a new folder.")
                return LOST
            if seconds is not None and time.monotonic() - began_s >= seconds:
                view.say(f"{seconds:g} seconds are over")
                return 0
    view.say("asked to end")
    return interruption.exit_code


def _require_new_name(coordination: Coordination) -> None:
    """Refuse a name that this ZooKeeper knows: what was decided for that run would be taken for ours."""
    if coordination.get_fact(FACT) is not None:
        raise UserError(
            f"ZooKeeper at {coordination.address} knows a run named {coordination.run!r} already. "
            "A run is named like its folder: name another one with --folder."
        )


class _Shown:
    """Turns statuses into what is shown, with rates over the last seconds, and changes into news."""

    def __init__(self, run: LocalRun, view: RunView, coordination: Coordination) -> None:
        self._run = run
        self._view = view
        self._coordination = coordination
        self._recent: list[dict[str, Any]] = []
        self._incarnations: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._controller: str | None = None
        self._saved = SavedNews(view)
        self._gateway = _Presence(view, "the gateway does not answer", "the gateway answers again")
        self._zookeeper = _Presence(
            view,
            "ZooKeeper does not answer; the run goes on with what was last decided",
            "ZooKeeper answers again",
        )

    def update(self, status: dict[str, Any] | None) -> None:
        self._tell_restarts()
        self._tell_setbacks(status)
        self._zookeeper.note(self._coordination.session.connected)
        if status is not None:
            self._recent.append(status)
            while status["at_us"] - self._recent[0]["at_us"] > _RATE_OVER_S * 1e6:
                self._recent.pop(0)
            self._saved.note(status)
        if self._recent:
            # Before its first answer the gateway is not away, it starts.
            self._gateway.note(status is not None)
        # While the gateway is away, what it last said is the best that is known.
        before, now = (self._recent[0], self._recent[-1]) if self._recent else ({}, {})
        running = {name: child.running for name, child in self._run.children.items() if name != "gateway"}
        were_ready = {name for name in running if self._run.came_up(name)}
        flow = figures(before, now, self._gateway.away_s)
        self._view.show(now.get("epoch", 0), node_lines(now, running, were_ready), flow)

    def _tell_restarts(self) -> None:
        for name, child in self._run.children.items():
            if child.incarnation > self._incarnations.get(name, child.incarnation):
                self._view.say(f"{name} died and was started again")
            self._incarnations[name] = child.incarnation

    def _tell_setbacks(self, status: dict[str, Any] | None) -> None:
        setbacks = self._run.setbacks
        for name, setback in setbacks.items():
            if self._failures.get(name) != setback.failures:
                self._view.say(setback.text)
                self._failures[name] = setback.failures
        failure = status and status.get("controller")
        if failure and failure != self._controller:
            self._view.say(f"the gateway gave up leading for a while, another process may lead: {failure}")
        if status is not None:
            self._controller = failure or None


class _Presence:
    """Says once that a process does not answer, and once that it answers again."""

    def __init__(self, view: RunView, away: str, back: str) -> None:
        self._view = view
        self._away = away
        self._back = back
        self._seen_s = time.monotonic()
        self._said_away = False

    @property
    def away_s(self) -> float:
        """For how long it has not answered, once that was said."""
        return time.monotonic() - self._seen_s if self._said_away else 0.0

    def note(self, present: bool) -> None:
        if present:
            self._seen_s = time.monotonic()
            if self._said_away:
                self._said_away = False
                self._view.say(self._back)
        elif not self._said_away and time.monotonic() - self._seen_s > _AWAY_S:
            self._said_away = True
            self._view.say(self._away)


def _say_where(flow: Flow, settings: RunSettings) -> None:
    for folder in outputs(flow):
        print(f"output   {folder}")
    print(f"logs     {settings.path / 'logs'}")
    if settings.history:
        print(f"history  {settings.path / 'history'}")
        print(f"judge it with: understudy check {settings.folder}")
