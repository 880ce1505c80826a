"""The boundary: sources and sinks as the ends of one version of a flow, and their edges to the nodes.

Every source deals its sealed buckets out to the segments that read it, each row by the keys of the fragment
that takes it, and keeps each share until every live copy of the partition has acknowledged it. The log drops
a bucket when all of its shares are dropped. Sources fill up, wait and are trimmed each on its own.

Every sink takes the shares of all partitions that feed it, and acknowledges them when its writer holds them.

While a flow is upgraded, its gateway has a boundary for each of two versions (`gateway.versions`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.edge.messages import Data
from understudy.core.host.parcels import FetchState, HostEvent, Inside, Parcel, ParcelFrom, Say
from understudy.core.host.places import GATEWAY
from understudy.core.replica.events import CopyState, LogRead, Passed, Processed, Produced, Rest, Wake
from understudy.core.replica.producer import Producer
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.events import CopySuspected, Report
from understudy.engine.segments import SINK_PREFIX, sink_partition
from understudy.runtime.actor import Actor
from understudy.runtime.gateway.newest_saves import NewestSaves
from understudy.runtime.gateway.rereading import Rereading
from understudy.runtime.gateway.shares import Dealer, Dealt, Incoming
from understudy.runtime.hosting import Hosting
from understudy.runtime.ingest.buckets import SealedBucket
from understudy.runtime.ingest.rereading import LogReader
from understudy.runtime.mesh import SAVE, STATS
from understudy.runtime.partitioning import Dataflow, host_for
from understudy.runtime.recording import RunRecorder
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.endpoint import Endpoint
from understudy.runtime.transport.wire import Frame

log = logging.getLogger(__name__)

#: A source with much to put in, above all after a restart, puts in so many buckets at a time.
RUN_BUCKETS_MAX = 1_000


class Surroundings(Protocol):
    """What the boundary needs of its process. None of these may block."""

    def deliver(self, sink: str, buckets: Sequence[Bucket]) -> None: ...

    def trim(self, source: str, through: BucketId) -> None: ...

    def forget(self, source: str, through: BucketId) -> None: ...

    def reader(self, source: str, after: BucketId) -> LogReader: ...

    def fail(self, error: BaseException) -> None: ...

    def room(self, source: str, there_is: bool) -> None: ...

    def report(self, report: Report) -> bool:
        """Tell the controller; False if this process cannot be sure of what it reports."""
        ...

    def stats(self, node: str, facts: Mapping[str, Any]) -> None: ...

    def rests(self, sink: str, through: BucketId) -> None:
        """This sink, which was told to, delivers nothing after that number."""
        ...


class Boundary(Hosting):
    """The ends of one version of a flow. With `rests`, no sink delivers anything until it is woken.

    `deal`, `status` and the properties are for any thread; the rest belongs to the actor.
    """

    def __init__(
        self,
        settings: RunSettings,
        actor: Actor,
        surroundings: Surroundings,
        *,
        dataflow: Dataflow,
        recorder: RunRecorder,
        delivered: Mapping[str, BucketId],
        trimmed: Mapping[str, BucketId],
        recovered: Sequence[SealedBucket] = (),
        forgotten: Mapping[str, BucketId] | None = None,
        rests: bool = False,
    ) -> None:
        self._around = surroundings
        self._recorder = recorder
        host = host_for(
            GATEWAY,
            dataflow.topology,
            settings,
            delivered={sink_partition(name): through for name, through in delivered.items()},
            trimmed=trimmed,
            forgotten=forgotten,
            rests=rests,
        )
        # Nodes call the gateway, never the other way round: it needs no addresses.
        super().__init__(host, settings, actor, lambda _node: None, self._suspects)
        self._saves = settings.saves
        self._delivered = dict(delivered)
        self._dealer = Dealer(dataflow.topology, dataflow.keys)
        self._rereading = Rereading(
            surroundings.reader, self._dealer.share, self._log_read, self._log_not_read
        )
        self._sources = {name: Incoming() for name in dataflow.topology.sources}
        self._groups: dict[str, BucketId] = {}
        self._senders: dict[Partition, int | None] = {}
        self._newest_saves = NewestSaves()
        self._epoch = 0
        for bucket in recovered:
            if bucket.source in self._sources:
                self._sources[bucket.source].add(self._dealer.dealt(bucket))

    # --- called by other threads -------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether every partition that feeds a sink sends its output."""
        sinks = [self.host.end(name) for name in self.host.topology.sinks]
        return all(
            sink is not None
            and sink.below is not None
            and all(inlet.sender is not None for inlet in sink.below.inlets.values())
            for sink in sinks
        )

    @property
    def arrived_through(self) -> dict[str, BucketId]:
        """Through which number all output for each sink has come here, delivered or not."""
        sinks = {name: self.host.end(sink_partition(name)) for name in self._sink_names}
        return {
            name: sink.below.merge.frontier
            for name, sink in sinks.items()
            if sink is not None and sink.below is not None
        }

    @property
    def caught_up_through(self) -> dict[str, BucketId]:
        """Through which number each sink could have this version's output by now.

        What was delivered before these ends were made does not come again. As long as nothing later has come,
        only the input that the copies have taken tells how far they are.
        """
        found = self.arrived_through
        taken: dict[Partition, BucketId] = {}
        for name, arrived in found.items():
            if arrived <= self._delivered.get(name, NOTHING):
                found[name] = min(arrived, self._taken_for(Partition(sink_partition(name)), taken))
        return found

    def _taken_for(self, consumer: Partition, known: dict[Partition, BucketId]) -> BucketId:
        """Through which number all input was taken from which this partition's own is made."""
        if consumer not in known:
            taken = []
            for producer in self.host.topology.producers(consumer):
                source = self._producer(producer.name) if producer.name in self._sources else None
                taken.append(
                    self._taken_for(producer, known)
                    if source is None
                    else source.outlets[consumer].taken_through
                )
            known[consumer] = min(taken, default=NOTHING)
        return known[consumer]

    @property
    def crowded(self) -> list[str]:
        """The sources that have no room here."""
        return sorted(name for name, source in self._sources.items() if not source.room)

    @property
    def overfull(self) -> list[str]:
        """The sources of which as many bytes wait here for room as there is room for."""
        return sorted(name for name, source in self._sources.items() if source.overfull)

    def status(self) -> dict[str, Any]:
        """What an operator wants to know of it, as plain data."""
        view = self.host.view
        producers = {name: self._producer(name) for name in self._sources}
        outlets = [
            outlet for each in producers.values() if each is not None for outlet in each.outlets.values()
        ]
        return {
            "epoch": view.epoch if view else 0,
            "lost": view.lost if view and not self._saves else None,
            "down": [str(p) for p, seats in (view.partitions.items() if view else ()) if seats.lost],
            "restored": {
                str(p): s.restored for p, s in (view.partitions.items() if view else ()) if s.restored
            },
            "seats": {
                str(copy): {"node": seat.node, "status": seat.status.value, "epoch": seat.epoch}
                for copy, seat in (view.seats.items() if view else ())
            },
            "drained": sorted(view.drained) if view else [],
            "senders": {str(partition): replica for partition, replica in self._sending().items()},
            "buffered_buckets": max((len(outlet.buffer) for outlet in outlets), default=0),
            "buffered_bytes": sum(outlet.buffer.size_bytes for outlet in outlets),
            "waiting_for_room": self.crowded,
            "awaiting_rows": sorted(self._awaiting_rows(producers)),
            "saved": self._newest_saves.status(),
        }

    def _awaiting_rows(self, producers: Mapping[str, Producer | None]) -> set[str]:
        """The copies for which rows wait here."""
        return {
            str(Copy(partition, replica))
            for name, producer in producers.items()
            if producer is not None
            for partition, outlet in producer.outlets.items()
            for replica in outlet.live
            if self._sources[name].waiting_bytes or outlet.owes_rows(replica)
        }

    def listen_on(self, endpoint: Endpoint) -> None:
        self.mesh.listen_on(endpoint)

    def deal(self, buckets: Sequence[SealedBucket]) -> list[tuple[str, Dealt]]:
        """Sealed buckets, dealt out: by the thread that sealed them, since the actor has enough to do."""
        return [
            (bucket.source, self._dealer.dealt(bucket))
            for bucket in buckets
            if bucket.source in self._sources
        ]

    def have_all_saved(self) -> None:
        """Have every node save the states of its copies now."""

        def tell() -> None:
            for node in sorted(self.host.needed):
                self.mesh.tell(node, Frame({"kind": SAVE}))

        self._actor.post(tell)

    # --- input -------------------------------------------------------------------------------------------

    def _log_read(self, source: str, event: LogRead) -> None:
        self.inside(Copy(Partition(source)), 0, event)

    def _log_not_read(self, source: str, consumer: Copy, after: BucketId, error: BaseException) -> None:
        """Fail, unless that copy has left meanwhile, or this version is over: then the log may have let go of
        what the copy was to get.
        """

        def judge() -> None:
            if self._ended:
                return
            producer = self._producer(source)
            outlet = None if producer is None else producer.outlets.get(consumer.partition)
            refill = None if outlet is None else outlet.refills.get(consumer.replica)
            if refill is not None and refill.asked and refill.after == after:
                self._around.fail(error)
            else:
                log.info("the log is not read again for %s, which has left: %s", consumer, error)

        self._actor.post(judge)

    def put(self, dealt: Sequence[tuple[str, Dealt]]) -> None:
        """Put in what was sealed next."""
        for source, each in dealt:
            self._sources[source].add(each)
        for source in {source for source, _ in dealt}:
            self._put_waiting(source)

    def _put_waiting(self, name: str) -> None:
        """Put in what waits, as far as there is room."""
        source, producer = self._sources[name], self._producer(name)
        while producer is not None and source.waiting and not producer.full:
            run = source.take(RUN_BUCKETS_MAX)
            shares = tuple((partition, tuple(each[1][partition] for each in run)) for partition in run[0][1])
            copy = Copy(Partition(name))
            for partition, buckets in shares:
                self._recorder.produced_for(copy, partition, buckets)
            # Not `self.handle`: that would come back here.
            self._driver.handle(Inside(copy, 0, Produced(shares)))
        limits = self.host.limits
        overfull = source.waiting_bytes >= limits.input_bytes_max
        if producer is None:
            # Before the first view no consumer is known. As much may wait here as the producer would keep.
            room = not overfull and len(source.waiting) < limits.input_buckets_max
        else:
            room = not source.waiting and not producer.full
        if (room, overfull) != (source.room, source.overfull):
            source.room, source.overfull = room, overfull
            self._around.room(name, room)

    def _producer(self, name: str) -> Producer | None:
        machine = self.host.end(name)
        return None if machine is None else machine.above

    # --- output ------------------------------------------------------------------------------------------

    @property
    def _sink_names(self) -> list[str]:
        return [name.removeprefix(SINK_PREFIX) for name in self.host.topology.sinks]

    def sink_holds(self, sink: str, through: BucketId) -> None:
        """A sink's writer holds everything through this number."""
        if sink in self._groups and through >= self._groups[sink]:
            del self._groups[sink]
            self.tell_sink(sink, Processed())

    def tell_sink(self, sink: str, event: Processed | Rest | Passed | Wake) -> None:
        self.handle(Inside(Copy(Partition(sink_partition(sink))), 0, event))

    def _sending(self) -> dict[Partition, int | None]:
        """Which copy sends, for every partition that feeds a sink."""
        found: dict[Partition, int | None] = {}
        for name in self.host.topology.sinks:
            machine = self.host.end(name)
            if machine is not None and machine.below is not None:
                for partition, inlet in machine.below.inlets.items():
                    found.setdefault(partition, inlet.sender)
        return found

    # --- on the actor ------------------------------------------------------------------------------------

    def parcel_arrived(self, node: str, serial: int, parcel: Parcel, cause: int) -> None:
        if (
            isinstance(parcel, Say)
            and isinstance(parcel.message, Data)
            and parcel.to.partition.name in self.host.topology.sinks
        ):
            self._recorder.arrived(parcel.sender.partition, parcel.message.buckets)
        super().parcel_arrived(node, serial, parcel, cause)

    def handled(self, event: HostEvent) -> None:
        view = self.host.view
        if view is None:
            return
        if view.epoch != self._epoch:
            self._epoch = view.epoch
            self._recorder.view(view)
        match event:
            case ParcelFrom(_, _, Say(_, to)):
                # The usual case, an acknowledgement or output: it must not cost more with more ends.
                if to.partition.name in self._sources:
                    self._look_after(to.partition.name)
            case _:
                for name in self._sources:
                    self._look_after(name)
                self._note_senders()

    def _look_after(self, name: str) -> None:
        """A source's shares may be gone: trim its log, and put in what waits for room."""
        source, producer = self._sources[name], self._producer(name)
        if producer is not None and producer.trimmed_through > source.trimmed:
            source.trimmed = producer.trimmed_through
            self._around.trim(name, source.trimmed)
        needed = producer.log_needed if producer is not None and self._saves else source.trimmed
        # The log forgets nothing that is not trimmed.
        if (through := min(needed, source.trimmed)) > source.forgotten:
            source.forgotten = through
            self._around.forget(name, through)
        if source.waiting or not source.room:
            self._put_waiting(name)

    def _note_senders(self) -> None:
        senders = self._sending()
        for partition, replica in senders.items():
            if replica is not None and replica != self._senders.get(partition):
                self._recorder.sender(Copy(partition, replica))
        self._senders = senders

    def frame_arrived(self, node: str, frame: Frame) -> None:
        if frame.kind == STATS:
            self._newest_saves.note(frame.head)
            self._around.stats(node, frame.head)

    def _suspects(self, report: Report) -> None:
        reported = self._around.report(report)
        if reported and isinstance(report, CopySuspected) and self.host.view is not None:
            self._recorder.suspected(self.host.view.seat(report.copy).node)

    # --- ports -------------------------------------------------------------------------------------------

    def process(self, copy: Copy, epoch: int, buckets: tuple[Bucket, ...]) -> None:
        sink = copy.partition.name.removeprefix(SINK_PREFIX)
        self._groups[sink] = buckets[-1].number
        self._around.deliver(sink, buckets)

    def rests(self, sink: Copy, through: BucketId) -> None:
        self._around.rests(sink.partition.name.removeprefix(SINK_PREFIX), through)

    def start(self, copy: Copy, epoch: int) -> None:
        raise AssertionError(f"the gateway was given the seat {copy}")

    def wait(self, copy: Copy, epoch: int) -> None:
        raise AssertionError(f"the gateway was given the seat {copy}")

    def hold(self, copy: Copy, epoch: int, attempt: int) -> None:
        raise AssertionError(f"the gateway was to back up {copy}")

    def start_held(self, copy: Copy, epoch: int) -> None:
        raise AssertionError(f"the gateway was to back up {copy}")

    def leave(self, copy: Copy, epoch: int) -> None:
        raise AssertionError(f"the gateway was to leave the seat {copy}")

    def fetch(self, wanted: FetchState) -> None:
        raise AssertionError(f"the gateway was to fetch a state: {wanted}")

    def snapshot(self, copy: Copy, epoch: int, version: int) -> None:
        raise AssertionError(f"the gateway was to snapshot {copy}")

    def lend(self, copy: Copy, epoch: int, state: CopyState) -> None:
        raise AssertionError(f"the gateway was to lend {copy}")

    def unlend(self, copy: Copy, epoch: int, version: int) -> None:
        raise AssertionError(f"the gateway was to lend {copy}")

    def save(self, copy: Copy, epoch: int, version: int) -> None:
        raise AssertionError(f"the gateway was to save {copy}")

    def read_again(self, source: Copy, consumer: Copy, after: BucketId, bytes_max: int) -> None:
        self._rereading.read(source.partition.name, consumer, after, bytes_max)

    def end(self) -> None:
        self._rereading.end()
        super().end()
