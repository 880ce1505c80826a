"""A partitioned flow under chance: the machines of the exchange, levels of partition pairs, and faults.

    ingress -> first fragment, P partitions x 2 copies -> next fragment, ... -> egress

A step takes one thing that could happen next: a message from one connection, a finished group, a moved
state, a view on its way to somebody. Chance decides which; the seed decides chance. Faults are kills of
nodes, broken connections, and newcomers. Every message brings the view that its sender acts on.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from random import Random

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.controller import MemberJoined, MemberLeft
from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.exchange import Edge, ProducedFor
from understudy.core.f_cons import FCons
from understudy.core.f_prod import FProd
from understudy.core.flux_controller import CopyCaughtUp, Declined, Drain, FluxController, FluxEvent
from understudy.core.inlet import Inlet
from understudy.core.instructions import (
    CaughtUp,
    Instruction,
    Process,
    RequestMove,
    SendTo,
    ShipPartition,
    TakeSnapshot,
)
from understudy.core.messages import (
    Attached,
    Detached,
    From,
    MoverReady,
    PairAvailable,
    PairFailed,
    Processed,
    SeatConfirmed,
    SnapshotTaken,
)
from understudy.core.outlet import Outlet
from understudy.core.partition import Copy, Partition
from understudy.core.partition_replica import PartitionReplica
from understudy.core.view import Activated, Avail, Change, Fail, Seat, Seated, Slot, Status, View, changes
from understudy.sim.checkers import Violation
from understudy.sim.exchange_flow import Shape, Sums, reference, share
from understudy.sim.exchange_member import Envelope, Member, Shipment

INGRESS, EGRESS = Partition("ingress"), Partition("egress")
OUTER = Slot.PRIM
Seats = Mapping[Partition, View]


class ExchangeWorld:
    """Levels of partition pairs between an ingress and an egress that never fail."""

    def __init__(self, seed: int, shape: Shape | None = None) -> None:
        self.seed = seed
        self.shape = shape or Shape()
        self.random = Random(f"exchange/{seed}")
        counts = self.shape.partitions
        self.levels = [[Partition(f"f{n}", i) for i in range(count)] for n, count in enumerate(counts)]
        self.inputs = self._inputs()
        self.expected = reference(self.levels, self.inputs)
        self.views: list[Seats] = []
        self.members: dict[Copy, Member] = {}
        self.links: dict[tuple[Copy, Copy], deque[Envelope]] = {}
        self.up: dict[frozenset[Copy], int] = {}
        self.connections = 0
        self.controller = FluxController(self.levels, self.shape.nodes)
        self.nodes: list[str] = []
        self.joined = 0
        self.sealed = 0
        self.delivered: BucketId = NOTHING
        self.caught_up = 0
        self.faults: Counter[str] = Counter()
        self.steps = 0
        self.story: deque[str] = deque(maxlen=80)
        self._touched: dict[int, Member] = {}
        self._begin()

    # --- set-up ------------------------------------------------------------------------------------------

    def _inputs(self) -> list[Bucket]:
        numbers = sorted(self.random.sample(range(2 * self.shape.buckets), self.shape.buckets))
        made = []
        for number in numbers:
            rows = [
                (self.random.randrange(20), self.random.randrange(9)) for _ in range(self.random.randrange(4))
            ]
            made.append(Bucket(number, tuple(rows) or None, len(rows)))
        return made

    def _begin(self) -> None:
        for _ in range(self.shape.nodes + self.shape.spares):
            self.add_node()
        self._add_end(INGRESS, FProd("ingress", self._pairs(self.levels[0])))
        never_full = FProd("sink", {EGRESS: {OUTER: Status.ACTIVE}})
        self._add_end(EGRESS, FCons("egress", never_full, OUTER, self._pairs(self.levels[-1])))
        self._connect_all()

    def _add_end(self, partition: Partition, machine: FCons | FProd) -> None:
        copy = Copy(partition, OUTER)
        self.members[copy] = Member(copy, partition.fragment, machine, view_epoch=len(self.views))

    def _pairs(self, level: list[Partition]) -> dict[Partition, dict[Slot, Status]]:
        if level in ([INGRESS], [EGRESS]):
            return {level[0]: {OUTER: Status.ACTIVE}}
        seats = self.views[-1]
        return {p: {slot: seat.status for slot, seat in seats[p].seats.items()} for p in level}

    def _around(self, partition: Partition) -> tuple[list[Partition], list[Partition]]:
        """Who produces for a partition, and who consumes what it makes."""
        if partition == INGRESS:
            return [], self.levels[0]
        if partition == EGRESS:
            return self.levels[-1], []
        at = next(n for n, level in enumerate(self.levels) if partition in level)
        below = self.levels[at - 1] if at else [INGRESS]
        above = self.levels[at + 1] if at + 1 < len(self.levels) else [EGRESS]
        return below, above

    def _join(self, copy: Copy, seat: Seat) -> None:
        below, above = self._around(copy.partition)
        machine = PartitionReplica(
            copy,
            seat.status,
            self._pairs(below),
            self._pairs(above),
            group_buckets_max=self.shape.group_buckets_max,
            output_buckets_max=self.shape.output_buckets_max,
        )
        member = Member(copy, seat.node, machine, epoch=seat.epoch, view_epoch=len(self.views))
        self.members[copy] = member
        if seat.status is Status.STDBY:
            self._drive(member, PairAvailable())

    # --- connections -------------------------------------------------------------------------------------

    def _connect_all(self) -> None:
        for producer in list(self.members.values()):
            for partition in self._around(producer.copy.partition)[1]:
                for slot in Slot:
                    consumer = self.members.get(Copy(partition, slot))
                    if consumer is not None:
                        self._connect(producer, consumer)

    def _connect(self, one: Member, other: Member) -> None:
        pair = frozenset((one.copy, other.copy))
        if pair in self.up or not (one.has_state and other.has_state):
            return
        self.connections += 1
        self.up[pair] = self.connections
        for here, there in ((one, other), (other, one)):
            # An end notices that the last connection is gone before it hears of the next.
            queue = self.links.setdefault((here.copy, there.copy), deque())
            queue.append(here.says(self.connections, here.stands()))

    def _break(self, pair: frozenset[Copy]) -> None:
        """The connection is gone; a part of what was on its way still arrives, then each end notices."""
        serial = self.up.pop(pair)
        one, other = sorted(pair, key=str)
        for here, there in ((one, other), (other, one)):
            queue = self.links.pop((here, there), deque())
            if there not in self.members:
                continue
            kept = list(queue)[: self.random.randint(0, len(queue))]
            ended = Envelope(here, 0, serial, 0, Detached(here.slot))
            self.links[here, there] = deque([*kept, ended])

    # --- running -----------------------------------------------------------------------------------------

    def choices(self) -> list[tuple[str, object]]:
        found: list[tuple[str, object]] = [("link", key) for key, queue in self.links.items() if queue]
        found += [("work", m.copy) for m in self.members.values() if m.work]
        found += [("view", m.copy) for m in self.members.values() if m.view_epoch < len(self.views)]
        ingress = self.members[Copy(INGRESS, OUTER)].machine
        assert isinstance(ingress, FProd)
        if self.sealed < len(self.inputs) and not ingress.full:
            found.append(("seal", None))
        return found

    def step(self) -> bool:
        """Let one thing happen; False when nothing can."""
        found = self.choices()
        if not found:
            return False
        self.steps += 1
        what, which = self.random.choice(found)
        try:
            self._take(what, which)
            for member in self._touched.values():
                member.machine.check()
            self._touched.clear()
        except (PeerError, BrokenInvariant) as error:
            raise Violation("sound", self.told(str(error))) from error
        return True

    def _take(self, what: str, which: object) -> None:
        match what, which:
            case "link", (Copy() as sender, Copy() as receiver):
                self._receive(sender, receiver)
            case "work", Copy() as copy:
                self._work(self.members[copy])
            case "view", Copy() as copy:
                self._look(self.members[copy], self.members[copy].view_epoch + 1)
            case _:
                self._seal()

    def _receive(self, sender: Copy, receiver: Copy) -> None:
        queue = self.links[sender, receiver]
        envelope = queue.popleft()
        member = self.members.get(receiver)
        if not queue and frozenset((sender, receiver)) not in self.up:
            del self.links[sender, receiver]
        if member is None:
            return
        self._look(member, envelope.epoch)
        if receiver not in self.members or not self._heard(member, envelope):
            return
        self.story.append(f"{receiver} <- {sender}: {envelope.event}")
        self._drive(member, Edge(sender.partition, envelope.event))
        if isinstance(envelope.event, Detached):
            self._connect_all()

    def _heard(self, member: Member, envelope: Envelope) -> bool:
        """Whether the receiver still has anything to do with the sender."""
        ends = self._ends(member)
        sender = envelope.sender
        end = ends.get(sender.partition)
        if end is None or end.status[sender.slot] is Status.DEAD:
            return False
        if isinstance(envelope.event, Attached):
            if not self._holds(member, envelope):
                return False
            member.known[sender] = envelope.serial
            return True
        known = member.known.get(sender) == envelope.serial
        if known and isinstance(envelope.event, Detached):
            del member.known[sender]
        return known

    def _holds(self, member: Member, envelope: Envelope) -> bool:
        """Whether the sender sits where it says, as the receiver sees it."""
        view = self.views[member.view_epoch - 1].get(envelope.sender.partition)
        return view is None or view.seats[envelope.sender.slot].epoch == envelope.seat_epoch

    @staticmethod
    def _ends(member: Member) -> Mapping[Partition, Inlet | Outlet]:
        machine = member.machine
        if isinstance(machine, FProd):
            return dict(machine.outlets)
        if isinstance(machine, FCons):
            return dict(machine.inlets)
        return {**machine.below.inlets, **machine.above.outlets}

    def _seal(self) -> None:
        bucket = self.inputs[self.sealed]
        self.sealed += 1
        member = self.members[Copy(INGRESS, OUTER)]
        rows = bucket.payload if isinstance(bucket.payload, tuple) else ()
        for partition, own in share(rows, self.levels[0]).items():
            self._drive(member, ProducedFor(partition, Bucket(bucket.number, own or None, len(own))))

    def _drive(self, member: Member, event: object) -> None:
        self._touched[id(member)] = member
        self._carry_out(member, member.machine.handle(event))

    def _carry_out(self, member: Member, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case SendTo(copy, message):
                    serial = self.up.get(frozenset((member.copy, copy)))
                    if serial is not None and serial == member.known.get(copy):
                        event = From(member.copy.slot, message)
                        self.links[member.copy, copy].append(member.says(serial, event))
                case ShipPartition(state):
                    assert member.snapshot is not None
                    member.work.append(Shipment(state, dict(member.snapshot.sums), member.moving_to))
                case Process() | TakeSnapshot() | RequestMove():
                    if isinstance(instruction, TakeSnapshot):
                        # For the one whose mover was met, not for whoever calls meanwhile.
                        member.moving_to = member.met
                    member.work.append(instruction)
                case CaughtUp():
                    self._folded_in(member)
                case _:
                    raise TypeError(f"nobody here can carry out {instruction}")

    def _work(self, member: Member) -> None:
        match member.work.popleft():
            case Process(buckets):
                self._process(member, buckets)
                self._drive(member, Processed())
            case TakeSnapshot():
                member.snapshot = Sums()
                member.snapshot.sums = dict(member.engine.sums)
                self._drive(member, SnapshotTaken())
            case Shipment() as shipment:
                self._ship(member, shipment)
            case RequestMove(sending):
                self._meet(member, sending)
            case other:
                raise TypeError(f"no work: {other}")

    def _process(self, member: Member, buckets: tuple[Bucket, ...]) -> None:
        if member.copy.partition == EGRESS:
            self._deliver(buckets)
            return
        _, above = self._around(member.copy.partition)
        last = buckets[-1].number
        for bucket in buckets:
            parts = bucket.payload if isinstance(bucket.payload, tuple) else ()
            rows = [row for _, payload in parts for row in payload]
            shares = share(member.engine.advance(rows), above)
            for partition, own in shares.items():
                if own or bucket.number == last:
                    out = Bucket(bucket.number, own or None, len(own))
                    self._drive(member, ProducedFor(partition, out))

    def _deliver(self, buckets: tuple[Bucket, ...]) -> None:
        for bucket in buckets:
            parts = bucket.payload if isinstance(bucket.payload, tuple) else ()
            rows = tuple(sorted(row for _, payload in parts for row in payload))
            missing = [n for n in self.expected if self.delivered < n < bucket.number]
            if missing:
                raise Violation("loss-free", self.told(f"{missing} were skipped before {bucket.number}"))
            if bucket.number <= self.delivered:
                raise Violation("dup-free", self.told(f"{bucket.number} came after {self.delivered}"))
            if rows != self.expected.get(bucket.number, ()):
                wanted = self.expected.get(bucket.number)
                raise Violation("contents", self.told(f"{bucket.number} holds {rows}, not {wanted}"))
            self.delivered = bucket.number

    # --- moving state ------------------------------------------------------------------------------------

    def _meet(self, member: Member, sending: bool) -> None:
        """The movers of the two copies meet when both have asked."""
        other = self.members.get(member.copy.other)
        if sending or other is None:
            return
        if not other.has_state:
            member.work.append(RequestMove(sending=False))
        elif self._sees(other, member):
            other.met = member.epoch
            self._drive(other, MoverReady())
        else:
            member.work.append(RequestMove(sending=False))

    def _sees(self, active: Member, standby: Member) -> bool:
        seat = self.views[active.view_epoch - 1][standby.copy.partition].seats[standby.copy.slot]
        return seat.node == standby.node and seat.epoch == standby.epoch

    def _ship(self, member: Member, shipment: Shipment) -> None:
        standby = self.members.get(member.copy.other)
        if standby is None or standby.has_state or standby.epoch != shipment.to_epoch:
            return
        standby.engine.sums = dict(shipment.sums)
        self._drive(standby, shipment.state)
        self._connect_all()

    # --- the controller ----------------------------------------------------------------------------------

    def _decide(self, event: FluxEvent) -> None:
        """The controller decides at once; everybody else hears of it in time."""
        for done in self.controller.handle(event):
            if isinstance(done, Declined):
                self.story.append(f"DECLINED {done.why}")
                continue
            view = done.view
            if view.lost is not None:
                raise Violation("survivable", self.told(f"a complete copy lived, yet {view.lost}"))
            self.views.append(view.partitions)
            for copy, member in list(self.members.items()):
                if copy.partition in view.partitions and not view.holds(copy, member.node, member.epoch):
                    self._end(copy)
            for partition, seats in view.partitions.items():
                for slot, seat in seats.seats.items():
                    if seat.alive and seat.epoch == view.epoch:
                        self._join(Copy(partition, slot), seat)

    def add_node(self) -> None:
        self.joined += 1
        self.nodes.append(f"n{self.joined}")
        self._decide(MemberJoined(f"n{self.joined}", self.joined))

    def _look(self, member: Member, epoch: int) -> None:
        """The member sees the views up to this one, one after the other."""
        while member.view_epoch < epoch:
            old, new = self.views[member.view_epoch - 1], self.views[member.view_epoch]
            member.view_epoch += 1
            for partition in (
                *self._around(member.copy.partition)[0],
                *self._around(member.copy.partition)[1],
            ):
                if partition in new and partition in old:
                    for change in changes(old[partition], new[partition]):
                        self._told_of(member, partition, change)
            own = member.copy.partition
            if own in new:
                self._own_change(member, changes(old[own], new[own]))

    def _told_of(self, member: Member, partition: Partition, change: Change) -> None:
        if isinstance(change, Seated):
            return
        if isinstance(change, Fail):
            # Whatever the dead one said and has not arrived is void.
            member.known.pop(Copy(partition, change.slot), None)
        self._drive(member, Edge(partition, change))

    def _own_change(self, member: Member, own: list[Change]) -> None:
        for change in own:
            match change:
                case Fail(slot) if slot is not member.copy.slot:
                    self._drive(member, PairFailed())
                case Avail(slot) if slot is not member.copy.slot:
                    self._drive(member, PairAvailable())
                case Activated(slot) if slot is member.copy.slot:
                    self._drive(member, SeatConfirmed())

    def _folded_in(self, member: Member) -> None:
        self.caught_up += 1
        self._decide(CopyCaughtUp(member.copy, member.epoch))

    # --- faults ------------------------------------------------------------------------------------------

    def may_kill(self, node: str) -> bool:
        """Whether every partition has a copy elsewhere that holds its whole state."""
        for copy, member in self.members.items():
            if member.node != node:
                continue
            other = self.members.get(copy.other)
            seat = self.views[-1][copy.partition].seats[copy.slot]
            if seat.status is Status.STDBY:
                continue
            if other is None or other.node == node or not self._is_active(other):
                return False
        return True

    def _is_active(self, member: Member) -> bool:
        seat = self.views[-1][member.copy.partition].seats[member.copy.slot]
        return seat.status is Status.ACTIVE and seat.epoch == member.epoch

    def kill(self, node: str) -> None:
        """The node is gone with everything on it."""
        self.story.append(f"KILL {node}")
        self.faults["kill"] += 1
        self.nodes.remove(node)
        for copy in [copy for copy, member in self.members.items() if member.node == node]:
            self._end(copy)
        self._decide(MemberLeft(node))

    def drain(self, node: str) -> None:
        """An operator wants the node empty. It stays a member and is given nothing any more."""
        self.story.append(f"DRAIN {node}")
        self.faults["drain"] += 1
        self._decide(Drain(node))

    def _end(self, copy: Copy) -> None:
        """This copy is no more, whatever became of its node."""
        del self.members[copy]
        for pair in [pair for pair in self.up if copy in pair]:
            self._break(pair)
        for key in [key for key in self.links if key[1] == copy]:
            del self.links[key]

    def break_one(self) -> None:
        if self.up:
            pair = self.random.choice(sorted(self.up, key=lambda pair: sorted(map(str, pair))))
            self.story.append(f"BREAK {sorted(map(str, pair))}")
            self.faults["break"] += 1
            self._break(pair)

    def told(self, what: str) -> str:
        return f"seed {self.seed}: {what}\nlast steps:\n  " + "\n  ".join(self.story)
