"""A run on one machine: ZooKeeper, a gateway and some nodes as processes of their own, and their end.

A gateway that dies is started again. A node that dies is started again as a standby if `respawn` is on. One
that fails is tried again and again, after pauses that grow to `RETRY_PAUSE_S_MAX`: the nodes hold the state
of the flow in their memory, and a full disk or an absent ZooKeeper may come back. Only two kinds of failure
end the run: one before all of its places could be filled, when there is nothing to lose, and the user's
mistake in a process that had come up, which every other process would make as well.

While the run is upgraded, the nodes of the version that may go are not started again, and a mistake that the
gateway meets is taken for the new version's: it is taken back (`runtime.upgrading`).
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from understudy.core.host.places import GATEWAY
from understudy.engine.jvm import sweep
from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.flow.loading import load
from understudy.runtime.children import Child, Setback, end_all, retry_pause_s, started
from understudy.runtime.coordination.server import ZooKeeperServer
from understudy.runtime.durable import written
from understudy.runtime.folder_lock import FolderLock, lock_of_run, locks_of_outputs
from understudy.runtime.former_trees import FormerTrees
from understudy.runtime.going_on import next_incarnation
from understudy.runtime.partitioning import Dataflow
from understudy.runtime.printed import bound_printed
from understudy.runtime.process import finished_file, ready_file
from understudy.runtime.process_tree import signal_tree
from understudy.runtime.pulse import Pulse, keep_beating, pulse_file
from understudy.runtime.saving.claim import Claim
from understudy.runtime.settings import FILE, RunSettings, node_names
from understudy.runtime.starting import HELD_BACK_S_MAX, start_order
from understudy.runtime.status import RunStatus
from understudy.runtime.stopped import Stopped, forget_stopped, leave_stopped
from understudy.runtime.upgrading import Upgrading

log = logging.getLogger(__name__)

ZOOKEEPER = "zookeeper"
STATUS_TIMEOUT_S = 2.0
#: With more nodes than this for each core, Java's optimising compiler costs more than it brings.
NODES_PER_CORE_MAX = 2
#: A process is not started again sooner than this after its last start.
RESPAWN_PAUSE_S = 1.0
#: A process that worked for so long before it failed has failed for the first time.
WORKED_S = 60.0


class LocalRun:
    """Starts and ends the processes of one run. `start` returns when all of them are started, not ready."""

    def __init__(
        self,
        settings: RunSettings,
        *,
        nodes: int,
        standby: int = 0,
        respawn: bool = False,
        zookeeper: ZooKeeperServer | None = None,
        lock: FolderLock | None = None,
        claim: Claim | None = None,
    ) -> None:
        self._folder_lock = lock or lock_of_run(settings.path)
        self._claim = claim
        self._output_locks: list[FolderLock] = []
        self.settings = suited(replace(settings, standby=standby), nodes + standby)
        #: So many nodes must have been ready before there is something to lose.
        self._places = nodes
        self._nodes = nodes + standby
        self._begun = False
        self._respawn = respawn
        self._zookeeper_failures = 0
        self._zookeeper_again_at = 0.0
        self._zookeeper_failure = ""
        self.zookeeper = zookeeper
        self._zookeeper_pulse = Pulse(pulse_file(self.settings.path, ZOOKEEPER))
        self._status = RunStatus(self.settings)
        self._children: dict[str, Child] = {}
        #: Nodes that start when output flows, so that the others start sooner.
        self.held_back: list[str] = []
        self._held_back_until = 0.0
        #: Nodes of a version that is over, which are being ended.
        self._leaving: list[Child] = []
        self._lock = threading.Lock()
        self._ending = threading.Event()
        #: How it is being stopped, if that is in good order.
        self._stopped: Stopped | None = None
        self.upgrading = Upgrading(self)
        self._former_trees = FormerTrees()

    @property
    def node_names(self) -> list[str]:
        return node_names(self._nodes, self.settings.first_node)

    @classmethod
    def on_own_zookeeper(
        cls,
        settings: RunSettings,
        *,
        nodes: int,
        standby: int = 0,
        respawn: bool = False,
        lock: FolderLock | None = None,
        claim: Claim | None = None,
    ) -> LocalRun:
        """A run with a ZooKeeper of its own, in the run's folder. It begins to start here."""
        lock = lock or lock_of_run(settings.path)
        # Two servers on one folder would both fail, in words that nobody understands.
        lock.take()
        server = ZooKeeperServer(settings.path / ZOOKEEPER)
        try:
            server.begin()
            settings = replace(settings, zookeeper=server.address, own_zookeeper=True)
            return cls(
                settings,
                nodes=nodes,
                standby=standby,
                respawn=respawn,
                zookeeper=server,
                lock=lock,
                claim=claim,
            )
        except BaseException:
            server.stop()
            lock.release()
            raise

    def start(self) -> None:
        self._folder_lock.take()
        self._output_locks = self._output_locks or locks_of_outputs(load(self.settings.flow_path))
        for lock in self._output_locks:
            lock.take()
        forget_stopped(self.settings.path)
        if not self.settings.gateway_port:
            # Chosen once, so that a gateway that is started again is found where it was.
            self.settings = replace(self.settings, gateway_port=_free_port(self.settings.host))
        self._status = RunStatus(self.settings)
        self.settings.save()
        at_once, self.held_back = start_order(self.settings, self.node_names, os.cpu_count() or 1)
        self._held_back_until = time.monotonic() + HELD_BACK_S_MAX
        # The first view does not wait for those that are held back.
        self._places = min(self._places, len(at_once))
        # A node's Spark takes longer than ZooKeeper to start, and needs it only then.
        for name in at_once:
            self.start_node(name, self.settings.version)
        if (server := self.zookeeper) is not None:
            server.start()
            file = pulse_file(self.settings.path, ZOOKEEPER)
            keep_beating(file, self._ending.wait, lambda: server.answers)
        self._start(GATEWAY, ["gateway", self.settings.folder])

    # --- looking -----------------------------------------------------------------------------------------

    @property
    def children(self) -> dict[str, Child]:
        with self._lock:
            return dict(self._children)

    def pid(self, name: str) -> int:
        return self._children[name].process.pid

    def status(self) -> dict[str, Any] | None:
        """The gateway's status, after `check`; None while it cannot be had. Takes 2 s at most.

        An upgrade that was asked for goes on with it.
        """
        self.check()
        try:
            status = self._status.ask(STATUS_TIMEOUT_S)
        except EnvironmentFailed:
            status = None
        if not self._ending.is_set() and not self.finished:
            if status is not None and status["rows_out"]:
                self._start_the_others("output flows")
            self.upgrading.look(status)
            if status is not None and self.upgrading.is_idle:
                self._former_trees.look(self.settings, status)
        return status

    def check(self) -> None:
        """Start again what died and should not have; raise what a process says is wrong."""
        if self._ending.is_set():
            return
        if self._claim is not None and self._claim.lost:
            raise EnvironmentFailed(f"{self._claim.lost}. This one ends; what it has taken in is in its log.")
        bound_printed(self.settings.path)
        if self.zookeeper is not None:
            self._look_after(self.zookeeper)
        if time.monotonic() >= self._held_back_until:
            self._start_the_others(f"{HELD_BACK_S_MAX:g} s are over")
        # Before anything is started again, which takes away the mark that it had come up.
        self._note_beginning()
        for child in self.children.values():
            if child.running and child.pulse.stands_still:
                child.give_up()
            if child.running or self.finished or child.name in self.upgrading.nodes:
                continue
            if self._ends_the_run(child):
                self._raise_failure(child)
            if child.name == GATEWAY or self._respawn:
                self._restart_when_due(child)

    @property
    def setbacks(self) -> dict[str, Setback]:
        """The processes that failed and wait to be started again, by name."""
        found = {}
        if self._zookeeper_failures:
            failures, again_at = self._zookeeper_failures, self._zookeeper_again_at
            found[ZOOKEEPER] = Setback.of(ZOOKEEPER, failures, again_at, self._zookeeper_failure)
        for child in self.children.values():
            if child.again_at is not None and (child.failed or child.not_started):
                why = child.why_gone(self.settings)
                found[child.name] = Setback.of(child.name, child.failures, child.again_at, why)
        return found

    @property
    def finished(self) -> bool:
        """Whether the gateway has ended because its work is done."""
        child = self._children.get(GATEWAY)
        return child is not None and not child.running and finished_file(self.settings.path).exists()

    def came_up(self, name: str) -> bool:
        """Whether a process, as it was last started, has been ready."""
        return ready_file(self.settings.path, name).exists()

    def _note_beginning(self) -> None:
        """The run has begun once the places of the first view could be filled: now there is state to lose."""
        ready = sum(self.came_up(name) for name in self.node_names)
        self._begun = self._begun or (self.came_up(GATEWAY) and ready >= self._places)

    def _ends_the_run(self, child: Child) -> bool:
        if not child.failed or (child.name == GATEWAY and self.upgrading.is_delivered):
            return False
        if child.process.returncode == UserError.exit_code and self.came_up(child.name):
            return True
        return not self._begun

    def _raise_failure(self, child: Child) -> None:
        kind = UserError if child.process.returncode == UserError.exit_code else EnvironmentFailed
        raise kind(f"{child.name} failed: {child.why_gone(self.settings)}")

    # --- doing -------------------------------------------------------------------------------------------

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a process and everything it started, as the loss of its host would."""
        signal_tree(self.pid(name), number)

    def restart(self, name: str) -> None:
        """Start a dead process again. A node comes back under its next incarnation."""
        child = self._children[name]
        if child.running:
            raise ValueError(f"{name} is running")
        self._restart(child)

    def _start_the_others(self, why: str) -> None:
        while self.held_back:
            name = self.held_back[0]
            try:
                self.start_node(name, self.settings.version)
            except EnvironmentFailed as problem:
                # No memory for another process, say: the next look tries again.
                log.warning("%s", problem)
                return
            log.info("%s starts, since %s", name, why)
            self.held_back = self.held_back[1:]

    def start_node(self, name: str, version: int) -> None:
        """Start a node with this version of the flow's code."""
        command = ["node", self.settings.folder, name, "--version", str(version)]
        self._start(name, command, next_incarnation(self.settings, name))

    def why_gone(self, name: str) -> str | None:
        """Why a process is gone; None while it runs."""
        child = self._children[name]
        return None if child.running else child.why_gone(self.settings)

    def why_failed(self, name: str) -> str | None:
        """Why a process ended by itself and not in good order; None if it runs, or was killed."""
        return self.why_gone(name) if self._children[name].failed else None

    def end_nodes(self, names: Sequence[str], then: Callable[[], None]) -> None:
        """Forget these nodes and, beside everything else, end them in good order; then do this."""
        with self._lock:
            # At once: whether one of them has failed is no concern of the run any more.
            ending = [self._children.pop(name) for name in names if name in self._children]
            self._leaving += ending

        def end() -> None:
            try:
                end_all(ending)
                sweep()
            finally:
                with self._lock:
                    self._leaving = [child for child in self._leaving if child not in ending]
                then()

        threading.Thread(target=end, name="ending nodes", daemon=True).start()

    def go_on_as(self, settings: RunSettings) -> None:
        """These are the run's settings from now on. Raises `EnvironmentFailed` if they cannot be written, or
        if they were, and may not outlive a loss of power.
        """
        with written(settings.path / FILE):
            settings.save()
        self.settings = settings

    def save_and_hold(self) -> bool:
        """Ask the gateway to take no more rows and to have every state saved; whether it answered.

        The run is about to end, so a version that is on trial is taken back meanwhile.
        """
        self.upgrading.close()
        return self._status.tell("save", STATUS_TIMEOUT_S)

    def mark_as_stopped(self, *, all_saved: bool) -> None:
        """The run ends because it was told to: once everything has ended, `stop` leaves a mark of it."""
        self._stopped = Stopped(all_saved)

    def stop(self) -> None:
        """End everything: nodes and gateway in good order, then ZooKeeper. Nothing is left behind."""
        self._ending.set()
        self._status.close()
        with self._lock:
            children = [*self._children.values(), *self._leaving]
        end_all(children)
        if self.zookeeper is not None:
            self.zookeeper.stop()
        sweep()
        if self._stopped is not None:
            # While no one else can have begun to go on with it.
            leave_stopped(self.settings.path, self._stopped)
        if self._claim is not None:
            self._claim.release()
        for lock in (*self._output_locks, self._folder_lock):
            lock.release()

    def __enter__(self) -> LocalRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _look_after(self, server: ZooKeeperServer) -> None:
        if server.running and self._zookeeper_pulse.stands_still:
            log.warning("ZooKeeper has not answered for long; killing it")
            server.kill()
        if server.running or time.monotonic() < self._zookeeper_again_at:
            return
        log.warning("ZooKeeper died; starting it again")
        try:
            server.start()
            self._zookeeper_failures = 0
            self._zookeeper_pulse = Pulse(pulse_file(self.settings.path, ZOOKEEPER))
        except EnvironmentFailed as problem:
            if not self._begun:
                raise
            self._zookeeper_failures += 1
            self._zookeeper_failure = str(problem)
            self._zookeeper_again_at = time.monotonic() + retry_pause_s(self._zookeeper_failures)
            log.warning("%s", self.setbacks[ZOOKEEPER].text)

    def _restart_when_due(self, child: Child) -> None:
        now_s = time.monotonic()
        if child.again_at is None:
            worked = self.came_up(child.name) and now_s - child.started_at > WORKED_S
            child.failures = 0 if not child.failed else 1 if worked else child.failures + 1
            child.again_at = now_s + retry_pause_s(child.failures)
            if child.failed:
                log.warning("%s", self.setbacks[child.name].text)
        if now_s < child.again_at:
            return
        try:
            self._restart(child)
        except EnvironmentFailed as problem:
            # No memory for another process, say: that may pass.
            child.not_started = str(problem)
            child.failures += 1
            child.again_at = time.monotonic() + retry_pause_s(child.failures)
            log.warning("%s", self.setbacks[child.name].text)

    def _restart(self, child: Child) -> None:
        since_s = time.monotonic() - child.started_at
        if since_s < RESPAWN_PAUSE_S:
            time.sleep(RESPAWN_PAUSE_S - since_s)
        incarnation = child.incarnation + 1
        log.info("starting %s again, incarnation %d", child.name, incarnation)
        self._start(child.name, child.command, incarnation, child.failures)

    def _start(self, name: str, command: list[str], incarnation: int = 1, failures: int = 0) -> None:
        child = started(self.settings, name, command, incarnation, failures)
        with self._lock:
            self._children[name] = child


def suited(settings: RunSettings, nodes: int) -> RunSettings:
    """The settings, with what depends on how many nodes share this machine."""
    cores = os.cpu_count() or 1
    crowd = settings.crowd
    if crowd is None:
        topology = Dataflow.of(load(settings.flow_path), settings).topology
        copies = len(topology.copies(settings.policy.replicas))
        # The replicas of one engine do not wait for each other's turns: each is fed at its own pace.
        crowd = copies / cores if copies > settings.policy.replicas else 0.0
    return replace(settings, crowd=crowd or 0.0, light_compiler=nodes > cores * NODES_PER_CORE_MAX)


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
