"""`understudy run`: a flow on this machine, from the first process to the last.

The flow is loaded here first, so that a mistake in it is reported before anything starts. Then this process
only looks after the others: it starts dead processes again, shows the state of the run, and ends all
processes when the work is done, when it is asked to, or when the flow is lost.
"""

from __future__ import annotations

import shutil
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
from understudy.cli.output import output_may_fail
from understudy.cli.picture import figures, node_lines
from understudy.cli.policies import titled
from understudy.cli.saved import SavedNews, claimed, goes_on_from, open_store, save_last
from understudy.cli.view import RunView, view_for
from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.flow.flow import Flow
from understudy.flow.loading import load
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.server import require_free_port
from understudy.runtime.fit import go_on_with
from understudy.runtime.folder_lock import FolderLock, lock_of_run
from understudy.runtime.gateway.leading import FACT
from understudy.runtime.going_on import await_departure, drop_marks, has_begun, moved, next_generation
from understudy.runtime.leftovers import drop_unfinished
from understudy.runtime.local import LocalRun
from understudy.runtime.process import leave_failure
from understudy.runtime.process_tree import end_descendants
from understudy.runtime.saving.claim import Claim
from understudy.runtime.settings import FILE, RunSettings

LOST = 1
_PERIOD_S = 0.5
_RATE_OVER_S = 3.0
#: Being away for less than this is no news: a gateway is back so soon after it died.
_AWAY_S = 3.0


@output_may_fail()
def execute(arguments: Namespace) -> int:
    flow = load(arguments.flow)
    folder = folder_for_run(arguments.folder, flow.name)
    lock = lock_of_run(folder)
    try:
        former: RunSettings | None = None
        if (folder / FILE).exists():
            # First of all: what a run that still runs would refuse does not matter then.
            lock.take()
            former = moved(RunSettings.load(folder), folder)
        return _executed(arguments, flow, chosen_settings(arguments, flow, folder, former), former, lock)
    finally:
        lock.release()


def _executed(
    arguments: Namespace, flow: Flow, settings: RunSettings, former: RunSettings | None, lock: FolderLock
) -> int:
    if former is None or not has_begun(former):
        require_empty_outputs(flow)
    require_inputs(flow)

    def local_run() -> LocalRun:
        again, claim = _prepared(flow, settings, former, lock, view, new_code=arguments.new_code)
        try:
            return _local_run(again, lock, claim, view)
        except BaseException:
            if claim is not None:
                claim.release()
            raise

    title = f"{flow.name}, policy {titled(settings.policy.name, settings.policy.replicas)}"
    with Interruption() as interruption, view_for(title, plain=arguments.plain) as view:
        view.say(f"run folder {settings.folder}")
        try:
            with interruption.unless(local_run) as run:
                code = _stopped(run, view, interruption, arguments.seconds)
                view.say("ending every process")
        except Interrupted:
            end_descendants()
            view.say("asked to end")
            code = interruption.exit_code
    _say_where(flow, settings)
    return code


def _stopped(run: LocalRun, view: RunView, interruption: Interruption, seconds: float | None) -> int:
    """Keep the run going until it is to end, and have its state saved then; the exit code."""
    try:
        code = _looked_after(run, view, interruption, seconds)
    except Interrupted:
        # It has hardly begun.
        run.mark_as_stopped(all_saved=False)
        raise
    if run.finished:
        return code
    all_saved = False
    if run.settings.saves:
        all_saved = save_last(run, view, interruption)
        _tell_upgrade(run, view)
    if code != LOST:
        run.mark_as_stopped(all_saved=all_saved)
    return code


def _local_run(settings: RunSettings, lock: FolderLock, claim: Claim | None, view: RunView) -> LocalRun:
    """The run, not started yet. A ZooKeeper of its own begins to start."""
    nodes, standby = settings.nodes, settings.standby
    if settings.zookeeper:
        return LocalRun(settings, nodes=nodes, standby=standby, respawn=True, lock=lock, claim=claim)
    view.say("starting ZooKeeper")
    return LocalRun.on_own_zookeeper(
        settings, nodes=nodes, standby=standby, respawn=True, lock=lock, claim=claim
    )


def _prepared(
    flow: Flow,
    settings: RunSettings,
    former: RunSettings | None,
    lock: FolderLock,
    view: RunView,
    *,
    new_code: bool,
) -> tuple[RunSettings, Claim | None]:
    """The settings to start with, and the folder for them, held by the lock; and the claim on its store.

    What speaks against the run is said before anything is changed: a new run leaves no folder behind then,
    and one that was to go on is as it was.
    """
    require_free_port("The gateway", settings.host, settings.gateway_port)
    again = settings if former is None else next_generation(settings)
    if former is not None and former.zookeeper and not former.own_zookeeper:
        _require_departed(former, settings.zookeeper, view)
    if settings.zookeeper:
        with Coordination(again.zookeeper, again.coordinates) as coordination:
            _require_new_name(coordination)
    is_new = not settings.path.exists()
    make(settings.path)
    lock.take()
    claim: Claim | None = None
    try:
        store = open_store(settings)
        claim = claimed(store, settings, view.say)
        if former is not None:
            view.say(goes_on_from(store))
            found = go_on_with(flow, former, settings, store=store, new_code=new_code, say=view.say)
            for sentence in found:
                view.say(sentence)
    except BaseException:
        if claim is not None:
            claim.release()
        if is_new:
            shutil.rmtree(settings.path, ignore_errors=True)
        raise
    if former is not None:
        # With the options of its store as they are now: keys may have changed since.
        unfinished = drop_unfinished(settings)
        if unfinished is not None:
            view.say(unfinished)
        drop_marks(former)
    return again, claim


def _require_departed(former: RunSettings, zookeeper: str, view: RunView) -> None:
    try:
        await_departure(former)
    except EnvironmentFailed:
        if former.zookeeper == zookeeper:
            raise
        view.say(
            f"the ZooKeeper before, at {former.zookeeper}, does not answer: if processes of this run still "
            "live on other machines, stop them"
        )


def _looked_after(run: LocalRun, view: RunView, interruption: Interruption, seconds: float | None) -> int:
    """Keep the run going until it ends, one way or another; the exit code."""

    def connected() -> Coordination:
        run.start()
        return Coordination(run.settings.zookeeper, run.settings.coordinates)

    log_into(run.settings)
    with interruption.unless(connected) as coordination:
        view.say(f"starting the gateway and Spark on {_listed_nodes(run)}")
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


def _listed_nodes(run: LocalRun) -> str:
    at_once = [name for name in run.node_names if name not in run.held_back]
    later = f"; {', '.join(run.held_back)} when output flows" if run.held_back else ""
    return f"{', '.join(at_once)}{later}"


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
        _tell_upgrade(self._run, self._view)
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
        children = self._run.children
        for name, child in children.items():
            if child.incarnation > self._incarnations.get(name, child.incarnation):
                self._view.say(f"{name} died and was started again")
        # A node of a version that was taken back is gone, and one of the next version has its name.
        self._incarnations = {name: child.incarnation for name, child in children.items()}

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


def _tell_upgrade(run: LocalRun, view: RunView) -> None:
    for sentence in run.upgrading.news():
        view.say(f"upgrade: {sentence}")


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
