"""A node of a partitioned flow: any number of copies of partitions, as the view seats them.

A node that loses a seat drops that copy and goes on with the others. Nothing of a lost copy is left, and what
still comes of it is void, so the process does not have to start over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from understudy.core.errors import Fenced, PeerError
from understudy.core.flux_controller import FluxController
from understudy.core.flux_view import FluxView
from understudy.core.host import GATEWAY, Host
from understudy.core.instructions import Instruction
from understudy.core.parcels import Parcel
from understudy.core.partition import Copy
from understudy.core.partition_replica import PartitionReplica
from understudy.core.view import Status
from understudy.engine.partitions import PartitionedFlow
from understudy.runtime.actor import Actor
from understudy.runtime.coordination.controllers import flux_controller
from understudy.runtime.coordination.reports import FluxReported, written
from understudy.runtime.hosting import Hosting
from understudy.runtime.node.hosted_copy import HostedCopy
from understudy.runtime.node.mover import PURPOSE, ActiveGone
from understudy.runtime.node.pace import Pace
from understudy.runtime.node.process import Node
from understudy.runtime.partitioning import host_for
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Accepted, NotYet
from understudy.runtime.transport.wire import Frame

log = logging.getLogger(__name__)

STATS_S = 0.5
TICK_S = 1.0
LEAVE_TIMEOUT_S = 10.0


class FluxNode(Node):
    """A node with the copies that the view gives it."""

    def _prepare(self) -> None:
        self._host: Host = host_for(self.name, self._flow, self._settings)
        self._partitioned = PartitionedFlow(self._flow, self._host.topology)
        self._time_of = {name: stream.time for name, stream in self._partitioned.streams.items()}
        self._copies: dict[Copy, HostedCopy] = {}
        self._actor = Actor("host", self._fail)
        self._hosting = Hosting(self._host, self._settings, self._actor, self, self._address_of)
        self._hosting.mesh.listen_on(self._endpoint)
        self._endpoint.handle(PURPOSE, self._admit_fetch)
        # Two queries that start at once take longer than one after the other.
        self._starting = threading.Lock()
        threading.Thread(target=self._tick, name="tick", daemon=True).start()

    def _controller(self) -> Callable[[FluxView | None], FluxController]:
        return flux_controller(self._settings, self._flow)

    def _on_view(self, view: FluxView) -> None:
        self._hosting.on_view(view)

    def _leave(self) -> None:
        self._actor.end()
        self._hosting.mesh.end()

    def _close_engines(self) -> None:
        leaving = [copy.end() for copy in self._copies.values()]
        for thread in leaving:
            thread.join(LEAVE_TIMEOUT_S)

    # --- what the host asks for --------------------------------------------------------------------------

    def take_seat(self, copy: Copy, epoch: int, status: Status) -> None:
        log.info("takes the seat %s, epoch %d, %s", copy, epoch, status.name)
        folder = self._folder / f"{copy.partition.fragment}-{copy.partition.index}-{copy.slot.value}-{epoch}"
        hosted = HostedCopy(
            copy,
            epoch,
            self._hosting,
            settings=self._settings,
            recorder=self._recorder,
            folder=folder,
            make_engine=lambda: self._partitioned.engine(copy.partition, folder / "engine"),
            starting=self._starting,
            time_of=self._time_of,
            pace=Pace(self._settings.crowd or 0.0, self._flow.bucket_us / 1e6),
            on_failure=self._fail,
            report=self.report,
        )
        self._copies[copy] = hosted
        if status is Status.STDBY:
            hosted.catch_up(lambda: self._active_address(copy, epoch), self.name)
        else:
            hosted.begin()

    def leave_seat(self, copy: Copy, epoch: int) -> None:
        log.info("leaves the seat %s, epoch %d", copy, epoch)
        hosted = self._copies.pop(copy, None)
        if hosted is not None:
            hosted.end()

    def carry(self, copy: Copy, epoch: int, instruction: Instruction) -> None:
        hosted = self._copies.get(copy)
        if hosted is not None and hosted.epoch == epoch:
            hosted.carry(instruction)

    def noticed(self, node: str, parcel: Parcel) -> None:
        pass

    def handled(self) -> None:
        pass

    def stats(self, node: str, frame: Frame) -> None:
        pass

    def peer_lost(self, node: str) -> None:
        for hosted in self._copies.values():
            hosted.hurry()

    def report(self, event: FluxReported) -> None:
        self._coordination.report(*written(event))

    # --- moving state ------------------------------------------------------------------------------------

    def _active_address(self, copy: Copy, epoch: int) -> str | None:
        view = self._host.view
        if view is None:
            return None
        active = view.seat(copy.other)
        if not active.alive and view.epoch >= epoch:
            raise ActiveGone
        return self._address_of(active.node)

    def _admit_fetch(self, hello: Mapping[str, Any]) -> Accepted:
        try:
            copy, node, epoch = Copy.of(hello["copy"]), str(hello["node"]), int(hello["epoch"])
        except (KeyError, ValueError, TypeError, AttributeError) as problem:
            raise PeerError(f"a standby must name copy, node and epoch: {problem}") from problem
        answer = self._actor.ask(lambda: self._asked_by(copy, node, epoch))
        if isinstance(answer, Exception):
            raise answer
        hosted: HostedCopy = answer
        box: list[Channel] = []

        def opened(channel: Channel) -> None:
            box.append(channel)
            self._actor.post(hosted.mover_met, channel)

        return Accepted(
            on_open=opened,
            on_frame=lambda _frame: None,
            on_closed=lambda _why: self._actor.post(hosted.mover_gone, box[0]) if box else None,
            name=f"state of {copy.partition} for {node}",
        )

    def _asked_by(self, copy: Copy, node: str, epoch: int) -> HostedCopy | NotYet | Fenced:
        """The copy here whose state a standby may have, or why it may not."""
        view = self._host.view
        if view is None or view.epoch < epoch:
            return NotYet("the view that seats this standby has not arrived here")
        if not view.holds(copy, node, epoch) or view.seat(copy).status is not Status.STDBY:
            return Fenced(f"{node} does not hold {copy} as a standby since epoch {epoch}")
        resident = self._host.residents.get(copy.other)
        hosted = self._copies.get(copy.other)
        if resident is None or hosted is None or not resident.begun:
            return NotYet(f"{copy.other} is not ready here")
        return hosted

    # --- how it is doing ---------------------------------------------------------------------------------

    def _tick(self) -> None:
        ticks = 0
        while not self._ending.wait(STATS_S):
            ticks += 1
            self._actor.post(self._tell_stats)
            if ticks % round(TICK_S / STATS_S) == 0:
                self._hosting.on_tick()

    def _tell_stats(self) -> None:
        copies = {str(copy): self._copy_stats(hosted) for copy, hosted in self._copies.items()}
        each = list(copies.values())
        whole = {
            "rows_in": sum(c["rows_in"] for c in each),
            "rows_out": sum(c["rows_out"] for c in each),
            "groups": min((c["groups"] for c in each), default=0),
            "last_group_ms": max((c["last_group_ms"] for c in each), default=0.0),
            "last_group_buckets": max((c["last_group_buckets"] for c in each), default=0),
            "queued_buckets": max((c["queued_buckets"] for c in each), default=0),
            "unacked_buckets": max((c["unacked_buckets"] for c in each), default=0),
            "version": max((c["version"] for c in each), default=0),
        }
        self._hosting.mesh.tell(GATEWAY, Frame({"kind": "stats", **whole, "copies": copies}))

    def _copy_stats(self, hosted: HostedCopy) -> dict[str, Any]:
        stats, fetch = hosted.stats, hosted.fetch
        resident = self._host.residents.get(hosted.copy)
        machine = resident.machine if resident is not None else None
        facts = {
            "rows_in": stats.rows_in,
            "rows_out": stats.rows_out,
            "groups": stats.groups,
            "last_group_ms": round(stats.last_group_ms, 1),
            "last_group_buckets": stats.last_group_buckets,
            "queued_buckets": 0,
            "unacked_buckets": 0,
            "version": 0,
        }
        if isinstance(machine, PartitionReplica):
            facts["queued_buckets"] = machine.below.merge.waiting
            facts["unacked_buckets"] = max((len(o.buffer) for o in machine.above.outlets.values()), default=0)
            facts["version"] = machine.below.version
            if fetch is not None and machine.status is Status.STDBY:
                facts["moved_bytes"], facts["moving_bytes"] = fetch.received_bytes, fetch.total_bytes
        return facts
