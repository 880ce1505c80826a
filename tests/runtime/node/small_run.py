"""A complete run in one process: a real gateway and real nodes, over real connections and on real folders.

Only the engines are small ones (`small_engine`), and there is no ZooKeeper: the controller is called.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from small_engine import SmallEngine, rows_at

import understudy as us
from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.host.places import GATEWAY
from understudy.core.shape.partition import Copy, Partition
from understudy.core.timers import SetTimer, TimerFired
from understudy.core.view.events import (
    ControllerEvent,
    Declined,
    MemberJoined,
    MembersLeft,
    Publish,
    Report,
)
from understudy.core.view.view import Status, View
from understudy.engine.segments import topology_of
from understudy.flow.errors import EnvironmentFailed
from understudy.flow.flow import Flow
from understudy.flow.policy import Policy
from understudy.history.judging import judge
from understudy.history.verdict import Verdict
from understudy.runtime.actor import Actor
from understudy.runtime.gateway.boundary import Boundary
from understudy.runtime.gateway.delivery import DeliveredRange, Delivery
from understudy.runtime.ingest.buckets import SealedBucket
from understudy.runtime.node.copies import Copies
from understudy.runtime.node.saving import saving_for
from understudy.runtime.partitioning import Dataflow, controller_for, host_for
from understudy.runtime.recording import RunRecorder
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.endpoint import Endpoint

WAIT_S = 20.0


def flow_into(folder: Path) -> Flow:
    """One fragment that may be split by its key, one that reads all of it, a sink for each."""
    flow = us.Flow("small", bucket="100 ms")
    rows = flow.source("rows", us.Push("k bigint, ts timestamp"), time="ts")

    @flow.fragment(rows, time="ts", partition_by=["k"])
    def pairs(rows: Any) -> Any:
        return rows

    @flow.fragment(pairs, time="ts")
    def sums(pairs: Any) -> Any:
        return pairs

    flow.sink(pairs, us.JsonLines(folder / "pairs"), name="pairs")
    flow.sink(sums, us.JsonLines(folder / "sums"), name="sums")
    return flow


class SmallEngines:
    """Small engines in the place of those of Spark."""

    def __init__(self, flow: Flow, settings: RunSettings) -> None:
        self.topology = topology_of(flow, settings.policy.unit, settings.partition_count)
        self.streams = {name: SimpleNamespace(time="ts") for name in (*flow.sources, *flow.fragments)}
        self.made: list[tuple[Partition, SmallEngine]] = []
        self.prepare: Callable[[SmallEngine], None] = lambda _engine: None

    @property
    def shape(self) -> dict[str, Any]:
        """No operator of these engines is looked at when a flow has changed."""
        return {}

    def engine(self, partition: Partition, directory: Path) -> SmallEngine:
        made = SmallEngine(directory, self.topology.consumers(partition))
        self.prepare(made)
        self.made.append((partition, made))
        return made


class Node:
    """A node of the run."""

    def __init__(self, name: str, run: Run) -> None:
        self.name = name
        self.failures: list[BaseException] = []
        self.recorder = RunRecorder(run.settings, run.flow.name, name)
        self.endpoint = Endpoint(beat_s=run.settings.beat_s, silence_s=run.settings.silence_s)
        self.engines = SmallEngines(run.flow, run.settings)
        self.actor = Actor(name, self.failures.append)
        self.folder = run.settings.path / "state" / name
        self.copies = Copies(
            host_for(name, Dataflow.of(run.flow, run.settings).topology, run.settings),
            run.settings,
            self.actor,
            flow=run.flow,
            engines=self.engines,  # type: ignore[arg-type]
            folder=self.folder,
            recorder=self.recorder,
            saving=saving_for(run.settings),
            address_of=run.addresses.get,
            tell=run.decide,
            on_failure=self.failures.append,
        )
        self.copies.listen_on(self.endpoint)
        self.endpoint.ready()
        run.addresses[name] = self.endpoint.address
        self.on_view = self.copies.on_view
        self.recorder.begun()

    def end(self, *, in_order: bool) -> None:
        self.actor.end()
        self.copies.end()
        self.endpoint.end()
        if in_order:
            self.recorder.ended()
        self.recorder.close()
        self.copies.close_engines()


class SmallLog:
    """What was sealed, in memory: a gateway that is started again, and readers, find it here."""

    def __init__(self) -> None:
        self.sealed: list[SealedBucket] = []
        self.trimmed: BucketId = NOTHING
        self.forgotten: BucketId = NOTHING

    def forget(self, through: BucketId) -> None:
        self.forgotten = max(self.forgotten, through)
        self.sealed = [bucket for bucket in self.sealed if bucket.number > self.forgotten]


class SmallReader:
    """Gives the buckets of a small log again, two at a time."""

    def __init__(self, log: SmallLog, after: BucketId) -> None:
        self._log = log
        self._after = after

    def read(self, _bytes_max: int) -> list[SealedBucket]:
        if self._after < self._log.forgotten:
            raise EnvironmentFailed(f"what follows {self._after} is forgotten")
        found = [bucket for bucket in self._log.sealed if bucket.number > self._after][:2]
        self._after = found[-1].number if found else self._after
        return found

    def close(self) -> None:
        pass


class Gateway:
    """The gateway of the run: its boundary, its delivery, and what they ask for."""

    def __init__(self, run: Run) -> None:
        self.failures: list[BaseException] = []
        self.run = run
        self.stats_of: dict[str, Mapping[str, Any]] = {}
        self.recorder = RunRecorder(run.settings, run.flow.name, GATEWAY)
        self.endpoint = Endpoint(beat_s=run.settings.beat_s, silence_s=run.settings.silence_s)
        self.actor = Actor(GATEWAY, self.failures.append)
        self.delivery = Delivery(run.flow, run.settings.path, self._delivered, self.failures.append)
        positions, _ = self.delivery.recover()
        self.delivered_through = dict(positions)
        self.boundary = Boundary(
            run.settings,
            self.actor,
            self,
            dataflow=Dataflow.of(run.flow, run.settings),
            recorder=self.recorder,
            recovered=[bucket for bucket in run.log.sealed if bucket.number > run.log.trimmed],
            delivered=positions,
            trimmed={"rows": run.log.trimmed},
        )
        self.boundary.listen_on(self.endpoint)
        self.endpoint.ready()
        run.addresses[GATEWAY] = self.endpoint.address
        self.delivery.start()
        self.on_view = self.boundary.on_view

    def deliver(self, sink: str, buckets: Sequence[Bucket]) -> None:
        self.delivery.put(sink, buckets)

    def _delivered(self, sink: str, done: DeliveredRange) -> None:
        self.recorder.delivered(sink, done.after, done.through, done.buckets)
        self.delivered_through[sink] = done.through
        self.actor.post(self.boundary.sink_holds, sink, done.through)

    def trim(self, source: str, through: BucketId) -> None:
        self.run.log.trimmed = max(self.run.log.trimmed, through)

    def forget(self, source: str, through: BucketId) -> None:
        self.run.log.forget(through)

    def reader(self, source: str, after: BucketId) -> SmallReader:
        return SmallReader(self.run.log, after)

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)

    def room(self, source: str, there_is: bool) -> None:
        pass

    def report(self, report: Report) -> bool:
        self.run.decide(report)
        return True

    def stats(self, node: str, facts: Mapping[str, Any]) -> None:
        self.stats_of[node] = facts

    def rests(self, sink: str, through: BucketId) -> None:
        raise AssertionError(f"{sink} was told to rest")

    def put(self, bucket: SealedBucket) -> None:
        rows = 0 if bucket.table is None else bucket.table.num_rows
        self.recorder.sealed(bucket.source, bucket.number, rows)
        self.actor.post(self.boundary.put, self.boundary.deal([bucket]))

    def end(self) -> None:
        self.actor.end()
        self.boundary.end()
        self.delivery.end()
        self.recorder.ended()
        self.endpoint.end()


class Run:
    """`nodes` are wanted at the start and more may come later, by `add`."""

    def __init__(
        self, folder: Path, policy: Policy, nodes: int, partitions: int = 0, snapshot_every_ms: int = 0
    ) -> None:
        self.settings = RunSettings(
            "run",
            "flow.py",
            str(folder),
            "",
            policy=policy,
            nodes=nodes,
            partitions=partitions,
            snapshot_every_ms=snapshot_every_ms,
        )
        self.flow = flow_into(folder)
        self.log = SmallLog()
        self.addresses: dict[str, str] = {}
        self.nodes: dict[str, Node] = {}
        self.declined: list[str] = []
        self._deciding = threading.RLock()
        self._orders = 0
        topology = Dataflow.of(self.flow, self.settings).topology
        self._controller = controller_for(topology, self.settings)(None)
        self.gateway = Gateway(self)
        for number in range(1, nodes + 1):
            self.add(f"node-{number}")
        self.until(lambda: self.gateway.boundary.running)

    @property
    def view(self) -> View:
        assert self._controller.view is not None
        return self._controller.view

    def decide(self, event: ControllerEvent) -> None:
        with self._deciding:
            due = []
            for done in self._controller.handle(event):
                if isinstance(done, SetTimer) and not done.delay_ms:
                    due.append(TimerFired(done.key))
                if isinstance(done, Declined):
                    self.declined.append(done.why)
                if isinstance(done, Publish):
                    for process in (self.gateway, *self.nodes.values()):
                        process.on_view(done.view)
            for timer in due:
                self.decide(timer)

    def add(self, name: str) -> Node:
        node = self.nodes[name] = Node(name, self)
        self._orders += 1
        if self._controller.view is not None:
            node.on_view(self.view)
        self.decide(MemberJoined(name, self._orders))
        return node

    def lose(self, name: str) -> None:
        """A node is gone, as after a crash: it says nothing more, and its history just stops."""
        node = self.nodes.pop(name)
        node.end(in_order=False)
        assert node.failures == []
        self.decide(MembersLeft((name,)))

    def push(self, numbers: Sequence[BucketId]) -> None:
        """A row for each of two keys in every bucket; every third one is empty."""
        for number in numbers:
            table = rows_at(number, 2 * number, 2 * number + 1) if number % 3 else None
            bucket = SealedBucket("rows", number, table)
            self.log.sealed.append(bucket)
            self.gateway.put(bucket)

    def await_delivered(self, through: BucketId) -> None:
        def delivered() -> bool:
            return min(self.gateway.delivered_through.values()) >= through

        self.until(delivered)

    def await_whole(self) -> None:
        """Every seat is active."""
        self.until(lambda: all(seat.status is Status.ACTIVE for seat in self.view.seats.values()))

    def until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            failures = [f for p in (self.gateway, *self.nodes.values()) for f in p.failures]
            if failures:
                raise failures[0]
            assert time.monotonic() < deadline_s, f"not within {WAIT_S} s; {self.gateway.boundary.status()}"
            time.sleep(0.01)

    def engine_of(self, copy: Copy) -> SmallEngine:
        """The engine of a copy, where it sits now."""
        hosted = self.nodes[self.view.seat(copy).node].copies._copies[copy]
        engine = hosted._engine
        assert isinstance(engine, SmallEngine)
        return engine

    def output(self, sink: str) -> dict[str, list[Any]]:
        """The columns of all that a sink was given."""
        return dict(us.read_output(self.settings.path / sink).to_pydict())

    def end(self) -> Verdict:
        """End in good order; the verdict on the histories."""
        self.gateway.end()
        for node in self.nodes.values():
            node.end(in_order=True)
        failures = [f for p in (self.gateway, *self.nodes.values()) for f in p.failures]
        assert failures == []
        return judge((self.settings.path / "history").glob("*.jsonl"))
