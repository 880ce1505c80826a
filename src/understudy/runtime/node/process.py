"""The node process: a Spark application of its own, a seat when the view gives it one, and its state mover's
port.

A node first starts its JVM and its queries, then joins. So whoever is a member is ready, and a standby
costs no start-up when it is needed. A node without a seat is a standby.

A node that is **fenced** (the view says that its seat is no longer its own) starts over as a new process
image, under the next incarnation of its name: the surest way to come back with nothing.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from understudy.core.errors import Fenced, PeerError
from understudy.core.messages import Installed
from understudy.core.view import Slot, Status, View
from understudy.engine.jvm import sweep_own
from understudy.engine.segment import Segment
from understudy.engine.session import session, stop_session
from understudy.engine.storing import open_snapshot
from understudy.flow.loading import load
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.leader import Leadership
from understudy.runtime.gateway.process import FACT, slots_of
from understudy.runtime.node.mover import PURPOSE, StateFetch
from understudy.runtime.node.seat import SeatTaken
from understudy.runtime.node.warming import warm_up
from understudy.runtime.process import Ending, ready_file
from understudy.runtime.recording import Recorder
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Accepted, Endpoint, NotYet, Refused

log = logging.getLogger(__name__)

FETCH_RETRY_S = 0.2


class Node:
    """Everything in a node process, wired together."""

    def __init__(self, settings: RunSettings, name: str, incarnation: int, ending: Ending) -> None:
        self._settings = settings
        self._base_name = name
        self._incarnation = incarnation
        self.name = f"{name}.{incarnation}"
        self._ending = ending
        self.fenced: str | None = None
        self._seat: SeatTaken | None = None
        self._lock = threading.Lock()
        self._gateway: str | None = None
        self._fetch: StateFetch | None = None
        self._folder = settings.path / "state" / self.name
        self._ready = ready_file(settings.path, name)
        self._ready.unlink(missing_ok=True)
        for former in (settings.path / "state").glob(f"{name}.*"):
            # Of earlier incarnations, which are dead.
            shutil.rmtree(former, ignore_errors=True)
        self._flow = load(settings.flow_path)
        self._recorder = Recorder(settings, self._flow.name, self.name)
        self._endpoint = Endpoint(settings.host, beat_s=settings.beat_s, silence_s=settings.silence_s)
        self._endpoint.handle(PURPOSE, self._admit_fetch)
        self._endpoint.ready()
        session(
            master=settings.master,
            heap_mb=settings.heap_mb,
            stderr=settings.log_file(f"{name}.jvm"),
        )
        warm_s = warm_up(self._flow, self._folder / "warm")
        self._segment = Segment(self._flow, self._folder / "engine")
        self._segment.start()
        log.info("the engine is ready; warming up took %.1f s", warm_s)
        self._coordination = Coordination(settings.zookeeper, settings.run)

    def run(self) -> None:
        """Be a member until the end."""
        leadership = Leadership(
            self._coordination, self.name, slots_of(self._settings.policy), seat_kind="node", priority=1
        ).start()
        facts = {"flight": self._endpoint.address, "pid": os.getpid(), "node": self._base_name}
        membership = self._coordination.join("node", self.name, facts)
        self._ready.parent.mkdir(exist_ok=True)
        self._ready.touch()
        self._coordination.watch_view(self._on_view)
        threading.Thread(target=self._follow_gateway, name="gateway address", daemon=True).start()
        self._recorder.begun()
        try:
            self._ending.wait()
        finally:
            with self._lock:
                seat = self._seat
            if seat is not None:
                seat.end()
            if self.fenced is None and self._ending.failure is None:
                self._recorder.ended()
            if self.fenced is None and self._ending.failure is None:
                membership.leave()
            leadership.stop()
            self._coordination.close()
            self._endpoint.end()
            if self.fenced is None:
                self._segment.close()
                stop_session()
                shutil.rmtree(self._folder, ignore_errors=True)

    def start_over(self) -> None:
        """Replace this process by its next incarnation. Children end when their pipes close."""
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

    # --- views and seats ---------------------------------------------------------------------------------

    def _on_view(self, view: View) -> None:
        with self._lock:
            seat = self._seat
            if seat is None:
                slot = view.slot_of(self.name)
                if slot is None:
                    if view.declared_dead(self.name):
                        self._fence("the view calls it dead")
                    return
                self._take_seat(slot, view)
                return
        seat.on_view(view)

    def _take_seat(self, slot: Slot, view: View) -> None:
        log.info("takes the seat %s, epoch %d", slot.value, view.seats[slot].epoch)
        seat = SeatTaken(
            self._settings,
            self.name,
            slot,
            view,
            segment=self._segment,
            recorder=self._recorder,
            address=lambda: self._gateway,
            on_fenced=self._fence,
            on_failure=self._fail,
        )
        self._seat = seat
        if view.seats[slot].status is Status.STDBY:
            threading.Thread(target=self._catch_up, args=(seat,), name="catch-up", daemon=True).start()
        else:
            seat.begin()

    def _fence(self, why: str) -> None:
        # A node that is leaving anyway has nothing to start over for.
        if self.fenced is None and not self._ending.asked:
            self.fenced = why
            log.warning("fenced: %s", why)
            self._recorder.fenced()
            self._ending.ask()

    def _fail(self, error: BaseException) -> None:
        self._ending.fail(error)

    def _follow_gateway(self) -> None:
        """Keep the gateway's address at hand; the last one is good enough while ZooKeeper is away."""
        while not self._ending.asked:
            facts = self._coordination.get_fact(FACT)
            if facts:
                self._gateway = facts["flight"]
            self._ending.wait(0.3 if facts is None else 1.0)

    # --- catch-up: receiving -----------------------------------------------------------------------------

    def _catch_up(self, seat: SeatTaken) -> None:
        into = self._folder / "incoming"
        try:
            state = self._fetched(seat, into)
            if state is None:
                return
            self._segment.restore(open_snapshot(into))
            seat.install(state)
            shutil.rmtree(into, ignore_errors=True)
            seat.begin()
        except BaseException as error:
            log.exception("catch-up failed")
            self._coordination.report("move_failed", {"slot": seat.slot.value, "epoch": seat.epoch})
            self._fail(error)

    def _fetched(self, seat: SeatTaken, into: Path) -> Installed | None:
        """The state of the active replica, after as many attempts as that takes; None if it is gone."""
        hello = {"slot": seat.slot.value, "node": self.name, "epoch": seat.epoch}
        while not self._ending.asked:
            view = self._coordination.latest_view
            other = None if view is None else view.seats.get(seat.slot.other)
            if view is not None and other is not None and not other.alive and view.epoch >= seat.epoch:
                log.error("the active replica died before its state was here")
                self._coordination.report("move_failed", {"slot": seat.slot.value, "epoch": seat.epoch})
                return None
            address = self._address_of(other.node) if other is not None else None
            if address is not None:
                self._fetch = StateFetch(
                    address,
                    hello,
                    into,
                    beat_s=self._settings.beat_s,
                    silence_s=self._settings.silence_s,
                )
                try:
                    state = self._fetch.run()
                except (ConnectionError, Refused, PeerError) as problem:
                    log.warning("the state did not arrive: %s", problem)
                else:
                    log.info("checkpoint %d arrived, %d bytes", state.version, self._fetch.received_bytes)
                    return state
            self._ending.wait(FETCH_RETRY_S)
        return None

    def _address_of(self, node: str) -> str | None:
        for member in self._coordination.members():
            if member.name == node:
                return str(member.facts["flight"])
        return None

    # --- catch-up: sending -------------------------------------------------------------------------------

    def _admit_fetch(self, hello: Mapping[str, Any]) -> Accepted:
        seat = self._seat
        try:
            slot, node, epoch = Slot(hello["slot"]), str(hello["node"]), int(hello["epoch"])
        except (KeyError, ValueError, TypeError) as problem:
            raise PeerError(f"a standby must name slot, node and epoch: {problem}") from problem
        if seat is None or seat.view_epoch < epoch:
            raise NotYet("the view that seats this standby has not arrived here")
        if not seat.may_fetch(slot, node, epoch):
            raise Fenced(f"{node} does not hold {slot.value} as a standby since epoch {epoch}")
        box: list[Channel] = []

        def opened(channel: Channel) -> None:
            box.append(channel)
            seat.mover_met(channel)

        return Accepted(
            on_open=opened,
            on_frame=lambda _frame: None,
            on_closed=lambda _why: seat.mover_gone(box[0]) if box else None,
            name=f"state for {node}",
        )
