"""A boundary on its own actor, and a node that the test plays, parcel by parcel."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

import understudy as us
from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.edge.messages import Data, Message, Reverse
from understudy.core.host.limits import Limits
from understudy.core.host.parcels import Attach, Parcel, ParcelFrom, PeerUp, Say, ViewSeen
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.events import Report
from understudy.core.view.view import Seat, Seats, Status, View
from understudy.flow.policy import policy_named
from understudy.history.reading import records_of
from understudy.runtime.actor import Actor
from understudy.runtime.gateway.boundary import Boundary
from understudy.runtime.ingest.buckets import SealedBucket
from understudy.runtime.partitioning import Dataflow
from understudy.runtime.recording import RunRecorder
from understudy.runtime.settings import RunSettings

FAST, SLOW = Copy(Partition("fast")), Copy(Partition("slow"))
Kind = TypeVar("Kind")
WAIT_S = 20.0
ROWS = pa.table({"k": [1, 2, 3, 4], "v": [1, 1, 1, 1]})


def flow_of_two() -> us.Flow:
    """Two sources; one fragment reads the first, one reads both."""
    flow = us.Flow("f", bucket="100 ms")
    schema = "k bigint, v bigint, ts timestamp"
    fast = flow.source("fast", us.Push(schema), time="ts")
    slow = flow.source("slow", us.Push(schema), time="ts")

    @flow.fragment(fast, time="ts", partition_by=["k"])
    def one(fast: Any) -> Any:
        return fast

    @flow.fragment(fast, slow, time="ts")
    def both(fast: Any, slow: Any) -> Any:
        return fast

    flow.sink(one, us.Console(), name="first")
    flow.sink(both, us.Console(), name="second")
    return flow


class Reader:
    """Gives what the log holds of a source, two buckets at a time."""

    def __init__(self, around: Around, source: str, after: BucketId) -> None:
        self._around = around
        self._source = source
        self._after = after

    def read(self, _bytes_max: int) -> list[SealedBucket]:
        assert self._around.may_read.wait(WAIT_S)
        if self._after < self._around.forgotten.get(self._source, NOTHING):
            self._around.refused += 1
            raise us.EnvironmentFailed(f"what follows {self._after} is forgotten")
        rest = [b for b in self._around.log if b.source == self._source and b.number > self._after]
        self._after = rest[1].number if len(rest) > 1 else rest[0].number if rest else self._after
        return rest[:2]

    def close(self) -> None:
        pass


class Around:
    """What the boundary asks of its process, noted down."""

    def __init__(self, log: Sequence[SealedBucket] = ()) -> None:
        self.delivered: list[tuple[str, tuple[BucketId, ...]]] = []
        self.trimmed: dict[str, BucketId] = {}
        self.forgotten: dict[str, BucketId] = {}
        self.log = list(log)
        #: The log is read again as far as the test lets it.
        self.may_read = threading.Event()
        self.may_read.set()
        self.refused = 0
        self.failures: list[BaseException] = []
        self.rooms: dict[str, bool] = {}
        self.reports: list[Report] = []
        self.sure = True
        self.resting: list[tuple[str, BucketId]] = []

    def deliver(self, sink: str, buckets: Sequence[Bucket]) -> None:
        self.delivered.append((sink, tuple(bucket.number for bucket in buckets)))

    def trim(self, source: str, through: BucketId) -> None:
        self.trimmed[source] = through

    def forget(self, source: str, through: BucketId) -> None:
        self.forgotten[source] = through

    def reader(self, source: str, after: BucketId) -> Any:
        return Reader(self, source, after)

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)

    def room(self, source: str, there_is: bool) -> None:
        self.rooms[source] = there_is

    def report(self, report: Report) -> bool:
        self.reports.append(report)
        return self.sure

    def stats(self, node: str, facts: Mapping[str, Any]) -> None:
        pass

    def rests(self, sink: str, through: BucketId) -> None:
        self.resting.append((sink, through))


class Gateway:
    """A boundary and one node, `n`, that the test plays."""

    def __init__(
        self,
        folder: Path,
        policy: str,
        recovered: Sequence[SealedBucket] = (),
        *,
        seated: bool = True,
        history: bool = False,
        saves: bool = False,
        trimmed: Mapping[str, BucketId] | None = None,
        log: Sequence[SealedBucket] = (),
        **limits: int,
    ) -> None:
        chosen = policy_named(policy)
        settings = RunSettings(
            "run",
            "f.py",
            str(folder),
            "",
            policy=chosen,
            nodes=2,
            history=history,
            snapshot_every_ms=10_000 if saves else 0,
            limits=Limits(**limits),
        )
        self.around = Around(log)
        self.failures: list[BaseException] = []
        self.sent: list[tuple[str, Parcel]] = []
        self.actor = Actor("boundary", self.failures.append)
        self.recorder = RunRecorder(settings, "f", "gateway")
        self.history = settings.history_file("gateway")
        self.boundary = Boundary(
            settings,
            self.actor,
            self.around,
            dataflow=Dataflow.of(flow_of_two(), settings),
            recorder=self.recorder,
            recovered=recovered,
            delivered={"first": NOTHING, "second": NOTHING},
            trimmed=trimmed or {},
        )
        self.boundary.mesh.send = self._send  # type: ignore[method-assign]
        partitions = self.boundary.host.topology.partitions
        nodes = ["n", "m"][: chosen.replicas]
        seats = {p: Seats(1, tuple(Seat(node, 1, Status.ACTIVE) for node in nodes)) for p in partitions}
        self.first_view = ViewSeen(View(1, seats))
        if seated:
            self.tell(self.first_view)

    def _send(self, node: str, parcel: Parcel, _cause: int) -> None:
        self.sent.append((node, parcel))

    def tell(self, event: Any) -> None:
        self.actor.ask(lambda: self.boundary.handle(event))

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what the thread that reads the log does."""
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline_s, f"not within {WAIT_S} s"
            time.sleep(0.005)
            self.settle()

    def settle(self) -> None:
        self.actor.ask(lambda: None)

    def connect(self, node: str = "n") -> None:
        self.tell(PeerUp(node, 1))

    def attach(self, consumer: Copy, source: Copy, through: BucketId = NOTHING, node: str = "n") -> None:
        self.tell(ParcelFrom(node, 1, Attach(consumer, 1, source, 0, 7, through)))
        self.say(consumer, source, Reverse(through), node)

    def say(self, consumer: Copy, source: Copy, message: Message, node: str = "n") -> None:
        self.tell(ParcelFrom(node, 1, Say(consumer, source, 7, message)))

    def sealed(self, source: str, *numbers: BucketId, table: pa.Table | None = ROWS) -> None:
        dealt = self.boundary.deal([SealedBucket(source, number, table) for number in numbers])
        self.actor.ask(lambda: self.boundary.put(dealt))

    def holds(self, sink: str, through: BucketId) -> None:
        self.actor.ask(lambda: self.boundary.sink_holds(sink, through))

    def recorded(self, kind: type[Kind]) -> list[Kind]:
        """What is on record, of this kind. Nothing is recorded afterwards."""
        self.recorder.close()
        return [record for record in records_of(self.history) if isinstance(record, kind)]

    def data_for(self, consumer: Copy) -> list[Bucket]:
        said = [p for _, p in self.sent if isinstance(p, Say) and p.to == consumer]
        return [b for p in said if isinstance(p.message, Data) for b in p.message.buckets]


def gateway(made: list[Gateway], tmp_path: Path, policy: str = "none", **options: Any) -> Gateway:
    made.append(Gateway(tmp_path, policy, **options))
    return made[-1]
