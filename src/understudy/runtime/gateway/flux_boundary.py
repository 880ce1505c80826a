"""The boundary of a partitioned flow: ingress and egress as a host, and their connections to the nodes.

Ingress deals every sealed bucket out to the partitions that read sources, each row by the keys of the
fragment that takes it, and keeps each share until both copies of the partition have it. The log lets go of a
bucket when every share of it is gone. Egress puts the shares of all partitions with sinks together again and
acknowledges them when the sinks hold them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pyarrow as pa

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.exchange import ProducedFor
from understudy.core.flux_view import FluxView
from understudy.core.host import GATEWAY, OUTER
from understudy.core.instructions import Instruction, Process
from understudy.core.messages import Data, Processed
from understudy.core.parcels import Inside, Parcel, Say
from understudy.core.partition import Copy, Partition
from understudy.core.topology import EGRESS, INGRESS
from understudy.core.view import Status
from understudy.flow.dealing import deal, partition_numbers
from understudy.flow.flow import Flow
from understudy.runtime.actor import Actor
from understudy.runtime.coordination.reports import FluxReported, written
from understudy.runtime.gateway.boundary import Surroundings
from understudy.runtime.hosting import Hosting
from understudy.runtime.partitioning import host_for
from understudy.runtime.payload import decode, encode
from understudy.runtime.recording import Recorder
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.endpoint import Endpoint
from understudy.runtime.transport.wire import Frame

log = logging.getLogger(__name__)

_INGRESS, _EGRESS = Copy(INGRESS, OUTER), Copy(EGRESS, OUTER)
#: A sealed bucket and its shares.
Dealt = tuple[Bucket, dict[Partition, Bucket]]


class FluxBoundary:
    """Ingress and egress of one partitioned flow. See `Boundary` for the methods that both have."""

    def __init__(
        self,
        settings: RunSettings,
        actor: Actor,
        surroundings: Surroundings,
        *,
        flow: Flow,
        recorder: Recorder,
        recovered: Sequence[Bucket],
        delivered: BucketId,
    ) -> None:
        self._flow = flow
        self._actor = actor
        self._around = surroundings
        self._recorder = recorder
        self._host = host_for(GATEWAY, flow, settings, delivered=delivered)
        # Nodes call the gateway, never the other way round: it needs nobody's address.
        self._hosting = Hosting(self._host, settings, actor, self, lambda _node: None)
        self._waiting: deque[Dealt] = deque(self._dealt(bucket) for bucket in recovered)
        self._group_through: BucketId | None = None
        self._delivered = delivered
        self._trimmed = NOTHING
        self._epoch = 0
        self._putting = False

    # --- called by other threads -------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether every partition with a sink sends output."""
        egress = self._host.egress
        return egress is not None and all(inlet.sender is not None for inlet in egress.inlets.values())

    @property
    def delivered_through(self) -> BucketId | None:
        return None if self._host.egress is None else self._delivered

    def status(self) -> dict[str, Any]:
        """What an operator wants to know of it, as plain data."""
        view, ingress = self._host.view, self._host.ingress
        outlets = list(ingress.outlets.values()) if ingress is not None else []
        return {
            "epoch": view.epoch if view else 0,
            "lost": view.lost if view else None,
            "seats": {
                str(copy): {"node": seat.node, "status": seat.status.value, "epoch": seat.epoch}
                for copy, seat in (view.seats.items() if view else ())
            },
            "drained": sorted(view.drained) if view else [],
            "sender": "every partition" if self.running else None,
            "delivered_through": self.delivered_through,
            "buffered_buckets": max((len(outlet.buffer) for outlet in outlets), default=0),
            "buffered_bytes": sum(outlet.buffer.size_bytes for outlet in outlets),
        }

    def listen_on(self, endpoint: Endpoint) -> None:
        self._hosting.mesh.listen_on(endpoint)

    def end(self) -> None:
        self._hosting.mesh.end()

    def on_view(self, view: FluxView) -> None:
        self._hosting.on_view(view)

    def on_sealed(self, buckets: list[Bucket]) -> None:
        # Dealt out by the thread that sealed them: the actor has enough to do.
        dealt = [self._dealt(bucket) for bucket in buckets]
        self._actor.post(self._sealed, dealt)

    def on_tick(self) -> None:
        self._hosting.on_tick()

    def on_delivered(self, through: BucketId) -> None:
        self._actor.post(self._sink_holds, through)

    # --- input -------------------------------------------------------------------------------------------

    def _dealt(self, bucket: Bucket) -> Dealt:
        """The bucket's rows, by the partition that takes them; every partition hears of its number."""
        shares: dict[Partition, dict[str, pa.Table]] = {}
        tables = {} if bucket.payload is None else decode(cast(bytes, bucket.payload))
        topology = self._host.topology
        for name, fragment in self._flow.fragments.items():
            count = topology.counts[name]
            for stream in set(fragment.inputs) & tables.keys():
                rows = tables[stream]
                parts = [rows]
                if count > 1:
                    parts = deal(rows, partition_numbers(rows, fragment.partition_by, count), count)
                for index, part in enumerate(parts):
                    if part.num_rows:
                        shares.setdefault(Partition(name, index), {})[stream] = part
        return bucket, {
            partition: _holding(bucket.number, shares.get(partition))
            for partition in topology.consumers(INGRESS)
        }

    def _sealed(self, dealt: list[Dealt]) -> None:
        self._waiting.extend(dealt)
        self._put_waiting()

    def _put_waiting(self) -> None:
        ingress = self._host.ingress
        if self._putting:
            # Called from within: what waits is put in once the bucket in hand is in whole.
            return
        self._putting = True
        while ingress is not None and self._waiting and not ingress.full:
            bucket, shares = self._waiting.popleft()
            self._recorder.sealed([bucket])
            for partition, share in shares.items():
                self._recorder.produced_for(_INGRESS, partition, [share])
                self._hosting.handle(Inside(_INGRESS, 0, (ProducedFor(partition, share),)))
        self._putting = False
        self._around.room(not self._waiting and not (ingress is not None and ingress.full))

    # --- output ------------------------------------------------------------------------------------------

    def _sink_holds(self, through: BucketId) -> None:
        self._delivered = max(self._delivered, through)
        if self._group_through is not None and through >= self._group_through:
            self._group_through = None
            self._hosting.handle(Inside(_EGRESS, 0, (Processed(),)))

    # --- what the host asks for --------------------------------------------------------------------------

    def carry(self, copy: Copy, epoch: int, instruction: Instruction) -> None:
        match instruction:
            case Process(buckets) if copy == _EGRESS:
                self._group_through = buckets[-1].number
                for bucket in buckets:
                    self._around.deliver(bucket)
            case _:
                raise AssertionError(f"the gateway cannot carry out {instruction} of {copy}")

    def take_seat(self, copy: Copy, epoch: int, status: Status) -> None:
        raise AssertionError(f"the gateway was given the seat {copy}")

    def leave_seat(self, copy: Copy, epoch: int) -> None:
        raise AssertionError(f"the gateway was to leave the seat {copy}")

    def noticed(self, node: str, parcel: Parcel) -> None:
        if isinstance(parcel, Say) and parcel.to == _EGRESS:
            buckets = [message.bucket for message in parcel.messages if isinstance(message, Data)]
            if buckets:
                self._recorder.arrived(parcel.sender.partition, buckets)

    def handled(self) -> None:
        view, ingress = self._host.view, self._host.ingress
        if view is not None and view.epoch != self._epoch:
            self._epoch = view.epoch
            self._recorder.flux_view(view)
        if ingress is None:
            return
        if ingress.trimmed_through > self._trimmed:
            self._trimmed = ingress.trimmed_through
            self._around.trim(self._trimmed)
        # A dead copy's shares may be gone now, so there may be room.
        self._put_waiting()

    def stats(self, node: str, frame: Frame) -> None:
        self._around.stats(node, frame.head)

    def peer_lost(self, node: str) -> None:
        pass

    def report(self, event: FluxReported) -> None:
        self._around.report(*written(event))


def _holding(number: BucketId, tables: Mapping[str, pa.Table] | None) -> Bucket:
    if tables is None:
        return Bucket(number)
    payload = encode(tables)
    return Bucket(number, payload, len(payload))
