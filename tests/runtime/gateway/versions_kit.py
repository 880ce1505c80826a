"""The versions of a flow at a gateway, without a coordination: a test brings the views, and plays the nodes
parcel by parcel. The log is a list. Sinks hold at once what they are given, unless a test makes them slow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from boundary_kit import ROWS, WAIT_S, flow_of_two
from versions_disk import BOTH, FEEDS, ONE, READS, Disk, Reader

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.edge.messages import Ack, Data, Held, Message, Reverse
from understudy.core.host.parcels import Attach, Parcel, ParcelFrom, PeerUp, Relay, Say, Welcome
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.events import Report
from understudy.core.view.view import Seat, Seats, Status, View
from understudy.engine.segments import sink_partition
from understudy.runtime.actor import Actor
from understudy.runtime.candidate import Candidate
from understudy.runtime.gateway import versions as module
from understudy.runtime.gateway.boundary import Boundary
from understudy.runtime.gateway.edition import Edition
from understudy.runtime.gateway.versions import Versions
from understudy.runtime.ingest.buckets import SealedBucket
from understudy.runtime.mesh import STATS, Mesh
from understudy.runtime.partitioning import Dataflow
from understudy.runtime.recording import RunRecorder
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.endpoint import Endpoint
from understudy.runtime.transport.wire import Frame


class Coordinated:
    """The part of a gateway in the coordination of one version, in the place of `Leading`."""

    def __init__(self, settings: RunSettings, _topology: object = None) -> None:
        self.version = settings.version
        self.members: list[str] = []
        self.failure: str | None = None
        self.reports: list[Report] = []
        self.on_view: Callable[[View], None] | None = None
        self.ended = threading.Event()

    def begin(self, _address: str) -> None:
        pass

    def follow(self, on_view: Callable[[View], None]) -> None:
        self.on_view = on_view

    def tick(self) -> None:
        pass

    def report(self, report: Report) -> bool:
        self.reports.append(report)
        return True

    def end(self) -> None:
        self.ended.set()


class Begun:
    """The candidates that were to begin, in the place of `begin_candidate`: each takes part at once."""

    def __init__(self) -> None:
        self.editions: dict[int, Edition] = {}
        self.before: dict[int, int] = {}

    def __call__(
        self, edition: Edition, before: RunSettings, _address: str, on_view: Callable[[View], None]
    ) -> None:
        leading = Coordinated(edition.settings)
        leading.follow(on_view)
        edition.leading = leading  # type: ignore[assignment]
        self.before[edition.version] = before.version
        self.editions[edition.version] = edition


class Node:
    """The one node of a version, which sits in all of its seats."""

    def __init__(self, bench: Bench, version: int) -> None:
        self.name = f"n{version}"
        self._bench = bench
        self._version = version
        seats = Seats(1, (Seat(self.name, 1, Status.ACTIVE),))
        self.view = View(1, {ONE.partition: seats, BOTH.partition: seats})
        self._sink_edges: dict[str, int] = {}

    @property
    def boundary(self) -> Boundary:
        boundary = self._bench.versions._editions[self._version].boundary
        assert boundary is not None
        return boundary

    def says(self, parcel: Parcel) -> None:
        self._bench.ask(lambda: self.boundary.handle(ParcelFrom(self.name, 1, parcel)))

    def attaches(self, through: BucketId = NOTHING) -> None:
        """Connect, and take what follows this number from both sources; both sinks take its output."""
        self._bench.ask(lambda: self.boundary.handle(PeerUp(self.name, 1)))
        for source, readers in READS.items():
            for reader in readers:
                self.says(Attach(reader, 1, Copy(Partition(source)), 0, 7, through))
                self.tell(source, reader, Reverse(through))
        for parcel in self.heard():
            if isinstance(parcel, Attach):
                sink = parcel.sender.partition.name.removeprefix("sink:")
                self._sink_edges[sink] = parcel.serial
                self.says(Welcome(parcel.to, parcel.sender, parcel.serial, through))

    def heard(self) -> list[Parcel]:
        self._bench.settle()
        return [parcel for version, parcel in self._bench.sent if version == self._version]

    def tell(self, source: str, reader: Copy, message: Message) -> None:
        self.says(Say(reader, Copy(Partition(source)), 7, message))

    def reports(self, **facts: Any) -> None:
        """What a node tells of itself from time to time."""
        frame = Frame({"kind": STATS, **facts})
        self._bench.ask(lambda: self.boundary.frame_arrived(self.name, frame))

    def takes(self, source: str, through: BucketId) -> None:
        """All copies hold everything of a source through this number."""
        for reader in READS[source]:
            self.tell(source, reader, Ack(through))

    def has_saved(self, source: str, through: BucketId) -> None:
        """The oldest snapshot that the store keeps of any copy that reads this source holds so much."""
        for reader in READS[source]:
            self.tell(source, reader, Held(through))

    def puts_out(self, sink: str, *numbers: BucketId) -> None:
        buckets = tuple(Bucket(number, b"rows", 4) for number in numbers)
        to = Copy(Partition(sink_partition(sink)))
        self.says(Say(FEEDS[sink], to, self._sink_edges[sink], Data(buckets)))

    def given(self, source: str, reader: Copy = BOTH) -> list[BucketId]:
        """The buckets of a source that one of its copies was sent, in order."""
        from_source = Copy(Partition(source))
        said = [p for p in self.heard() if isinstance(p, Say) and (p.sender, p.to) == (from_source, reader)]
        return [b.number for p in said if isinstance(p.message, Data) for b in p.message.buckets]

    def acknowledged(self, sink: str) -> BucketId:
        """Through which number a sink has acknowledged this version's output."""
        to = FEEDS[sink]
        acks = [
            p.message.through
            for p in self.heard()
            if isinstance(p, Say) and p.to == to and isinstance(p.message, Ack)
        ]
        return max(acks, default=NOTHING)


