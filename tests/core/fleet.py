"""A flow in memory: hosts on their drivers, a controller, and links that keep the order of parcels.

Nothing happens by itself: `settle` carries out all that waits, oldest first; timers fire only by `fire`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.driver import Driver
from understudy.core.host.host import Host
from understudy.core.host.limits import Limits, Timing
from understudy.core.host.parcels import (
    Began,
    FetchState,
    HostEvent,
    Inside,
    Parcel,
    ParcelFrom,
    PeerDown,
    PeerUp,
    ViewSeen,
)
from understudy.core.host.places import GATEWAY
from understudy.core.replica.events import (
    CopyState,
    FetchFailed,
    Installed,
    LogRead,
    Processed,
    Produced,
    Received,
    Saved,
    SnapshotTaken,
)
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import Topology
from understudy.core.timers import SetTimer, TimerFired
from understudy.core.view.controller import Controller
from understudy.core.view.events import ControllerEvent, MemberJoined, MembersLeft, Publish, Report

#: What an engine puts out for the input it was given under a number.
Engine = Callable[[object], object]


class Process:
    """One process: the ports of its host."""

    def __init__(self, name: str, fleet: Fleet) -> None:
        self.name = name
        self.fleet = fleet
        timing = Timing(save_ms=1_000 if fleet.saved else 0, ship_ms=500 if fleet.passive else 0)
        self.driver = Driver(Host(name, fleet.topology, fleet.limits, timing=timing), self)
        self.lent: dict[tuple[Copy, int], CopyState] = {}
        #: What backups hold, and what has come for them last.
        self.held: dict[Copy, CopyState] = {}
        self.came: dict[Copy, CopyState] = {}
        self.timers: dict[Hashable, int] = {}

    def say(self, event: HostEvent) -> None:
        self.fleet.queue.append((self.name, event))

    def send(self, node: str, parcel: Parcel, cause: int) -> None:
        if (serial := self.fleet.links.get(frozenset((self.name, node)))) is not None:
            self.fleet.queue.append((node, ParcelFrom(self.name, serial, parcel, cause)))

    def cut(self, node: str, serial: int, why: str, breach: bool) -> None:
        raise AssertionError(f"{self.name} cut {node} off: {why}")

    def start(self, copy: Copy, epoch: int) -> None:
        kept = self.fleet.vault.get(copy.partition)
        self.say(Began(copy, epoch, kept[-1] if kept else None))

    def wait(self, copy: Copy, epoch: int) -> None:
        pass

    def fetch(self, wanted: FetchState) -> None:
        lender = self.fleet.processes.get(wanted.node)
        state = lender.lent.get((wanted.lender, wanted.version)) if lender else None
        came: object = FetchFailed(wanted.attempt, "gone")
        if state is not None and wanted.hold:
            self.came[wanted.copy] = state
            came = Received(wanted.attempt, state.through)
        elif state is not None:
            came = Installed(wanted.attempt, state)
        self.say(Inside(wanted.copy, wanted.epoch, came))

    def hold(self, copy: Copy, epoch: int, attempt: int) -> None:
        self.held[copy] = self.came.pop(copy)

    def start_held(self, copy: Copy, epoch: int) -> None:
        self.say(Began(copy, epoch, self.held.pop(copy)))

    def leave(self, copy: Copy, epoch: int) -> None:
        self.lent = {key: state for key, state in self.lent.items() if key[0] != copy}

    def process(self, copy: Copy, epoch: int, buckets: tuple[Bucket, ...]) -> None:
        above = self.fleet.topology.consumers(copy.partition)
        if above:
            out = tuple(
                bucket if bucket.empty else Bucket(bucket.number, self.fleet.engine(bucket.payload), 1)
                for bucket in buckets
            )
            self.say(Inside(copy, epoch, Produced(tuple((each, out) for each in above))))
        else:
            self.fleet.delivered += [bucket for bucket in buckets if not bucket.empty]
        self.say(Inside(copy, epoch, Processed()))

    def snapshot(self, copy: Copy, epoch: int, version: int) -> None:
        self.say(Inside(copy, epoch, SnapshotTaken(version)))

    def lend(self, copy: Copy, epoch: int, state: CopyState) -> None:
        self.lent[copy, state.version] = state

    def unlend(self, copy: Copy, epoch: int, version: int) -> None:
        self.lent.pop((copy, version), None)

    def save(self, copy: Copy, epoch: int, version: int) -> None:
        kept = [*self.fleet.vault.get(copy.partition, ()), self.lent[copy, version]][-2:]
        self.fleet.vault[copy.partition] = kept
        self.say(Inside(copy, epoch, Saved(version, kept[0].through if len(kept) == 2 else NOTHING)))

    def read_again(self, source: Copy, consumer: Copy, after: int, bytes_max: int) -> None:
        found = next(bucket for bucket in self.fleet.log if bucket.number > after)
        self.say(Inside(source, 0, LogRead(consumer, after, (found,))))

    def rests(self, sink: Copy, through: int) -> None:
        self.fleet.resting.append((sink, through))

    def report(self, report: Report) -> None:
        self.fleet.decide(report)

    def timer(self, key: Hashable, delay_ms: int) -> None:
        self.timers[key] = delay_ms


class Fleet:
    """Every process is connected to every other one, and the controller hears of all of them. With `saved`
    there is a store, which keeps two states of every partition, and a log of the one source. With `passive`
    one copy of each partition works, and the others hold its snapshots.
    """

    def __init__(
        self,
        topology: Topology,
        replicas: int,
        nodes: str,
        wanted: int,
        engine: Engine | None = None,
        *,
        saved: bool = False,
        passive: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self.saved = saved
        self.passive = passive
        self.limits = limits
        self.vault: dict[Partition, list[CopyState]] = {}
        self.log: list[Bucket] = []
        self.topology = topology
        self.engine: Engine = engine or (lambda payload: payload)
        self.queue: deque[tuple[str, HostEvent]] = deque()
        self.links: dict[frozenset[str], int] = {}
        self.delivered: list[Bucket] = []
        self.resting: list[tuple[Copy, int]] = []
        self.processes: dict[str, Process] = {}
        self.controller = Controller(topology, replicas, wanted, saved=saved, passive=passive)
        self._serial = 0
        self._orders = 0
        for name in (GATEWAY, *nodes):
            self.add(name)
        self.settle()

    def host(self, name: str) -> Host:
        return self.processes[name].driver.host

    def add(self, name: str) -> None:
        new = Process(name, self)
        for other in self.processes:
            self._serial += 1
            self.links[frozenset((name, other))] = self._serial
            self.queue += [(name, PeerUp(other, self._serial)), (other, PeerUp(name, self._serial))]
        self.processes[name] = new
        if self.controller.view is not None:
            self.queue.append((name, ViewSeen(self.controller.view)))
        if name != GATEWAY:
            self._orders += 1
            self.decide(MemberJoined(name, self._orders))

    def kill(self, name: str) -> None:
        """The process ends; all that was on its way to or from it is gone."""
        del self.processes[name]
        self.queue = deque(
            (to, event)
            for to, event in self.queue
            if to != name and not (isinstance(event, ParcelFrom) and event.node == name)
        )
        for other in self.processes:
            self.queue.append((other, PeerDown(name, self.links.pop(frozenset((name, other))))))
        self.decide(MembersLeft((name,)))

    def decide(self, event: ControllerEvent) -> None:
        for done in self.controller.handle(event):
            if isinstance(done, Publish):
                self.queue += [(name, ViewSeen(done.view)) for name in self.processes]
            elif isinstance(done, SetTimer) and not done.delay_ms:
                self.decide(TimerFired(done.key))

    def step(self) -> None:
        """Carry out what waits longest, and check its host."""
        name, event = self.queue.popleft()
        self.processes[name].driver.handle(event)
        self.host(name).check()

    def settle(self) -> None:
        """Carry out all that waits."""
        for _ in range(100_000):
            if not self.queue:
                return
            self.step()
        raise AssertionError("there is no end to it")

    def fire(self, kind: str) -> None:
        """Let every timer of this kind fire."""
        for name, process in self.processes.items():
            for key in [key for key in process.timers if isinstance(key, tuple) and key[0] == kind]:
                del process.timers[key]
                self.queue.append((name, TimerFired(key)))
        self.settle()

    def produce(self, *buckets: Bucket, source: str = "source") -> None:
        self.log += buckets if self.saved else ()
        consumers = self.topology.consumers(Partition(source))
        shares = tuple((each, buckets) for each in consumers)
        self.processes[GATEWAY].say(Inside(Copy(Partition(source)), 0, Produced(shares)))
