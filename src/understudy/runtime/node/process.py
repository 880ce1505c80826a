"""The node process: a Spark application of its own, and what it hosts when the view gives it a place.

A node first starts its JVM and its queries, then joins. So whoever is a member is ready, and a standby
costs no start-up when it is needed. A node without a place is a standby. What a place is, and what becomes
of a node that loses one, depends on the policy: see `pair_node` and `flux_node`.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from understudy.engine.jvm import sweep_own
from understudy.engine.session import session, stop_session
from understudy.flow.loading import load
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.controllers import view_type_of
from understudy.runtime.coordination.leader import Leadership
from understudy.runtime.coordination.members import Member
from understudy.runtime.gateway.process import FACT
from understudy.runtime.node.warming import warm_up
from understudy.runtime.process import Ending, ready_file
from understudy.runtime.recording import Recorder
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.endpoint import Endpoint

log = logging.getLogger(__name__)

LIGHT_COMPILER = ("-XX:TieredStopAtLevel=1",)


class Node(ABC):
    """Everything in a node process that does not depend on the policy. Subclasses fill in the rest."""

    def __init__(self, settings: RunSettings, name: str, incarnation: int, ending: Ending) -> None:
        self._settings = settings
        self._base_name = name
        self._incarnation = incarnation
        self.name = f"{name}.{incarnation}"
        self._ending = ending
        #: Why this process as a whole is void and must be replaced by its next incarnation, if it is.
        self.fenced: str | None = None
        self._gateway: str | None = None
        self._members: dict[str, str] = {}
        self._folder = settings.path / "state" / self.name
        self._ready = ready_file(settings.path, name)
        self._ready.unlink(missing_ok=True)
        for former in (settings.path / "state").glob(f"{name}.*"):
            # Of earlier incarnations, which are dead.
            shutil.rmtree(former, ignore_errors=True)
        self._flow = load(settings.flow_path)
        self._recorder = Recorder(settings, self._flow.name, self.name)
        self._endpoint = Endpoint(settings.host, beat_s=settings.beat_s, silence_s=settings.silence_s)
        session(
            master=settings.master,
            heap_mb=settings.heap_mb,
            stderr=settings.log_file(f"{name}.jvm"),
            jvm_options=LIGHT_COMPILER if settings.light_compiler else (),
        )
        warm_s = warm_up(self._flow, self._folder / "warm")
        self._prepare()
        self._endpoint.ready()
        log.info("the engine is ready; warming up took %.1f s", warm_s)
        self._coordination = Coordination(
            settings.zookeeper, settings.run, view_type=view_type_of(settings.policy)
        )

    # --- what depends on the policy ----------------------------------------------------------------------

    @abstractmethod
    def _prepare(self) -> None:
        """Make ready what takes time, and register who answers calls. Before this node is a member."""

    @abstractmethod
    def _controller(self) -> Callable[[Any], Any]:
        """From the stored view to the machine that a leader drives."""

    @abstractmethod
    def _on_view(self, view: Any) -> None:
        """A new view. Runs on the coordination's thread."""

    @abstractmethod
    def _leave(self) -> None:
        """Leave every place."""

    @abstractmethod
    def _close_engines(self) -> None:
        """End the queries. Not called when the process is about to be replaced."""

    # --- the life of the process -------------------------------------------------------------------------

    def run(self) -> None:
        """Be a member until the end."""
        leadership = Leadership(
            self._coordination, self.name, self._controller(), seat_kind="node", priority=1
        ).start()
        facts = {"flight": self._endpoint.address, "pid": os.getpid(), "node": self._base_name}
        membership = self._coordination.join("node", self.name, facts)
        self._ready.parent.mkdir(exist_ok=True)
        self._ready.touch()
        self._coordination.watch_members(self._on_members)
        self._coordination.watch_view(self._on_view)
        threading.Thread(target=self._follow_gateway, name="gateway address", daemon=True).start()
        self._recorder.begun()
        try:
            self._ending.wait()
        finally:
            self._leave()
            if self.fenced is None and self._ending.failure is None:
                self._recorder.ended()
                membership.leave()
            leadership.stop()
            self._coordination.close()
            self._endpoint.end()
            if self.fenced is None:
                self._close_engines()
                stop_session()
                shutil.rmtree(self._folder, ignore_errors=True)

    def start_over(self) -> None:
        """Replace this process, which was fenced, by its next incarnation. Children end with their pipes."""
        log.warning("starting over as incarnation %d", self._incarnation + 1)
        logging.shutdown()
        command = [
            sys.executable,
            "-m",
            "understudy.runtime.main",
            "node",
            self._settings.folder,
            self._base_name,
        ]
        command += ["--incarnation", str(self._incarnation + 1)]
        if "--with-parent" in sys.argv:
            command.append("--with-parent")
        sweep_own()
        os.execv(sys.executable, command)

    def _fail(self, error: BaseException) -> None:
        self._ending.fail(error)

    def _on_members(self, members: list[Member]) -> None:
        self._members = {member.name: str(member.facts["flight"]) for member in members}

    def _address_of(self, name: str) -> str | None:
        """Where a process is to be reached, as last heard; None if it is not there. Never waits."""
        return self._gateway if name == FACT else self._members.get(name)

    def _follow_gateway(self) -> None:
        """Keep the gateway's address at hand; the last one is good enough while ZooKeeper is away."""
        while not self._ending.asked:
            facts = self._coordination.get_fact(FACT)
            if facts:
                self._gateway = facts["flight"]
            self._ending.wait(0.3 if facts is None else 1.0)
