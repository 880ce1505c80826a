"""A partitioned flow under chance: hosts with their copies of partitions, connections, and faults.

    ingress -> first fragment, P partitions x 2 copies -> next fragment, ... -> egress

Hosts are the very objects that real processes drive. A step takes one thing that could happen next: what a
connection brings, a finished group, a moved state, a view on its way to somebody. Chance decides which; the
seed decides chance. Faults are kills of nodes, broken connections, crashes of the gateway, newcomers,
planned moves and drains.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from itertools import combinations
from random import Random

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.controller import MemberJoined, MemberLeft
from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.exchange import ProducedFor
from understudy.core.flux_controller import (
    CopyCaughtUp,
    Declined,
    Drain,
    FluxController,
    FluxEvent,
    FluxView,
    MoveCopy,
)
from understudy.core.host import GATEWAY, OUTER, Host, Limits
from understudy.core.instructions import (
    CaughtUp,
    Instruction,
    RequestMove,
    ShipPartition,
    TakeSnapshot,
)
from understudy.core.instructions import (
    Process as ProcessGroup,
)
from understudy.core.messages import MoverReady, PairAvailable, Processed, SnapshotTaken
from understudy.core.parcels import (
    Began,
    Carry,
    Cut,
    Dispatch,
    HostEvent,
    HostInstruction,
    Inside,
    LeaveSeat,
    ParcelFrom,
    PeerDown,
    PeerUp,
    TakeSeat,
    ViewSeen,
)
from understudy.core.partition import Copy
from understudy.core.topology import EGRESS, INGRESS, chain_of
from understudy.core.view import Status
from understudy.sim.checkers import Violation
from understudy.sim.exchange_flow import Shape, reference, share
from understudy.sim.exchange_process import (
    Down,
    Fetch,
    Group,
    Process,
    Shipment,
    Snap,
    Start,
    Transfer,
    Up,
    Worker,
)


class ExchangeWorld:
    """Levels of partition pairs between an ingress and an egress."""

    def __init__(self, seed: int, shape: Shape | None = None) -> None:
        self.seed = seed
        self.shape = shape or Shape()
        self.random = Random(f"exchange/{seed}")
        self.topology = chain_of(**{f"f{n}": count for n, count in enumerate(self.shape.partitions)})
        self.limits = Limits(
            output_buckets_max=self.shape.output_buckets_max, group_buckets_max=self.shape.group_buckets_max
        )
        self.inputs = self._inputs()
        self.expected = reference(self.topology.levels, self.inputs)
        self.views: list[FluxView] = []
        self.processes: dict[str, Process] = {}
        self.links: dict[tuple[str, str], deque[Transfer]] = {}
        self.up: dict[tuple[str, str], int] = {}
        self.connections = 0
        self.controller = FluxController(self.topology, self.shape.nodes)
        self.joined = 0
        self.sealed = 0
        self.trimmed: BucketId = NOTHING
        self.delivered: BucketId = NOTHING
        self.caught_up = 0
        self.messages = 0
        self.faults: Counter[str] = Counter()
        self.steps = 0
        self.story: deque[str] = deque(maxlen=80)
        self._touched: dict[str, Process] = {}
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
        self._add_process(GATEWAY)
        for _ in range(self.shape.nodes + self.shape.spares):
            self.add_node()

    def _add_process(self, name: str) -> None:
        host = Host(name, self.topology, self.limits, delivered=self.delivered)
        self.processes[name] = Process(host)
        self.links[name, name] = deque()
        for other in self.processes:
            if other != name:
                self._connect(name, other)

    @property
    def nodes(self) -> list[str]:
        return [name for name in self.processes if name != GATEWAY]

    # --- connections -------------------------------------------------------------------------------------

    def _connect(self, one: str, other: str) -> None:
        self.connections += 1
        self.up[_pair(one, other)] = self.connections
        for here, there in ((one, other), (other, one)):
            # An end notices that the last connection is gone before it hears of the next.
            self.links.setdefault((here, there), deque()).append(Transfer(self.connections, Up()))

    def _break(self, one: str, other: str) -> None:
        """The connection is gone; a part of what was on its way still arrives, then each end notices."""
        connection = self.up.pop(_pair(one, other))
        for here, there in ((one, other), (other, one)):
            queue = self.links.pop((here, there), deque())
            if there not in self.processes:
                continue
            # Of what belongs to this connection only: the end of an earlier one may still be on its way.
            sent = [at for at, each in enumerate(queue) if each.connection == connection]
            kept = list(queue)[: self.random.randint(sent[0], len(queue)) if sent else len(queue)]
            self.links[here, there] = deque([*kept, Transfer(connection, Down())])

    # --- running -----------------------------------------------------------------------------------------

    def choices(self) -> list[tuple[str, object]]:
        found: list[tuple[str, object]] = [("link", key) for key, queue in self.links.items() if queue]
        found += [
            ("work", worker)
            for process in self.processes.values()
            for worker in process.workers.values()
            if worker.work
        ]
        found += [("view", p) for p in self.processes.values() if p.view_epoch < len(self.views)]
        ingress = self.processes[GATEWAY].host.ingress
        if self.sealed < len(self.inputs) and ingress is not None and not ingress.full:
            found.append(("seal", None))
        return found

    def step(self) -> bool:
        """Let one thing happen; False when nothing can."""
        found = self.choices()
        if not found:
            return False
        self.steps += 1
        what, which = self.random.choice(found)
        self._judged(lambda: self._take(what, which))
        return True

    def _judged(self, do: object) -> None:
        try:
            do()  # type: ignore[operator]
            for process in self._touched.values():
                process.host.check()
            self._touched.clear()
        except (PeerError, BrokenInvariant) as error:
            raise Violation("sound", self.told(str(error))) from error

    def _take(self, what: str, which: object) -> None:
        match what, which:
            case "link", (str() as sender, str() as receiver):
                self._receive(sender, receiver)
            case "work", Worker() as worker:
                self._work(worker)
            case "view", Process() as process:
                self._drive(process, ViewSeen(self.views[self._epoch_for(process) - 1]))
                if process.name == GATEWAY and self.trimmed_anew(process):
                    self._recover(process)
            case _:
                self._seal()

    def _epoch_for(self, process: Process) -> int:
        """Whoever starts reads the newest view; of later ones, some are never seen."""
        epoch = self.random.randint(process.view_epoch + 1, len(self.views))
        return epoch if process.view_epoch else len(self.views)

    def trimmed_anew(self, gateway: Process) -> bool:
        """Whether the gateway's ingress exists and has been given nothing yet."""
        ingress = gateway.host.ingress
        return ingress is not None and all(
            outlet.buffer.produced_through == NOTHING for outlet in ingress.outlets.values()
        )

    def _recover(self, gateway: Process) -> None:
        """A gateway that starts puts in again what its log still has."""
        for bucket in self.inputs[: self.sealed]:
            if bucket.number > self.trimmed:
                self._put_in(gateway, bucket)

    def _receive(self, sender: str, receiver: str) -> None:
        transfer = self.links[sender, receiver].popleft()
        process = self.processes.get(receiver)
        if process is None:
            return
        if sender == receiver:
            assert not isinstance(transfer.what, Up | Down)
            self._drive(process, ParcelFrom(sender, transfer.what))
            return
        known = process.connections.get(sender)
        match transfer.what:
            case Up():
                process.connections[sender] = transfer.connection
                self._drive(process, PeerUp(sender))
            case Down():
                if known == transfer.connection:
                    del process.connections[sender]
                    self._drive(process, PeerDown(sender))
            case parcel:
                if known == transfer.connection:
                    self.story.append(f"{receiver} <- {sender}: {parcel}")
                    self._drive(process, ParcelFrom(sender, parcel))

    def _seal(self) -> None:
        bucket = self.inputs[self.sealed]
        self.sealed += 1
        self._put_in(self.processes[GATEWAY], bucket)

    def _put_in(self, gateway: Process, bucket: Bucket) -> None:
        rows = bucket.payload if isinstance(bucket.payload, tuple) else ()
        for partition, own in share(rows, list(self.topology.consumers(INGRESS))).items():
            put = ProducedFor(partition, Bucket(bucket.number, own or None, len(own)))
            self._drive(gateway, Inside(Copy(INGRESS, OUTER), 0, (put,)))

    def _drive(self, process: Process, event: HostEvent) -> None:
        self._touched[process.name] = process
        self._carry_out(process, process.host.handle(event))
        if process.name == GATEWAY and process.host.ingress is not None:
            self.trimmed = max(self.trimmed, process.host.ingress.trimmed_through)

    def _carry_out(self, process: Process, instructions: Iterable[HostInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Dispatch(node, parcel):
                    connection = process.connections.get(node, 0)
                    if node == process.name or self.up.get(_pair(process.name, node)) == connection:
                        self.messages += 1
                        self.links[process.name, node].append(Transfer(connection, parcel))
                case TakeSeat(copy, epoch, status):
                    worker = Worker(copy, epoch)
                    worker.work.append(Fetch() if status is Status.STDBY else Start())
                    process.workers[copy] = worker
                case LeaveSeat(copy):
                    process.workers.pop(copy, None)
                case Carry(copy, epoch, inner):
                    if copy.partition == EGRESS:
                        process.workers.setdefault(copy, Worker(copy, epoch))
                    self._carry(process.workers[copy], inner)
                case Cut(node, why):
                    raise Violation("sound", self.told(f"{process.name} cuts off {node}: {why}"))

    def _carry(self, worker: Worker, instruction: Instruction) -> None:
        match instruction:
            case ProcessGroup(buckets):
                worker.work.append(Group(buckets))
            case TakeSnapshot():
                # For the one whose mover was met, not for whoever calls meanwhile.
                worker.moving_to = worker.met
                worker.work.append(Snap())
            case ShipPartition(state):
                assert worker.snapshot is not None
                sums = tuple(sorted(worker.snapshot.items()))
                worker.work.append(Shipment(state, sums, worker.moving_to))
            case CaughtUp():
                self.caught_up += 1
                self._decide(CopyCaughtUp(worker.copy, worker.epoch))
            case RequestMove():
                # The movers meet when the standby's asks.
                pass
            case _:
                raise TypeError(f"nobody here can carry out {instruction}")

    # --- engines -----------------------------------------------------------------------------------------

    def _work(self, worker: Worker) -> None:
        process = next(p for p in self.processes.values() if p.workers.get(worker.copy) is worker)
        match worker.work.popleft():
            case Start():
                self._drive(process, Began(worker.copy, worker.epoch))
            case Fetch():
                self._fetch(worker)
            case Group(buckets):
                self._process(process, worker, buckets)
                self._drive(process, Inside(worker.copy, worker.epoch, (Processed(),)))
            case Snap():
                worker.snapshot = dict(worker.engine.sums)
                self._drive(process, Inside(worker.copy, worker.epoch, (SnapshotTaken(),)))
            case Shipment() as shipment:
                self._ship(worker, shipment)

    def _process(self, process: Process, worker: Worker, buckets: tuple[Bucket, ...]) -> None:
        if worker.copy.partition == EGRESS:
            self._deliver(buckets)
            return
        above = list(self.topology.consumers(worker.copy.partition))
        last = buckets[-1].number
        for bucket in buckets:
            parts = bucket.payload if isinstance(bucket.payload, tuple) else ()
            rows = [row for _, payload in parts for row in payload]
            for partition, own in share(worker.engine.advance(rows), above).items():
                if own or bucket.number == last:
                    put = ProducedFor(partition, Bucket(bucket.number, own or None, len(own)))
                    self._drive(process, Inside(worker.copy, worker.epoch, (put,)))

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

    def _worker_of(self, copy: Copy) -> tuple[Process, Worker] | None:
        """Who sits in a copy's seat, as the controller last decided."""
        seat = self.views[-1].seat(copy)
        process = self.processes.get(seat.node)
        worker = process.workers.get(copy) if process is not None else None
        if process is None or worker is None or worker.epoch != seat.epoch:
            return None
        return process, worker

    def _fetch(self, standby: Worker) -> None:
        """A standby's mover asks; it is answered once the active copy has seen that it may."""
        found = self._worker_of(standby.copy.other)
        if found is not None:
            process, active = found
            view = process.host.view
            seen = view is not None and view.seat(standby.copy).epoch == standby.epoch
            resident = process.host.residents.get(active.copy)
            if seen and resident is not None and resident.begun:
                active.met = standby.epoch
                self._drive(process, Inside(active.copy, active.epoch, (PairAvailable(),)))
                self._drive(process, Inside(active.copy, active.epoch, (MoverReady(),)))
                return
        standby.work.append(Fetch())

    def _ship(self, active: Worker, shipment: Shipment) -> None:
        found = self._worker_of(active.copy.other)
        if found is None or found[1].epoch != shipment.to_epoch:
            return
        process, standby = found
        resident = process.host.residents.get(standby.copy)
        if resident is None or resident.begun:
            return
        standby.engine.sums = dict(shipment.sums)
        self._drive(process, Inside(standby.copy, standby.epoch, (shipment.state,)))

    # --- the controller ----------------------------------------------------------------------------------

    def _decide(self, event: FluxEvent) -> None:
        """The controller decides at once; everybody else hears of it in time."""
        for done in self.controller.handle(event):
            if isinstance(done, Declined):
                self.story.append(f"DECLINED {done.why}")
                continue
            if done.view.lost is not None:
                raise Violation("survivable", self.told(f"a complete copy lived, yet {done.view.lost}"))
            self.views.append(done.view)

    def add_node(self) -> None:
        self.joined += 1
        name = f"n{self.joined}"
        self._add_process(name)
        self._decide(MemberJoined(name, self.joined))

    # --- faults ------------------------------------------------------------------------------------------

    def may_kill(self, node: str) -> bool:
        """Whether every partition has a copy elsewhere that holds its whole state."""
        for copy in self.views[-1].copies_on(node) if self.views else []:
            if self.views[-1].seat(copy).status is Status.STDBY:
                continue
            other = self.views[-1].seat(copy.other)
            if other.status is not Status.ACTIVE or other.node == node:
                return False
        return True

    def kill(self, node: str) -> None:
        """The node is gone with everything on it."""
        self.story.append(f"KILL {node}")
        self.faults["kill"] += 1
        self._end(node)
        self._decide(MemberLeft(node))

    def crash_gateway(self) -> None:
        """The gateway is gone, and starts again with its log and with what the sink holds."""
        self.story.append("CRASH gateway")
        self.faults["gateway crash"] += 1
        self._end(GATEWAY)
        self._add_process(GATEWAY)

    def _end(self, name: str) -> None:
        del self.processes[name]
        for other in self.processes:
            self._break(name, other)
        for key in [key for key in self.links if key[1] == name]:
            del self.links[key]

    def drain(self, node: str) -> None:
        """An operator wants the node empty. It stays a member and is given nothing any more."""
        self.story.append(f"DRAIN {node}")
        self.faults["drain"] += 1
        self._decide(Drain(node))

    def move(self, copy: Copy, node: str) -> None:
        """An operator wants a copy to sit elsewhere."""
        self.story.append(f"MOVE {copy} to {node}")
        self.faults["move"] += 1
        self._decide(MoveCopy(copy, node))

    def break_one(self) -> None:
        one, other = self.random.choice(sorted(combinations(sorted(self.processes), 2)))
        self.story.append(f"BREAK {one} {other}")
        self.faults["break"] += 1
        self._break(one, other)
        self._connect(one, other)

    def told(self, what: str) -> str:
        return f"seed {self.seed}: {what}\nlast steps:\n  " + "\n  ".join(self.story)


def _pair(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)
