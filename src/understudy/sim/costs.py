"""The world in virtual time: what everything takes, for flows of many nodes.

Everything that can happen has a moment: a parcel leaves when its process has handled what caused it and its
card is free, arrives a latency later, and waits for the receiver's card and thread. An engine works beside
its process's thread. The store tells one process after the other of a view. A dead process's peers notice at
once, and the leader decides when the session has ended.

Rows are not looked at: every partition sends an equal share of every bucket to each of its consumers.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

from understudy.core.bucket import Bucket, BucketId
from understudy.core.edge.messages import Data
from understudy.core.host.parcels import Parcel, Relay, Say
from understudy.core.host.places import GATEWAY
from understudy.core.shape.partition import Partition
from understudy.core.shape.topology import Topology
from understudy.core.view.view import Status, View
from understudy.sim.connections import Connection, Down, Up, calls
from understudy.sim.engine import Dealing, Rows, Shares, SimEngine
from understudy.sim.flow import Flow
from understudy.sim.process import Action, Process
from understudy.sim.setup import Setup
from understudy.sim.world import Choice, World

BUCKETS_MAX = 10_000
#: How many frames a parcel is, their heads together, and their bodies together, in bytes.
Sized = tuple[int, int, int]


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


# --- a flow without rows ---------------------------------------------------------------------------------


class EvenDealing(Dealing):
    """Every consumer partition gets an equal share of every bucket."""

    def __init__(self, consumers: Iterable[Partition], bucket_bytes: int) -> None:
        self._shares = tuple(sorted(consumers))
        self._share_bytes = bucket_bytes // max(1, len(self._shares))

    def shares(self, buckets: Iterable[tuple[BucketId, Rows]], through: BucketId) -> Shares:
        run = tuple(Bucket(number, b"", self._share_bytes) for number, _ in buckets)
        return tuple((partition, run) for partition in self._shares)


class EvenEngine(SimEngine):
    """Puts out as many buckets as it takes."""

    def advance(self, buckets: Iterable[Bucket]) -> Shares:
        numbers = [bucket.number for bucket in buckets]
        self.position = numbers[-1]
        return self.dealing.shares([(number, ()) for number in numbers], self.position)


@dataclass(frozen=True, eq=False)
class EvenFlow(Flow):
    """Buckets of this size, shared evenly."""

    bucket_bytes: int = 0

    @classmethod
    def of(cls, topology: Topology, bucket_bytes: int) -> EvenFlow:
        inputs = {source: [Bucket(n) for n in range(BUCKETS_MAX)] for source in topology.sources}
        return cls(topology, inputs, dict.fromkeys(topology.inputs, 0), bucket_bytes)

    @cached_property
    def dealings(self) -> dict[Partition, Dealing]:
        counts, topology = self.topology.counts, self.topology
        ends = [Partition(name) for name in topology.sources]
        return {
            p: EvenDealing(topology.consumers(p), self.bucket_bytes // counts.get(p.name, 1))
            for p in (*ends, *topology.partitions)
        }

    def engine(self, partition: Partition) -> SimEngine:
        return EvenEngine(self.dealings[partition], 0)


# --- the world -------------------------------------------------------------------------------------------


@dataclass
class _Busy:
    """When a process's card and its thread are free again."""

    sends_us: float = 0.0
    gets_us: float = 0.0
    works_us: float = 0.0


