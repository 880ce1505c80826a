"""A host: one process's share of a partitioned flow, and its edges to everybody else's.

A node hosts the copies that the view seats on it; the gateway hosts the ends, ingress and egress. A host owns
the machines of what it hosts and sees to everything between them and the network that is not I/O: it seats
and unseats copies as views say, opens edges when both ends are there, passes messages to the machine they
are for, and leaves out what comes over edges that are no more. Two copies on one host talk in the same way;
its process gives such parcels back in turn.

Who may speak: an edge is opened only by whoever holds its seat in the newest view (node, copy and seat epoch
must match), and every message names its edge's serial. A copy whose seat is taken away is dropped with its
edges. That is all the fencing there is, so a node may hold a copy again later, under another epoch.

*When an edge is opened.* The connection must stand and both copies must have their state. The consumer
tries when it gets its state, when a connection comes up, when it hears of a new seat, and when a producer
says that it is `Here`, which a producer does when it gets its state. Whatever comes last causes the attempt
that succeeds, so nothing has to be repeated by the clock.

*Views.* They come from the controller, and ahead of what others do because of them; the newest counts, and
some are never seen (`core.view.changes` makes up for that). Only the first must come from the controller.

With `whole`, copies of one slot talk only to copies of that slot, as in the paper's cluster pairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.errors import BrokenInvariant, PeerError, require
from understudy.core.exchange import Edge
from understudy.core.f_cons import FCons
from understudy.core.f_prod import FProd
from understudy.core.flux_view import FluxView
from understudy.core.instructions import Instruction, SendTo
from understudy.core.messages import (
    Attached,
    Detached,
    From,
    PairAvailable,
    PairFailed,
    PartitionState,
    SeatConfirmed,
)
from understudy.core.parcels import (
    Attach,
    Began,
    Carry,
    Cut,
    Dispatch,
    Here,
    HostEvent,
    HostInstruction,
    Inside,
    LeaveSeat,
    Parcel,
    ParcelFrom,
    PeerDown,
    PeerUp,
    Relay,
    Say,
    TakeSeat,
    ViewSeen,
    Welcome,
)
from understudy.core.partition import Copy, Partition
from understudy.core.partition_replica import PartitionReplica
from understudy.core.resident import Opened, Resident
from understudy.core.topology import EGRESS, ENDS, INGRESS, Topology
from understudy.core.view import Activated, Avail, Change, Fail, Seated, Slot, Status, changes

GATEWAY = "gateway"
#: The ends have one copy each.
OUTER = Slot.PRIM


@dataclass(frozen=True)
class Limits:
    """How much may wait: input at ingress, output of a copy, and a group for an engine."""

    input_buckets_max: int = 100_000
    input_bytes_max: int = 256 * 2**20
    output_buckets_max: int = 100_000
    output_bytes_max: int = 128 * 2**20
    group_buckets_max: int = 1_000
    group_bytes_max: int = 16 * 2**20


class Host:
    """`handle(event)` returns what is to be done, in order. A host that has seen no view hosts nothing."""

    def __init__(
        self,
        name: str,
        topology: Topology,
        limits: Limits | None = None,
        *,
        delivered: BucketId = NOTHING,
        whole: bool = False,
    ) -> None:
        self.name = name
        self.topology = topology
        self.limits = limits or Limits()
        self.whole = whole
        self.view: FluxView | None = None
        self.residents: dict[Copy, Resident] = {}
        self._delivered = delivered
        self._up: set[str] = {name}
        self._told: dict[str, int] = {}
        self._serial = 0
        self._out: list[HostInstruction] = []

    # --- reading -----------------------------------------------------------------------------------------

    @property
    def ingress(self) -> FProd | None:
        found = self.residents.get(Copy(INGRESS, OUTER))
        return found.machine if found is not None and isinstance(found.machine, FProd) else None

    @property
    def egress(self) -> FCons | None:
        found = self.residents.get(Copy(EGRESS, OUTER))
        return found.machine if found is not None and isinstance(found.machine, FCons) else None

    @property
    def needed(self) -> set[str]:
        """The other processes that this one needs a connection to."""
        around = {
            node
            for resident in self.residents.values()
            for partition, end in resident.ends.items()
            for slot in end.status
            if (node := self._node_of(Copy(partition, slot))) is not None
        }
        return around - {self.name}

    def node_of(self, copy: Copy) -> str | None:
        """Who hosts a copy; None if nobody does."""
        return self._node_of(copy)

    # --- the one way in ----------------------------------------------------------------------------------

    def handle(self, event: HostEvent) -> list[HostInstruction]:
        self._out = []
        match event:
            case ViewSeen(view):
                self._see(view)
            case PeerUp(node):
                self._peer_up(node)
            case PeerDown(node):
                self._peer_down(node)
            case ParcelFrom(node, parcel):
                if node in self._up:
                    try:
                        self._arrived(node, parcel)
                    except PeerError as problem:
                        # What the earlier messages of the parcel led to stands.
                        self._out.append(Cut(node, str(problem)))
            case Began(copy, epoch):
                resident = self._resident(copy, epoch)
                if resident is not None:
                    self._begin(resident)
            case Inside(copy, epoch, events):
                resident = self._resident(copy, epoch)
                for inner in events if resident is not None else ():
                    assert resident is not None
                    self._drive(resident, inner)
                    if isinstance(inner, PartitionState):
                        self._begin(resident)
        return self._out

    def _resident(self, copy: Copy, epoch: int) -> Resident | None:
        found = self.residents.get(copy)
        return found if found is not None and found.epoch == epoch else None

    # --- views -------------------------------------------------------------------------------------------

    def _see(self, view: FluxView) -> None:
        if self.view is not None and view.epoch <= self.view.epoch:
            return
        old, self.view = self.view, view
        if old is None and self.name == GATEWAY:
            self._take_ends()
        if old is not None:
            for resident in list(self.residents.values()):
                if self._sits(resident.copy, self.name, resident.epoch):
                    self._follow(resident, old, view)
                else:
                    del self.residents[resident.copy]
                    self._out.append(LeaveSeat(resident.copy, resident.epoch))
        for copy in view.copies_on(self.name):
            if copy not in self.residents:
                self._take_seat(copy)
        for resident in self.residents.values():
            # A producer may have said that it is here before this host had heard of its seat.
            for producer in resident.producers:
                if resident.begun and producer not in resident.tried:
                    self._try(resident, producer)

    def _follow(self, resident: Resident, old: FluxView, new: FluxView) -> None:
        for partition, end in resident.ends.items():
            if partition in ENDS:
                continue
            for change in changes(old.partitions[partition], new.partitions[partition]):
                if change.slot not in end.status or isinstance(change, Seated):
                    continue
                if isinstance(change, Fail):
                    # Whatever the dead one said and has not arrived is void.
                    resident.edges.pop(Copy(partition, change.slot), None)
                    resident.tried.pop(Copy(partition, change.slot), None)
                self._drive(resident, Edge(partition, change))
        own = resident.copy.partition
        if own not in ENDS and not self.whole:
            self._follow_pair(resident, changes(old.partitions[own], new.partitions[own]))

    def _follow_pair(self, resident: Resident, own: Iterable[Change]) -> None:
        for change in own:
            match change:
                case Fail(slot) if slot is not resident.copy.slot:
                    self._drive(resident, PairFailed())
                case Avail(slot) if slot is not resident.copy.slot:
                    self._drive(resident, PairAvailable())
                case Activated(slot) if slot is resident.copy.slot:
                    self._drive(resident, SeatConfirmed())

    def _take_seat(self, copy: Copy) -> None:
        assert self.view is not None
        seat = self.view.seat(copy)
        machine = PartitionReplica(
            copy,
            seat.status,
            self._statuses(self.topology.producers(copy.partition), copy),
            self._statuses(self.topology.consumers(copy.partition), copy),
            group_buckets_max=self.limits.group_buckets_max,
            group_bytes_max=self.limits.group_bytes_max,
            output_buckets_max=self.limits.output_buckets_max,
            output_bytes_max=self.limits.output_bytes_max,
        )
        resident = Resident(copy, seat.epoch, machine)
        self.residents[copy] = resident
        self._out.append(TakeSeat(copy, seat.epoch, seat.status))
        if seat.status is Status.STDBY:
            self._drive(resident, PairAvailable())

    def _take_ends(self) -> None:
        first, last = Copy(INGRESS, OUTER), Copy(EGRESS, OUTER)
        limits = self.limits
        ingress = FProd(
            "ingress",
            self._statuses(self.topology.consumers(INGRESS), first),
            buckets_max=limits.input_buckets_max,
            bytes_max=limits.input_bytes_max,
        )
        egress = FCons(
            "egress",
            FProd("sink", {}),
            OUTER,
            self._statuses(self.topology.producers(EGRESS), last),
            group_buckets_max=limits.group_buckets_max,
            group_bytes_max=limits.group_bytes_max,
            through=self._delivered,
            acks_when_processed=True,
        )
        for copy, machine in ((first, ingress), (last, egress)):
            self.residents[copy] = Resident(copy, 0, machine)
            self._begin(self.residents[copy])

    def _statuses(self, partitions: Iterable[Partition], of: Copy) -> dict[Partition, dict[Slot, Status]]:
        assert self.view is not None
        found: dict[Partition, dict[Slot, Status]] = {}
        for partition in partitions:
            if partition in ENDS:
                found[partition] = {OUTER: Status.ACTIVE}
                continue
            seats = self.view.partitions[partition].seats
            narrow = self.whole and of.partition not in ENDS
            found[partition] = {s: seat.status for s, seat in seats.items() if not narrow or s is of.slot}
        return found

    def _node_of(self, copy: Copy) -> str | None:
        if copy.partition in ENDS:
            return GATEWAY
        if self.view is None:
            return None
        seat = self.view.seat(copy)
        return seat.node if seat.alive else None

    def _seat_epoch(self, copy: Copy) -> int:
        return 0 if copy.partition in ENDS or self.view is None else self.view.seat(copy).epoch

    def _sits(self, copy: Copy, node: str, epoch: int) -> bool:
        if copy.partition in ENDS:
            return node == GATEWAY and epoch == 0
        return self.view is not None and self.view.holds(copy, node, epoch)

    # --- connections and edges ---------------------------------------------------------------------------

    def _peer_up(self, node: str) -> None:
        require(node not in self._up, f"the connection to {node} came up twice")
        self._up.add(node)
        self._told.pop(node, None)
        for resident in self.residents.values():
            self._try_all(resident, node)

    def _peer_down(self, node: str) -> None:
        require(node != self.name, "a host is always connected to itself")
        self._up.discard(node)
        for resident in self.residents.values():
            resident.tried = {copy: edge for copy, edge in resident.tried.items() if edge.node != node}
            for copy in [copy for copy, edge in resident.edges.items() if edge.node == node]:
                self._close(resident, copy)

    def _begin(self, resident: Resident) -> None:
        """The copy has its state: open its edges, and let those above know that they may open theirs."""
        if resident.begun:
            return
        resident.begun = True
        self._try_all(resident)
        above = {
            node
            for partition in self.topology.consumers(resident.copy.partition)
            for slot in Slot
            if (partition not in ENDS or slot is OUTER)
            and (node := self._node_of(Copy(partition, slot))) is not None
        }
        for node in sorted(above):
            self._dispatch(node, Here(resident.copy, resident.epoch))

    def _try_all(self, resident: Resident, node: str | None = None) -> None:
        if resident.begun:
            for producer in resident.producers:
                if node is None or node == self._node_of(producer):
                    self._try(resident, producer)

    def _try(self, resident: Resident, producer: Copy) -> None:
        node = self._node_of(producer)
        if node is None or node not in self._up or producer in resident.edges:
            return
        self._serial += 1
        resident.tried[producer] = Opened(self._serial, node)
        self._dispatch(node, resident.attach(producer, self._seat_epoch(producer), self._serial))

    def _close(self, resident: Resident, copy: Copy) -> None:
        del resident.edges[copy]
        self._drive(resident, Edge(copy.partition, Detached(copy.slot)))

    # --- parcels -----------------------------------------------------------------------------------------

    def _arrived(self, node: str, parcel: Parcel) -> None:
        match parcel:
            case Relay(view):
                # It need not be told what it has told.
                self._told[node] = max(self._told.get(node, 0), view.epoch)
                self._relayed(view)
            case Here(copy, epoch):
                if self._sits(copy, node, epoch):
                    for resident in self.residents.values():
                        if resident.begun and copy in resident.producers:
                            self._try(resident, copy)
            case Attach():
                self._attach(node, parcel)
            case Welcome():
                self._welcome(node, parcel)
            case Say(sender, to, serial, messages):
                speaks_to = self.residents.get(to)
                if speaks_to is not None and speaks_to.edges.get(sender) == Opened(serial, node):
                    for message in messages:
                        self._drive(speaks_to, Edge(sender.partition, From(sender.slot, message)))

    def _relayed(self, view: FluxView) -> None:
        if self.view is None:
            return
        try:
            for partition in view.partitions if view.epoch > self.view.epoch else ():
                changes(self.view.partitions[partition], view.partitions[partition])
        except (BrokenInvariant, KeyError) as problem:
            raise PeerError(f"view {view.epoch} does not follow {self.view.epoch}: {problem}") from problem
        self._see(view)

    def _attach(self, node: str, parcel: Attach) -> None:
        resident = self._resident(parcel.to, parcel.to_epoch)
        if resident is None or not resident.begun or not self._sits(parcel.sender, node, parcel.epoch):
            # It will try again when what is missing is there.
            return
        if parcel.sender.partition not in resident.ends:
            raise PeerError(f"{parcel.sender} takes nothing from {parcel.to}")
        if parcel.sender in resident.edges:
            self._close(resident, parcel.sender)
        resident.edges[parcel.sender] = Opened(parcel.serial, node)
        self._dispatch(node, Welcome(parcel.to, parcel.sender, parcel.serial, resident.produced_version))
        stands = Attached(parcel.sender.slot, parcel.through, parcel.version, parcel.checkpoint)
        self._drive(resident, Edge(parcel.sender.partition, stands))

    def _welcome(self, node: str, parcel: Welcome) -> None:
        resident = self.residents.get(parcel.to)
        opened = Opened(parcel.serial, node)
        if resident is None or resident.tried.get(parcel.sender) != opened:
            return
        del resident.tried[parcel.sender]
        resident.edges[parcel.sender] = opened
        stands = Attached(parcel.sender.slot, version=parcel.version)
        self._drive(resident, Edge(parcel.sender.partition, stands))

    def _drive(self, resident: Resident, event: object) -> None:
        self._carry_out(resident, resident.machine.handle(event))

    def _carry_out(self, resident: Resident, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case SendTo(copy, message):
                    edge = resident.edges.get(copy)
                    if edge is not None:
                        self._dispatch(edge.node, Say(resident.copy, copy, edge.serial, (message,)))
                case _:
                    self._out.append(Carry(resident.copy, resident.epoch, instruction))

    def _dispatch(self, node: str, parcel: Parcel) -> None:
        if node not in self._up:
            return
        if self.view is not None and node != self.name and self._told.get(node, 0) < self.view.epoch:
            self._told[node] = self.view.epoch
            self._out.append(Dispatch(node, Relay(self.view)))
        last = self._out[-1] if self._out else None
        match last, parcel:
            case Dispatch(to, Say(a, b, serial, before)), Say(c, d, again, more) if (to, a, b, serial) == (
                node,
                c,
                d,
                again,
            ):
                self._out[-1] = Dispatch(node, Say(a, b, serial, before + more))
            case _:
                self._out.append(Dispatch(node, parcel))

    def check(self) -> None:
        for resident in self.residents.values():
            resident.machine.check()
            for copy, edge in resident.edges.items():
                require(edge.node in self._up, f"an edge to {copy} stands without its connection")
                require(copy.slot in resident.ends[copy.partition].status, f"{copy} is no neighbour")
