"""A partitioned flow in virtual time: real hosts and the real controller, over links and engines that cost.

Where `sim.exchange` asks what can go wrong, this world asks what it costs. Every host has one network card,
on which what it sends takes turns, and so does what it gets, and one thread that handles one parcel after
the other. The store that views come from has a card too, and sends the whole view to every process. An
engine takes the same time for any group. A state that moves does not stand in the way of the rest. Whoever
was connected to a node that dies notices at once; the controller decides when the node's session has ended.

Rows are not looked at: every partition sends an equal share of every bucket to each of its consumers.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.controller import MemberJoined, MemberLeft
from understudy.core.errors import require
from understudy.core.exchange import ProducedFor
from understudy.core.flux_controller import CopyCaughtUp, FluxController, FluxEvent, PublishFlux
from understudy.core.flux_view import FluxView
from understudy.core.host import GATEWAY, OUTER, Host
from understudy.core.instructions import CaughtUp, Instruction, Process, ShipPartition, TakeSnapshot
from understudy.core.messages import (
    Data,
    MoverReady,
    PairAvailable,
    PartitionState,
    Processed,
    SnapshotTaken,
)
from understudy.core.outlet import Outlet
from understudy.core.parcels import (
    Began,
    Carry,
    Dispatch,
    HostEvent,
    HostInstruction,
    Inside,
    Parcel,
    ParcelFrom,
    PeerDown,
    PeerUp,
    Relay,
    Say,
    TakeSeat,
    ViewSeen,
)
from understudy.core.partition import Copy
from understudy.core.topology import EGRESS, INGRESS, Topology
from understudy.core.view import Status


@dataclass(frozen=True)
class Costs:
    """What things take. The first three are of a small cluster, the others were measured here.

    A parcel's cost is what writing, sending and reading it takes at both ends (`studies/parcel_cost.py`).
    A dead node is noticed when its session with the store ends.
    """

    latency_us: float = 500
    bytes_per_us: float = 125  # 1 Gbit/s
    connect_us: float = 2_000
    detect_us: float = 2_000_000
    view_us: float = 3_000
    parcel_us: float = 95
    parcel_byte_us: float = 0.016
    group_us: float = 300_000
    deliver_us: float = 1_000
    snapshot_us: float = 4_000
    restore_us: float = 2_700_000
    state_bytes: int = 10 * 2**20
    retry_us: float = 2_000


#: How many frames a parcel is, their heads together, and their bodies together, in bytes.
Sized = tuple[int, int, int]


@dataclass
class Counts:
    """What went over the network since it was last looked at."""

    frames: int = 0
    data_frames: int = 0
    control_bytes: int = 0
    body_bytes: int = 0
    relays: int = 0
    relay_bytes: int = 0
    by_host: Counter[str] = field(default_factory=Counter)


@dataclass
class _Place:
    """A process: its host, and when its card and its thread are free again."""

    host: Host
    sends_us: float = 0.0
    gets_us: float = 0.0
    works_us: float = 0.0


class TimedExchange:
    """`run_until` lets time pass. Nothing happens but what was caused by `seal` and `kill`."""

    def __init__(
        self,
        topology: Topology,
        nodes: int,
        spares: int,
        *,
        size_of: Callable[[str, str, Parcel], Sized],
        view_bytes: Callable[[FluxView], int],
        bucket_bytes: int,
        costs: Costs | None = None,
    ) -> None:
        self.topology = topology
        self.costs = costs or Costs()
        self.size_of, self.view_bytes = size_of, view_bytes
        self.bucket_bytes = bucket_bytes
        self.now_us = 0.0
        self.counts = Counts()
        self.controller = FluxController(topology, nodes)
        self.published: list[tuple[float, FluxView]] = []
        #: When each process saw each epoch, and when each bucket was sealed and delivered.
        self.seen_us: dict[tuple[str, int], float] = {}
        self.sealed_us: dict[BucketId, float] = {}
        self.delivered_us: dict[BucketId, float] = {}
        #: The most buckets that each host ever kept.
        self.kept_at_most: Counter[str] = Counter()
        self.places: dict[str, _Place] = {}
        self.connected: set[tuple[str, str]] = set()
        self._store_sends_us = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._posted = 0
        for at, name in enumerate((GATEWAY, *(f"n{n}" for n in range(nodes + spares)))):
            self.places[name] = _Place(Host(name, topology))
            if at:
                self._decide(MemberJoined(name, at))

    # --- time --------------------------------------------------------------------------------------------

    def _post(self, at_us: float, do: Callable[[], None]) -> None:
        self._posted += 1
        heapq.heappush(self._due, (max(at_us, self.now_us), self._posted, do))

    def run_until(self, done: Callable[[], bool] | float) -> None:
        """Until this moment, until something holds, or until nothing is left to happen."""
        while self._due:
            if isinstance(done, float):
                if self._due[0][0] > done:
                    self.now_us = done
                    return
            elif done():
                return
            self.now_us, _, do = heapq.heappop(self._due)
            do()

    # --- what is done to the flow ------------------------------------------------------------------------

    def seal(self, number: BucketId) -> None:
        self.sealed_us[number] = self.now_us
        partitions = self.topology.consumers(INGRESS)
        for partition in partitions:
            share = Bucket(number, b"", self.bucket_bytes // len(partitions))
            self._drive(GATEWAY, Inside(Copy(INGRESS, OUTER), 0, (ProducedFor(partition, share),)))
        self._keeps(GATEWAY)

    def kill(self, name: str) -> None:
        del self.places[name]
        for pair in [pair for pair in self.connected if name in pair]:
            self.connected.discard(pair)
            other = pair[0] if pair[1] == name else pair[1]
            if other in self.places:
                self._post(self.now_us + self.costs.latency_us, partial(self._drive, other, PeerDown(name)))
        self._post(self.now_us + self.costs.detect_us, lambda: self._decide(MemberLeft(name)))

    # --- the controller ----------------------------------------------------------------------------------

    def _decide(self, event: FluxEvent) -> None:
        for done in self.controller.handle(event):
            if not isinstance(done, PublishFlux):
                continue
            self.published.append((self.now_us, done.view))
            take_us = self.view_bytes(done.view) / self.costs.bytes_per_us
            start_us = max(self.now_us + self.costs.view_us, self._store_sends_us)
            for name in self.places:
                start_us += take_us
                self._post(start_us, partial(self._drive, name, ViewSeen(done.view)))
            self._store_sends_us = start_us

    # --- processes ---------------------------------------------------------------------------------------

    def _drive(self, name: str, event: HostEvent, bytes_read: int = 0) -> None:
        place = self.places.get(name)
        if place is None:
            return
        before = place.host.view
        work_us = self.costs.parcel_us + bytes_read * self.costs.parcel_byte_us
        place.works_us = max(place.works_us, self.now_us) + work_us
        self._carry_out(name, place, place.host.handle(event))
        view = place.host.view
        if view is not before and view is not None:
            self.seen_us[name, view.epoch] = place.works_us
            self._connect(name, place.host.needed)

    def _connect(self, name: str, needed: Iterable[str]) -> None:
        for other in sorted(needed):
            pair = (min(name, other), max(name, other))
            if pair in self.connected or other not in self.places:
                continue
            self.connected.add(pair)
            for here, there in (pair, pair[::-1]):
                self._post(self.now_us + self.costs.connect_us, partial(self._drive, here, PeerUp(there)))

    def _carry_out(self, name: str, place: _Place, instructions: Iterable[HostInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Dispatch(node, parcel):
                    self._send(name, place, node, parcel)
                case TakeSeat(copy, epoch, Status.ACTIVE):
                    self._post(place.works_us, partial(self._drive, name, Began(copy, epoch)))
                case TakeSeat(copy, epoch):
                    self._post(place.works_us + self.costs.latency_us, partial(self._meet, copy, epoch))
                case Carry(copy, epoch, inner):
                    self._carry(name, place.works_us, copy, epoch, inner)
                case _:
                    require(False, f"{name} asks for {instruction}")

    def _send(self, name: str, place: _Place, node: str, parcel: Parcel) -> None:
        if node == name:
            self._post(place.works_us, lambda: self._drive(name, ParcelFrom(name, parcel)))
            return
        frames, head_bytes, body_bytes = self.size_of(name, node, parcel)
        self._count(name, node, parcel, (frames, head_bytes, body_bytes))
        size = head_bytes + body_bytes
        place.sends_us = max(place.sends_us, place.works_us) + size / self.costs.bytes_per_us
        self._post(place.sends_us + self.costs.latency_us, lambda: self._arrive(name, node, parcel, size))

    def _arrive(self, sender: str, name: str, parcel: Parcel, size: int) -> None:
        place = self.places.get(name)
        if place is None or (min(sender, name), max(sender, name)) not in self.connected:
            return
        # What comes from several at once takes turns.
        place.gets_us = max(self.now_us, place.gets_us + size / self.costs.bytes_per_us)
        self._post(place.gets_us, partial(self._drive, name, ParcelFrom(sender, parcel), size))

    def _count(self, name: str, node: str, parcel: Parcel, sized: Sized) -> None:
        frames, head, body = sized
        counts = self.counts
        counts.frames += frames
        counts.by_host[name] += frames
        counts.by_host[node] += frames
        counts.body_bytes += body
        if isinstance(parcel, Relay):
            counts.relays += 1
            counts.relay_bytes += head
        else:
            counts.control_bytes += head
        if isinstance(parcel, Say) and any(isinstance(message, Data) for message in parcel.messages):
            counts.data_frames += 1

    # --- engines and movers ------------------------------------------------------------------------------

    def _carry(self, name: str, from_us: float, copy: Copy, epoch: int, instruction: Instruction) -> None:
        costs = self.costs
        match instruction:
            case Process(buckets):
                last = buckets[-1].number
                if copy.partition == EGRESS:
                    self._post(from_us + costs.deliver_us, lambda: self._delivered(last, epoch))
                else:
                    numbers = [bucket.number for bucket in buckets]
                    self._post(from_us + costs.group_us, lambda: self._done(name, copy, epoch, numbers))
            case TakeSnapshot():
                taken = Inside(copy, epoch, (SnapshotTaken(),))
                self._post(from_us + costs.snapshot_us, lambda: self._drive(name, taken))
            case ShipPartition(state):
                take_us = costs.state_bytes / costs.bytes_per_us + costs.latency_us + costs.restore_us
                self._post(from_us + take_us, lambda: self._install(copy.other, state))
            case CaughtUp():
                report = CopyCaughtUp(copy, epoch)
                self._post(from_us + costs.latency_us, lambda: self._decide(report))

    def _done(self, name: str, copy: Copy, epoch: int, numbers: list[BucketId]) -> None:
        above = self.topology.consumers(copy.partition)
        count = self.topology.counts[copy.partition.fragment]
        for number in numbers:
            for partition in above:
                share = Bucket(number, b"", self.bucket_bytes // count // len(above))
                self._drive(name, Inside(copy, epoch, (ProducedFor(partition, share),)))
        if name in self.places:
            self._keeps(name)
        self._drive(name, Inside(copy, epoch, (Processed(),)))

    def _delivered(self, through: BucketId, epoch: int) -> None:
        for number in self.sealed_us:
            if number <= through:
                self.delivered_us.setdefault(number, self.now_us)
        self._drive(GATEWAY, Inside(Copy(EGRESS, OUTER), epoch, (Processed(),)))

    def _meet(self, standby: Copy, epoch: int) -> None:
        """The standby's mover asks, and asks again until the active copy's process has heard of it."""
        view = self.published[-1][1]
        if view.seat(standby).epoch != epoch:
            return
        seat = view.seat(standby.other)
        active = self.places.get(seat.node)
        seen = active.host.view if active is not None else None
        if seen is None or seen.seat(standby).epoch != epoch:
            self._post(self.now_us + self.costs.retry_us, lambda: self._meet(standby, epoch))
            return
        self._drive(seat.node, Inside(standby.other, seat.epoch, (PairAvailable(),)))
        self._drive(seat.node, Inside(standby.other, seat.epoch, (MoverReady(),)))

    def _install(self, standby: Copy, state: PartitionState) -> None:
        seat = self.published[-1][1].seat(standby)
        self._drive(seat.node, Inside(standby, seat.epoch, (state,)))

    # --- what can be seen --------------------------------------------------------------------------------

    @property
    def view(self) -> FluxView:
        return self.published[-1][1]

    @property
    def whole(self) -> bool:
        """Whether every copy is active."""
        return all(seat.status is Status.ACTIVE for seat in self.view.seats.values())

    @property
    def caught_up(self) -> bool:
        """Whether all that was sealed has been delivered."""
        return self.delivered_us.keys() == self.sealed_us.keys()

    def _keeps(self, name: str) -> None:
        """Note how many buckets a host keeps in its outlets, now that it has more of them."""
        kept = sum(
            len(end.buffer)
            for resident in self.places[name].host.residents.values()
            for end in resident.ends.values()
            if isinstance(end, Outlet)
        )
        self.kept_at_most[name] = max(self.kept_at_most[name], kept)

    @property
    def edges(self) -> int:
        return (
            sum(
                len(resident.edges)
                for place in self.places.values()
                for resident in place.host.residents.values()
            )
            // 2
        )

    @property
    def delivered_through(self) -> BucketId:
        return max(self.delivered_us, default=NOTHING)