class Bench:
    """A gateway from its start to its end. Its own are the log, the sinks and the room of its sources."""

    def __init__(self, disk: Disk, *, base: int = 1, candidate: Candidate | None = None) -> None:
        self.disk = disk
        self.begun = Begun()
        self.sent: list[tuple[int, Parcel]] = []
        self.rooms = dict.fromkeys(READS, True)
        self.failures: list[BaseException] = []
        #: Sinks that hold nothing until they are told to, and what they were given meanwhile.
        self.slow: set[str] = set()
        self.in_hand: dict[str, list[tuple[BucketId, int]]] = {}
        self.readers: Callable[[str, BucketId], Any] = lambda source, after: Reader(disk, source, after)
        settings = disk.settings(base)
        dataflow = Dataflow.of(flow_of_two(), settings)
        self.actor = Actor("boundary", self.failures.append)
        self.endpoint = Endpoint(beat_s=0.05, silence_s=5)
        self.versions = Versions(
            settings,
            dataflow,
            self.actor,
            self,
            endpoint=self.endpoint,
            recorder=RunRecorder(settings, "f", "gateway", version=base, ends=dataflow.ends),
            recovered=[each for each in disk.log if each.number > disk.trimmed[each.source]],
            delivered=disk.delivered,
            trimmed=disk.trimmed,
            forgotten=disk.forgotten,
            candidate=candidate,
        )

    def begin(self) -> None:
        self.versions.begin()
        self.endpoint.ready()
        self.versions.join()
        self.versions.follow()

    # --- what versions ask for ---------------------------------------------------------------------------

    def deliver(self, sink: str, buckets: Sequence[Bucket], version: int) -> None:
        self.in_hand[sink] = [(bucket.number, version) for bucket in buckets]
        if sink not in self.slow:
            self.holds(sink)

    def trim(self, source: str, through: BucketId) -> None:
        self.disk.trimmed[source] = through

    def forget(self, source: str, through: BucketId) -> None:
        self.disk.forgotten[source] = through

    def reader(self, source: str, after: BucketId) -> Any:
        return self.readers(source, after)

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)

    def room(self, source: str, there_is: bool) -> None:
        self.rooms[source] = there_is

    # --- what a test does --------------------------------------------------------------------------------

    @property
    def candidate(self) -> Coordinated:
        """The gateway's part in the coordination of the only version beside the base."""
        (found,) = (each.leading for each in self.begun.editions.values())
        return cast(Coordinated, found)

    def holds(self, sink: str) -> None:
        """The sink holds what it was given last."""
        group = self.in_hand.pop(sink)
        self.disk.output[sink] += group
        self.disk.delivered[sink] = max(self.disk.delivered[sink], group[-1][0])
        self.versions.on_delivered(sink, group[-1][0])

    @contextmanager
    def held(self) -> Iterator[None]:
        """The actor does nothing meanwhile: what is posted happens afterwards, in this order."""
        go_on = threading.Event()
        self.actor.post(go_on.wait, WAIT_S)
        yield
        go_on.set()
        self.settle()

    def seals(self, *numbers: BucketId, table: pa.Table | None = ROWS) -> None:
        """Both sources seal these buckets; nothing waits for what that leads to."""
        for source in READS:
            buckets = [SealedBucket(source, number, table) for number in numbers]
            self.disk.log += buckets
            self.versions.on_sealed(buckets)

    def seal(self, *numbers: BucketId, table: pa.Table | None = ROWS) -> None:
        self.seals(*numbers, table=table)
        self.settle()

    def opens(self, version: int) -> Node:
        """The first view of a version comes."""
        node = Node(self, version)
        edition = self.versions._editions[version]
        self.until(lambda: edition.leading is not None)
        self.shows(version, node.view)
        self.settle()
        return node

    def shows(self, version: int, view: View) -> None:
        """The gateway hears of a view of this version."""
        on_view = cast(Coordinated, self.versions._editions[version].leading).on_view
        assert on_view is not None
        on_view(view)

    def wants(self, base: int = 1, candidate: Candidate | None = None) -> None:
        """This is what the files say now."""
        self.versions.agree_with(self.disk.settings(base), candidate)
        self.settle()

    def status(self) -> dict[str, Any]:
        self.settle()
        return self.versions.status()

    @property
    def beside(self) -> dict[str, Any]:
        """The status of the candidate."""
        facts = self.status()["candidate"]
        assert facts is not None
        found: dict[str, Any] = facts
        return found

    def ask(self, call: Callable[[], object]) -> None:
        self.actor.ask(call)
        self.settle()

    def settle(self) -> None:
        """All that was posted is done, and what was posted because of that."""
        for _ in range(4):
            self.actor.ask(lambda: None)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline_s, f"not within {WAIT_S} s"
            time.sleep(0.005)
            self.settle()

    def end(self) -> None:
        """As a crash does: nothing is said, and what is on disk stays."""
        self.actor.end()
        self.versions.end()
        self.versions.leave()
        self.endpoint.end()


class Gateways:
    """The gateways of a run, one after the other, on one disk."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk = Disk(folder)
        self._made: list[Bench] = []

        def begin(*given: Any, **named: Any) -> None:
            self._made[-1].begun(*given, **named)

        def send(mesh: Mesh, _node: str, parcel: Parcel, _cause: int) -> None:
            if not isinstance(parcel, Relay):
                self._made[-1].sent.append((mesh._settings.version, parcel))

        monkeypatch.setattr(module, "Leading", Coordinated)
        monkeypatch.setattr(module, "begin_candidate", begin)
        monkeypatch.setattr(Mesh, "send", send)

    def start(self, *, base: int = 1, candidate: Candidate | None = None) -> Bench:
        """Start a gateway. The one before it is gone as if it had been killed."""
        self.kill()
        bench = Bench(self.disk, base=base, candidate=candidate)
        self._made.append(bench)
        bench.begin()
        return bench

    def kill(self) -> None:
        if self._made:
            self._made[-1].end()

    def end(self) -> None:
        self.kill()
        assert [failure for bench in self._made for failure in bench.failures] == []
