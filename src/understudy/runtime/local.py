"""A whole run on one machine: ZooKeeper, a gateway and some nodes as processes of their own, and their end.

Each process is started in a session of its own, so that Ctrl-C reaches only the one that started them,
which then ends them in good order. Each holds the reading end of a pipe from its parent and ends when that
closes, whatever happens to that. A gateway that dies is started again. A node that dies is started again as
a standby if `respawn` is on.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from understudy.engine.jvm import sweep
from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.flow.loading import load
from understudy.flow.policy import policy_named
from understudy.runtime.coordination.server import ZooKeeperServer
from understudy.runtime.partitioning import topology_of
from understudy.runtime.process import failure_file, finished_file, ready_file
from understudy.runtime.settings import RunSettings
from understudy.runtime.status import status_of

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 20.0
STATUS_TIMEOUT_S = 2.0
#: With more nodes than this for each core, Java's optimising compiler costs more than it brings.
NODES_PER_CORE_MAX = 2
#: A process is not started again sooner than this after its last start.
RESPAWN_PAUSE_S = 1.0
#: A node that was started again this often and fails to come up will not come up.
QUICK_FAILURES_MAX = 5


@dataclass
class Child:
    """One process of the run."""

    name: str
    command: list[str]
    process: subprocess.Popen[bytes]
    incarnation: int = 1
    started_at: float = field(default_factory=time.monotonic)

    @property
    def running(self) -> bool:
        return self.process.poll() is None


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
    ) -> None:
        self.settings = suited(settings, nodes + standby)
        self.node_names = [f"node-{number}" for number in range(1, nodes + standby + 1)]
        self._respawn = respawn
        self.zookeeper = zookeeper
        self._children: dict[str, Child] = {}
        self._lock = threading.Lock()
        self._ending = False
        self.failure: Exception | None = None

    @classmethod
    def on_own_zookeeper(
        cls, settings: RunSettings, *, nodes: int, standby: int = 0, respawn: bool = False
    ) -> LocalRun:
        """A run with a ZooKeeper of its own, in the run's folder. It is started here."""
        server = ZooKeeperServer(settings.path / "zookeeper")
        server.start()
        settings = replace(settings, zookeeper=server.address)
        return cls(settings, nodes=nodes, standby=standby, respawn=respawn, zookeeper=server)

    def start(self) -> None:
        if not self.settings.gateway_port:
            # Chosen once, so that a gateway that is started again is found where it was.
            self.settings = replace(self.settings, gateway_port=_free_port(self.settings.host))
        self.settings.save()
        self._start("gateway", ["gateway", self.settings.folder])
        for name in self.node_names:
            self._start(name, ["node", self.settings.folder, name])

    # --- looking -----------------------------------------------------------------------------------------

    @property
    def children(self) -> dict[str, Child]:
        with self._lock:
            return dict(self._children)

    def pid(self, name: str) -> int:
        return self._children[name].process.pid

    def status(self) -> dict[str, Any] | None:
        """The gateway's status, after `check`; None while it cannot be had. Takes 2 s at most."""
        self.check()
        try:
            return status_of(self.settings, STATUS_TIMEOUT_S)
        except EnvironmentFailed:
            return None

    def check(self) -> None:
        """Start again what died and should not have; raise what a process says is wrong."""
        if self._ending:
            return
        if self.zookeeper is not None and not self.zookeeper.running:
            log.warning("ZooKeeper died; starting it again")
            self.zookeeper.start()
        for child in self.children.values():
            if child.running or self.finished:
                continue
            if self._is_everybodys(child):
                self._raise_failure(child)
            if child.name == "gateway" or self._respawn:
                self._restart(child)

    @property
    def finished(self) -> bool:
        """Whether the gateway has ended because its work is done."""
        child = self._children.get("gateway")
        return child is not None and not child.running and finished_file(self.settings.path).exists()

    def _is_everybodys(self, child: Child) -> bool:
        """Whether a failure would hit every process alike, so that going on or starting again is no use.

        A flow that is wrong is wrong everywhere, and so is what keeps a gateway or a first start from coming
        up. A node that fails later, because its Java or its disk gave up, is only dead.
        """
        if child.process.returncode in (0, UserError.exit_code) or child.name == "gateway":
            return True
        came_up = ready_file(self.settings.path, child.name).exists()
        return not came_up and (child.incarnation == 1 or child.incarnation > QUICK_FAILURES_MAX)

    def _raise_failure(self, child: Child) -> None:
        file = failure_file(self.settings.path, child.name)
        if child.process.returncode is None or child.process.returncode <= 0 or not file.exists():
            return
        text = file.read_text().strip()
        kind = UserError if child.process.returncode == UserError.exit_code else EnvironmentFailed
        raise kind(f"{child.name} failed: {text}")

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

    def stop(self) -> None:
        """End everything: nodes and gateway in good order, then ZooKeeper. Nothing is left behind."""
        self._ending = True
        children = list(self.children.values())
        running = [child for child in children if child.running]
        families = [member for child in running for member in _family(child.process.pid)[1:]]
        for child in children:
            if child.running:
                signal_tree(child.process.pid, signal.SIGCONT)
                child.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for child in children:
            try:
                child.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("%s does not end; killing it", child.name)
                signal_tree(child.process.pid, signal.SIGKILL)
                child.process.wait()
        # A Java ends when it notices that its node is gone. One that is still starting takes a while to.
        _signal(families, signal.SIGKILL)
        if self.zookeeper is not None:
            self.zookeeper.stop()
        sweep()

    def __enter__(self) -> LocalRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _restart(self, child: Child) -> None:
        since_s = time.monotonic() - child.started_at
        if since_s < RESPAWN_PAUSE_S:
            time.sleep(RESPAWN_PAUSE_S - since_s)
        incarnation = child.incarnation + 1
        log.info("starting %s again, incarnation %d", child.name, incarnation)
        self._start(child.name, child.command, incarnation)

    def _start(self, name: str, command: list[str], incarnation: int = 1) -> None:
        # A fenced node starts over by itself and counts up; keep clear of those names.
        numbered = [] if name == "gateway" else ["--incarnation", str(1 + (incarnation - 1) * 1000)]
        out = self.settings.log_file(f"{name}.out")
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "understudy.runtime.main", *command, *numbered, "--with-parent"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        with self._lock:
            self._children[name] = Child(name, command, process, incarnation)


