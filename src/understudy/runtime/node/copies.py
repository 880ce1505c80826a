"""The copies of a node, as the view seats them: the ports of its host.

A node that loses a seat drops that copy and goes on with the others. It keeps nothing of the copy, and
ignores late results of its engine, so the process does not have to start over: it is a standby for that seat,
like any other node.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from understudy.core.bucket import Bucket, BucketId
from understudy.core.errors import Fenced
from understudy.core.host.host import Host
from understudy.core.host.parcels import FetchState, Inside, Parcel, Request
from understudy.core.host.places import GATEWAY
from understudy.core.replica.events import CopyState, FetchFailed, SaveDue
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.events import Report
from understudy.engine.flow_engines import FlowEngines
from understudy.engine.interface import CopyEngine
from understudy.engine.segments import SINK_PREFIX
from understudy.flow.flow import Flow
from understudy.runtime.actor import Actor
from understudy.runtime.hosting import Hosting
from understudy.runtime.mesh import SAVE, STATS
from understudy.runtime.node.copy import CopyParts, HostedCopy
from understudy.runtime.node.mover import PURPOSE, StateFetch, has_of, request_of, send_state
from understudy.runtime.node.pace import Pace
from understudy.runtime.node.saving import Saving
from understudy.runtime.node.shipped import Lent
from understudy.runtime.recording import RunRecorder
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Accepted, Endpoint, NotYet
from understudy.runtime.transport.wire import Frame

log = logging.getLogger(__name__)

LEAVE_TIMEOUT_S = 10.0


class Copies(Hosting):
    """What a node hosts."""

    def __init__(
        self,
        host: Host,
        settings: RunSettings,
        actor: Actor,
        *,
        flow: Flow,
        engines: FlowEngines,
        folder: Path,
        recorder: RunRecorder,
        saving: Saving | None,
        address_of: Callable[[str], str | None],
        tell: Callable[[Report], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        super().__init__(host, settings, actor, address_of, tell)
        self._settings = settings
        self._flow = flow
        self._engines = engines
        self._folder = folder
        self._recorder = recorder
        self._saving = saving
        self._address_of = address_of
        self._on_failure = on_failure
        self._copies: dict[Copy, HostedCopy] = {}
        self._spares: dict[Partition, CopyEngine] = {}
        self._spares_built = 0
        self._starting = threading.Lock()
        self._time_of = {name: stream.time for name, stream in engines.streams.items()}

    def listen_on(self, endpoint: Endpoint) -> None:
        self.mesh.listen_on(endpoint)
        endpoint.handle(PURPOSE, self._admit_fetch)

    def prepare(self) -> None:
        """Build the queries that a seat may need before this node is a member, where there are few of them.

        A node of a partitioned flow could be given any partition of any fragment: there is no telling.
        """
        if not self._settings.policy.partitioned:
            for partition in self._engines.topology.partitions:
                self._spares[partition] = self._built(partition)

    def _built(self, partition: Partition) -> CopyEngine:
        self._spares_built += 1
        return self._engines.engine(partition, self._folder / f"engine-{self._spares_built}")

    def _engine_for(self, partition: Partition) -> CopyEngine:
        """The engine that was built for this partition, or a new one. Called under the starting lock."""
        return self._spares.pop(partition, None) or self._built(partition)

    def close_engines(self) -> None:
        """End the queries. Called when the actor has ended."""
        for spare in self._spares.values():
            spare.close()
        for thread in [copy.end() for copy in self._copies.values()]:
            thread.join(LEAVE_TIMEOUT_S)

    def peer_down(self, node: str, serial: int) -> None:
        super().peer_down(node, serial)
        for hosted in self._copies.values():
            hosted.hurry()

    def parcel_arrived(self, node: str, serial: int, parcel: Parcel, cause: int) -> None:
        super().parcel_arrived(node, serial, parcel, cause)
        if isinstance(parcel, Request) and parcel.to in self._copies:
            # The snapshot waits until the engine stands still, and it may only be resting.
            self._copies[parcel.to].wake()

    def frame_arrived(self, node: str, frame: Frame) -> None:
        if node == GATEWAY and frame.kind == SAVE:
            self._save_now()

    # --- ports -------------------------------------------------------------------------------------------

    def start(self, copy: Copy, epoch: int) -> None:
        log.info("takes the seat %s, epoch %d, empty", copy, epoch)
        self._made(copy, epoch).begin()

    def wait(self, copy: Copy, epoch: int) -> None:
        log.info("takes the seat %s, epoch %d, as a standby", copy, epoch)
        self._made(copy, epoch)

    def _made(self, copy: Copy, epoch: int) -> HostedCopy:
        name = copy.partition.name

        def stream_for(consumer: Partition) -> str:
            sink = consumer.name.removeprefix(SINK_PREFIX)
            return self._flow.sinks[sink].input if consumer.name != sink else name

        parts = CopyParts(
            folder=self._folder / f"{name}-{copy.partition.index}-{copy.replica}-{epoch}",
            make_engine=lambda: self._engine_for(copy.partition),
            starting=self._starting,
            consumers=self.host.topology.consumers(copy.partition),
            stream_for=stream_for,
            time_of=self._time_of,
            pace=Pace(self._settings.crowd or 0.0, self._flow.bucket_us / 1e6),
            on_failure=self._on_failure,
            saving=self._saving,
        )
        hosted = self._copies[copy] = HostedCopy(copy, epoch, self, self._recorder, parts)
        return hosted

    def fetch(self, wanted: FetchState) -> None:
        hosted = self._copies[wanted.copy]
        address = self._address_of(wanted.node)
        if address is None:
            failed = FetchFailed(wanted.attempt, f"the address of {wanted.node} is not known")
            self.post(Inside(wanted.copy, wanted.epoch, failed))
            return
        held = hosted.shipped.to_build_on
        hosted.fetch(wanted, StateFetch(address, wanted, self.host.name, self._settings, held))

    def hold(self, copy: Copy, epoch: int, attempt: int) -> None:
        self._copies[copy].hold(attempt)

    def start_held(self, copy: Copy, epoch: int) -> None:
        log.info("takes over as %s, epoch %d", copy, epoch)
        self._copies[copy].start_held()

    def leave(self, copy: Copy, epoch: int) -> None:
        log.info("leaves the seat %s, epoch %d", copy, epoch)
        hosted = self._copies.pop(copy, None)
        if hosted is not None:
            hosted.end()

    def process(self, copy: Copy, epoch: int, buckets: tuple[Bucket, ...]) -> None:
        self._copies[copy].process(buckets)

    def snapshot(self, copy: Copy, epoch: int, version: int) -> None:
        self._copies[copy].snapshot(version)

    def lend(self, copy: Copy, epoch: int, state: CopyState) -> None:
        self._copies[copy].lend(state)

    def unlend(self, copy: Copy, epoch: int, version: int) -> None:
        self._copies[copy].unlend(version)

    def save(self, copy: Copy, epoch: int, version: int) -> None:
        self._copies[copy].save(version)

    def read_again(self, source: Copy, consumer: Copy, after: BucketId, bytes_max: int) -> None:
        raise AssertionError(f"a node was to read the log of {source}")

    def _save_now(self) -> None:
        """Save what there is, without waiting for the time."""
        for copy, hosted in self._copies.items():
            hosted.wake()
            self.handle(Inside(copy, hosted.epoch, SaveDue()))

    # --- a standby fetches its snapshot ------------------------------------------------------------------

    def _admit_fetch(self, hello: Mapping[str, Any]) -> Accepted:
        node, standby, epoch, lender, version = request_of(hello)
        has = has_of(hello)
        view = self.host.view
        if view is None or view.epoch < epoch:
            raise NotYet("the view that seats this standby has not arrived here")
        if not view.holds(standby, node, epoch):
            raise Fenced(f"{node} does not hold {standby} since epoch {epoch}")
        hosted = self._copies.get(lender)
        lent: Lent | None = None if hosted is None else hosted.lent.get(version)
        if lent is None:
            raise NotYet(f"snapshot {version} of {lender} is not kept here")

        def opened(channel: Channel) -> None:
            threading.Thread(
                target=send_state,
                args=(channel, lent.snapshot.directory, lent.state, has),
                name=f"state of {lender} for {node}",
                daemon=True,
            ).start()

        return Accepted(
            on_open=opened,
            on_frame=lambda _frame: None,
            on_closed=lambda _why: None,
            name=f"state of {lender} for {node}",
        )

    # --- how it is doing ---------------------------------------------------------------------------------

    def tell_stats(self) -> None:
        """Tell the gateway how the copies are doing. May be called from any thread."""
        self._actor.post(self._tell_stats)

    def _tell_stats(self) -> None:
        for copy, hosted in self._copies.items():
            resident = self.host.residents.get(copy)
            if resident is not None and resident.machine.catching_up:
                hosted.look_for_progress()
        copies = {str(copy): self._copy_stats(hosted) for copy, hosted in self._copies.items()}
        # A backup does nothing, and is not slow for that.
        each = [facts for facts in copies.values() if facts.get("begun", True)]
        totals = {
            "rows_in": sum(c["rows_in"] for c in each),
            "rows_out": sum(c["rows_out"] for c in each),
            "groups": min((c["groups"] for c in each), default=0),
            "last_group_ms": max((c["last_group_ms"] for c in each), default=0.0),
            "last_group_buckets": max((c["last_group_buckets"] for c in each), default=0),
            "queued_buckets": max((c["queued_buckets"] for c in each), default=0),
            "unacked_buckets": max((c["unacked_buckets"] for c in each), default=0),
            "version": max((c["version"] for c in each), default=0),
        }
        self.mesh.tell(GATEWAY, Frame({"kind": STATS, **totals, "copies": copies}))

    def _copy_stats(self, hosted: HostedCopy) -> dict[str, Any]:
        stats, fetch = hosted.stats, hosted.fetching
        resident = self.host.residents.get(hosted.copy)
        machine = resident.machine if resident is not None else None
        facts: dict[str, Any] = {
            "rows_in": stats.rows_in,
            "rows_out": stats.rows_out,
            "groups": stats.groups,
            "last_group_ms": round(stats.last_group_ms, 1),
            "last_group_buckets": stats.last_group_buckets,
            "queued_buckets": 0,
            "unacked_buckets": 0,
            "version": 0,
        }
        if machine is not None and machine.below is not None and machine.above is not None:
            facts["queued_buckets"] = machine.below.merge.waiting
            facts["unacked_buckets"] = max((len(o.buffer) for o in machine.above.outlets.values()), default=0)
            facts["version"] = machine.lending.version
            facts["begun"] = machine.begun
            facts["shipped_bytes"] = hosted.shipped.size_bytes
            facts["handed_through"] = machine.below.handed
            facts |= self._saving_stats(hosted.copy, machine.saves)
            if fetch is not None and not machine.begun:
                facts["moved_bytes"], facts["moving_bytes"] = fetch.received_bytes, fetch.total_bytes
        return facts

    def _saving_stats(self, copy: Copy, saves: bool) -> dict[str, Any]:
        """How far the state of a copy's partition is saved, told by the copy that saves it."""
        if self._saving is None:
            return {}
        if not saves:
            self._saving.leave_to_others(copy.partition)
            return {}
        stats = self._saving.stats(copy.partition)
        return {
            "saved_through": stats.through,
            "saved_at_s": stats.at_s,
            "saved_bytes": stats.size_bytes,
            "written_bytes": stats.bytes_written,
            "not_saved_since_s": stats.failing_since_s,
            "saving_trouble": stats.why,
            "passed_over": list(stats.passed_over),
        }