class TimedWorld(World):
    """`run_until` lets time pass. Nothing happens but what was caused by `seal` and `lose`."""

    def __init__(
        self,
        setup: Setup,
        spares: int,
        *,
        size_of: Callable[[str, str, Parcel], Sized],
        view_bytes: Callable[[View], int],
        costs: Costs | None = None,
    ) -> None:
        self.costs = costs or Costs()
        self.size_of, self.view_bytes = size_of, view_bytes
        self.now_us = 0.0
        self.counts = Counts()
        self.published: list[tuple[float, View]] = []
        #: When each process saw each epoch, and when each bucket was sealed and delivered.
        self.seen_us: dict[tuple[str, int], float] = {}
        self.sealed_us: dict[BucketId, float] = {}
        self.delivered_us: dict[BucketId, float] = {}
        #: The most buckets that each process ever kept.
        self.kept_at_most: Counter[str] = Counter()
        self._due: list[tuple[float, int, Choice]] = []
        self._number = 0
        self._busy: dict[str, _Busy] = {}
        self._waiting: set[Choice] = set()
        self._timer_numbers: dict[Choice, int] = {}
        self._store_sends_us = 0.0
        self._reading_bytes = 0
        super().__init__(setup)
        for _ in range(setup.nodes + spares):
            self.add_node()
        self._decide()

    # --- time --------------------------------------------------------------------------------------------

    def _post(self, at_us: float, choice: Choice) -> int:
        self._number += 1
        heapq.heappush(self._due, (max(at_us, self.now_us), self._number, choice))
        return self._number

    def run_until(self, done: Callable[[], bool] | float) -> None:
        """Until this moment, until something holds, or until nothing is left to happen."""
        while self._due:
            if isinstance(done, float):
                if self._due[0][0] > done:
                    self.now_us = done
                    return
            elif done():
                return
            self.now_us, number, choice = heapq.heappop(self._due)
            self._happen(number, choice)

    def _happen(self, number: int, choice: Choice) -> None:
        """Take a choice whose moment has come, if it is still one."""
        match choice:
            case "arrive", int(serial), str(to), int(size):
                busy = self._busy_of(to)
                # What comes from several at once takes turns.
                busy.gets_us = max(self.now_us, busy.gets_us + size / self.costs.bytes_per_us)
                self._post(busy.gets_us, ("get", serial, to, size))
            case "get", int(serial), str(to), int(size):
                connection = self.connections.get(serial)
                if connection is not None and to in self.processes and connection.queue(to):
                    self._reading_bytes = size
                    self._take(("deliver", serial, to))
            case "view", str(name), int(epoch):
                if name in self.processes and self.processes[name].view_epoch < epoch:
                    self._take(choice)
            case "timer", str(name), key, *_:
                process = self.processes.get(name)
                if (
                    process is not None
                    and self._timer_numbers.get(choice) == number
                    and key in process.timers
                ):
                    self._take(choice)
            case "call", str(caller), str(callee):
                self._waiting.discard(choice)
                able = caller in self.processes and callee in self.processes
                if able and (caller, callee) not in self.calls:
                    self._take(choice)
            case (("tell" | "expire"), str(name)):
                if choice[0] == "expire" or self.reports.get(name):
                    self._take(choice)
                    self._decide()
            case str(), str(name), *_:
                self._waiting.discard(choice)
                process = self.processes.get(name)
                if process is not None and choice in self._work(process):
                    self._take(choice)
                    self._note(name, choice)

    def _note(self, name: str, choice: Choice) -> None:
        if choice[0] != "produce":
            return
        if name == GATEWAY:
            through = min(self.disk.delivered.values())
            for number in [n for n in self.sealed_us if n <= through]:
                self.delivered_us.setdefault(number, self.now_us)
        else:
            self._keeps(name)

    # --- what is done to the flow ------------------------------------------------------------------------

    def seal(self) -> None:
        """The next bucket of every source."""
        self.sealed_us[len(self.sealed_us)] = self.now_us
        for source in self.disk.sealed:
            self._take(("feed", source))
        self._keeps(GATEWAY)

    def lose(self, name: str) -> None:
        """A node dies."""
        self.kill(name)
        self._post(self.now_us + self.costs.detect_us, ("expire", name))

    def _decide(self) -> None:
        """The leader takes no time."""
        while choices := self.store_choices():
            self._take(choices[0])

    # --- processes ---------------------------------------------------------------------------------------

    def _busy_of(self, name: str) -> _Busy:
        return self._busy.setdefault(name, _Busy())

    def _act(self, name: str, action: Action) -> None:
        process, busy = self.processes[name], self._busy_of(name)
        read_bytes, self._reading_bytes = self._reading_bytes, 0
        work_us = self.costs.parcel_us + read_bytes * self.costs.parcel_byte_us
        busy.works_us = max(busy.works_us, self.now_us) + work_us
        before, reported = process.host.view, len(self.reports.get(name, ()))
        super()._act(name, action)
        if process.host.view is not before:
            self.seen_us[name, process.view_epoch] = busy.works_us
            self._call_the_needed(name, busy.works_us)
        for _ in range(len(self.reports.get(name, ())) - reported):
            self._post(busy.works_us + self.costs.latency_us, ("tell", name))
        for choice in self._work(process):
            if choice not in self._waiting:
                self._waiting.add(choice)
                self._post(busy.works_us + self._takes_us(choice), choice)
        for key in process.fresh_timers:
            timer: Choice = ("timer", name, key, process.timers.get(key, 0))
            due_us = busy.works_us + 1_000 * process.timers.get(key, 0)
            self._timer_numbers[timer] = self._post(due_us, timer)

    def _call_the_needed(self, name: str, from_us: float) -> None:
        for other in sorted(self.needed(name)):
            call: Choice = ("call", name, other)
            if calls(name, other) and (name, other) not in self.calls and call not in self._waiting:
                self._waiting.add(call)
                self._post(from_us, call)

    def _takes_us(self, choice: Choice) -> float:
        costs = self.costs
        match choice:
            case "produce", name, _:
                return costs.deliver_us if name == GATEWAY else costs.group_us
            case "snap", *_:
                return costs.snapshot_us
            case "fetch", *_:
                return costs.state_bytes / costs.bytes_per_us + costs.latency_us
            case "install", *_:
                return costs.restore_us
        return 0.0

    # --- the network and the store -----------------------------------------------------------------------

    def _queued(self, connection: Connection, to: str) -> None:
        item, sender, costs = connection.queue(to)[-1], connection.other(to), self.costs
        if isinstance(item, Up | Down):
            wait_us = costs.connect_us if isinstance(item, Up) else costs.latency_us
            self._post(self.now_us + wait_us, ("get", connection.serial, to, 0))
            return
        sized = self.size_of(sender, to, item)
        self._count(sender, to, item, sized)
        size = sized[1] + sized[2]
        busy = self._busy_of(sender)
        busy.sends_us = max(busy.sends_us, busy.works_us) + size / costs.bytes_per_us
        self._post(busy.sends_us + costs.latency_us, ("arrive", connection.serial, to, size))

    def _published(self, view: View) -> None:
        self.published.append((self.now_us, view))
        take_us = self.view_bytes(view) / self.costs.bytes_per_us
        start_us = max(self.now_us + self.costs.view_us, self._store_sends_us)
        for name in self.processes:
            start_us += take_us
            self._post(start_us, ("view", name, view.epoch))
        self._store_sends_us = start_us

    def _count(self, sender: str, to: str, parcel: Parcel, sized: Sized) -> None:
        frames, head, body = sized
        counts = self.counts
        counts.frames += frames
        counts.by_host[sender] += frames
        counts.by_host[to] += frames
        counts.body_bytes += body
        if isinstance(parcel, Relay):
            counts.relays += 1
            counts.relay_bytes += head
        else:
            counts.control_bytes += head
        if isinstance(parcel, Say) and isinstance(parcel.message, Data):
            counts.data_frames += frames

    # --- what can be seen --------------------------------------------------------------------------------

    @property
    def newest(self) -> View:
        return self.published[-1][1]

    @property
    def whole(self) -> bool:
        """Whether every copy is active."""
        return all(seat.status is Status.ACTIVE for seat in self.newest.seats.values())

    @property
    def all_delivered(self) -> bool:
        """Whether all that was sealed has been delivered."""
        return self.delivered_us.keys() == self.sealed_us.keys()

    @property
    def edges(self) -> int:
        residents = [r for p in self.processes.values() for r in p.host.residents.values()]
        return sum(len(resident.edges) for resident in residents) // 2

    def _keeps(self, name: str) -> None:
        """Note how many buckets a process keeps in its outlets, now that it has more of them."""
        self.kept_at_most[name] = max(self.kept_at_most[name], _kept(self.processes[name]))


def _kept(process: Process) -> int:
    producers = [resident.machine.above for resident in process.host.residents.values()]
    return sum(len(o.buffer) for above in producers if above is not None for o in above.outlets.values())