def suited(settings: RunSettings, nodes: int) -> RunSettings:
    """The settings, with what depends on how many nodes share this machine."""
    cores = os.cpu_count() or 1
    crowd = settings.crowd
    if crowd is None and policy_named(settings.policy).partitioned:
        topology = topology_of(load(settings.flow_path), settings.partition_count)
        copies = sum(policy_named(settings.policy).replicas * count for count in topology.counts.values())
        crowd = copies / cores
    return replace(settings, crowd=crowd or 0.0, light_compiler=nodes > cores * NODES_PER_CORE_MAX)


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def signal_tree(pid: int, number: signal.Signals) -> None:
    """Signal a process and all its descendants; the process first, so that it starts no more."""
    _signal(_family(pid), number)


def end_descendants() -> None:
    """Kill whatever this process has started, directly or not, and still runs."""
    left = _family(os.getpid())[1:]
    _signal(left, signal.SIGKILL)
    psutil.wait_procs(left, timeout=STOP_TIMEOUT_S)


def _family(pid: int) -> list[psutil.Process]:
    """A process and all its descendants; none if it is gone."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def memory_mb(pid: int) -> dict[str, float]:
    """Resident memory of a process and its descendants by kind: python, java."""
    total: dict[str, float] = {}
    for member in _family(pid):
        with suppress(psutil.NoSuchProcess):
            kind = "java" if "java" in member.name() else "python"
            total[kind] = total.get(kind, 0.0) + member.memory_info().rss / 2**20
    return total


def new_run_folder(base: Path, flow_name: str) -> Path:
    """A folder for a new run that does not exist yet."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for attempt in range(100):
        folder = base / (f"{flow_name}-{stamp}" + (f"-{attempt}" if attempt else ""))
        if not folder.exists():
            return folder
    raise EnvironmentFailed(f"There is no free name for a run's folder in {base}.")
