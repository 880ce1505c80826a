"""The node process: a Spark application of its own, and the copies that the view seats there.

A node first starts its JVM and its queries, then joins. So a member is ready, and a standby costs no start-up
when it is needed. A node without a seat is a standby. One that rows wait for joins as soon as it can.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading

from understudy.core.view.events import Report
from understudy.engine.flow_engines import FlowEngines
from understudy.engine.session import ask_java, session, stop_session
from understudy.runtime.actor import Actor
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.leader import Leadership
from understudy.runtime.coordination.members import Member
from understudy.runtime.coordination.reports import written
from understudy.runtime.coordination.server import READY_TIMEOUT_S
from understudy.runtime.coordination.session import CONNECT_TIMEOUT_S
from understudy.runtime.gateway.leading import FACT
from understudy.runtime.node.copies import Copies
from understudy.runtime.node.java_watch import JavaWatch
from understudy.runtime.node.saving import saving_for
from understudy.runtime.node.warming import is_awaited, warm_up
from understudy.runtime.partitioning import Dataflow, controller_for, host_for
from understudy.runtime.pauses import CarefulReports
from understudy.runtime.pinning import load_pinned, pin_shape
from understudy.runtime.process import Ending, ready_file
from understudy.runtime.recording import RunRecorder
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.endpoint import Endpoint

log = logging.getLogger(__name__)

LIGHT_COMPILER = ("-XX:TieredStopAtLevel=1",)
STATS_S = 0.5
#: How many times as long as a connection Java may be silent: it pauses to collect garbage.
JAVA_SILENCES = 5


class Node:
    """Everything in a node process, wired together."""

    def __init__(self, settings: RunSettings, name: str, incarnation: int, ending: Ending) -> None:
        self._settings = settings
        self._base_name = name
        self.name = f"{name}.{incarnation}"
        self._ending = ending
        self._gateway: str | None = None
        self._members: dict[str, str] = {}
        self._folder = settings.path / "state" / self.name
        self._ready = ready_file(settings.path, name)
        for former in (settings.path / "state").glob(f"{name}.*"):
            # Of earlier incarnations, which are dead.
            shutil.rmtree(former, ignore_errors=True)
        self._flow = load_pinned(settings)
        dataflow = Dataflow.of(self._flow, settings)
        self._topology = dataflow.topology
        self._recorder = RunRecorder(
            settings, self._flow.name, self.name, version=settings.version, ends=dataflow.ends
        )
        self._endpoint = Endpoint(settings.host, beat_s=settings.beat_s, silence_s=settings.silence_s)
        session(
            master=settings.master,
            heap_mb=settings.heap_mb,
            stderr=settings.log_file(f"{name}.jvm"),
            jvm_options=LIGHT_COMPILER if settings.light_compiler else (),
        )
        # A ZooKeeper of the run's own is started beside its nodes, and may take as long as it may take.
        patience_s = READY_TIMEOUT_S if settings.own_zookeeper else CONNECT_TIMEOUT_S
        self._coordination = Coordination(
            settings.zookeeper, settings.coordinates, connect_timeout_s=patience_s
        )
        #: Another version of the flow runs meanwhile.
        self._beside = RunSettings.load(settings.folder).version != settings.version
        warm_s = warm_up(
            self._flow,
            self._folder / "warm",
            lambda: is_awaited(name, settings, self._coordination.latest_view, beside=self._beside),
        )
        self._actor = Actor("host", ending.fail)
        engines = FlowEngines(self._flow, settings.policy.unit, settings.partition_count)
        pin_shape(settings, engines.shape)
        self._copies = Copies(
            host_for(self.name, self._topology, settings),
            settings,
            self._actor,
            flow=self._flow,
            engines=engines,
            folder=self._folder,
            recorder=self._recorder,
            saving=saving_for(settings),
            address_of=self._address_of,
            tell=self._report,
            on_failure=ending.fail,
        )
        self._copies.prepare()
        self._copies.listen_on(self._endpoint)
        self._endpoint.ready()
        log.info("the engine is ready; warming up took %.1f s", warm_s)
        self._reports = CarefulReports(self._coordination.report, settings.silence_s)

    def run(self) -> None:
        """Be a member until the end."""
        controller = controller_for(self._topology, self._settings)
        leadership = Leadership(self._coordination, self.name, controller, seat_kind="node", priority=1)
        if not self._beside:
            leadership.start()
        facts = {"flight": self._endpoint.address, "pid": os.getpid(), "node": self._base_name}
        membership = self._coordination.join("node", self.name, facts)
        self._ready.parent.mkdir(exist_ok=True)
        self._ready.touch()
        self._coordination.watch_members(self._on_members)
        self._coordination.watch_view(self._copies.on_view)
        threading.Thread(
            target=self._follow_gateway, args=(leadership,), name="gateway address", daemon=True
        ).start()
        self._recorder.begun()
        java = JavaWatch(JAVA_SILENCES * self._settings.silence_s, STATS_S).start(ask_java)
        try:
            while not self._ending.wait(STATS_S):
                self._reports.tick()
                self._copies.tell_stats()
                hangs = java.tick()
                if hangs is not None:
                    self._ending.fail(hangs)
        finally:
            java.end()
            self._actor.end()
            self._copies.end()
            if self._ending.failure is None:
                self._recorder.ended()
                membership.leave()
            self._recorder.close()
            leadership.stop()
            self._coordination.close()
            self._endpoint.end()
            self._copies.close_engines()
            stop_session()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _report(self, report: Report) -> None:
        self._reports.send(*written(report))

    def _on_members(self, members: list[Member]) -> None:
        self._members = {member.name: str(member.facts["flight"]) for member in members}

    def _address_of(self, name: str) -> str | None:
        """Where a process can be reached, as last heard; None if that is not known. Never waits."""
        return self._gateway if name == FACT else self._members.get(name)

    def _follow_gateway(self, leadership: Leadership) -> None:
        """Keep the gateway's address at hand; the last one is good enough while ZooKeeper is away.

        A version that begins beside another has its first states once the gateway is there. No node may seat
        copies before that, which would begin with nothing.
        """
        stands = not self._beside
        while not self._ending.asked:
            facts = self._coordination.get_fact(FACT)
            if facts:
                self._gateway = facts["flight"]
                if not stands:
                    leadership.start()
                    stands = True
            self._ending.wait(0.3 if facts is None else 1.0)
