"""A node that copies are seated on by hand: what they tell their host waits to be looked at."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from small_engine import SmallEngine, bucket_of_rows

from understudy.core.bucket import Bucket
from understudy.core.edge.outlet import OutletState
from understudy.core.host.parcels import Began, FetchState
from understudy.core.replica.events import (
    CopyState,
    LimitGroups,
    Processed,
    Produced,
    Progress,
    SnapshotTaken,
)
from understudy.core.shape.partition import Copy, Partition
from understudy.history.reading import records_of
from understudy.runtime.node.copy import CopyParts, HostedCopy
from understudy.runtime.node.mover import PURPOSE, StateFetch, send_state
from understudy.runtime.node.pace import Pace
from understudy.runtime.node.saving import Saving
from understudy.runtime.recording import RunRecorder
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Accepted, Endpoint

COPY, STANDBY = Copy(Partition("flow"), 0), Copy(Partition("flow"), 1)
SINK = Partition("sink:out")
WAIT_S = 20.0
EPOCH = 4


class Node:
    """What a node is to its copies: a host for events, a recorder, and one lock for starting engines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = RunSettings("run", "flow.py", str(folder), "")
        self.recorder = RunRecorder(self.settings, "flow", "n1")
        self.host_events: queue.Queue[Any] = queue.Queue()
        self.limits: list[LimitGroups] = []
        self.failures: list[BaseException] = []
        self.engines: list[SmallEngine] = []
        self.copies: list[HostedCopy] = []
        self.starting = threading.Lock()
        self.prepare: Callable[[SmallEngine], None] = lambda _engine: None
        self.endpoint = Endpoint(beat_s=0.05, silence_s=5)
        #: Copies save their states there, if a test wants them to.
        self.saving: Saving | None = None
        self.consumers: tuple[Partition, ...] = (SINK,)

    def post(self, event: object) -> None:
        self.host_events.put(event)

    def inside(self, copy: Copy, epoch: int, event: object) -> None:
        assert epoch == EPOCH
        if isinstance(event, LimitGroups):
            self.limits.append(event)
        elif not isinstance(event, Progress):
            self.host_events.put(event)

    def engine(self) -> SmallEngine:
        made = SmallEngine(self.folder / f"engine-{len(self.engines)}", (SINK,))
        self.prepare(made)
        self.engines.append(made)
        return made

    def copy(self, copy: Copy, folder: Path | None = None) -> HostedCopy:
        parts = CopyParts(
            folder=folder or self.folder / f"copy-{copy.replica}",
            make_engine=self.engine,
            starting=self.starting,
            consumers=self.consumers,
            stream_for=lambda _consumer: "out",
            time_of={"rows": "ts"},
            pace=Pace(0, 0.1),
            on_failure=self.failures.append,
            saving=self.saving,
        )
        made = HostedCopy(copy, EPOCH, self, self.recorder, parts)  # type: ignore[arg-type]
        self.copies.append(made)
        return made

    def next(self, kind: type[Any]) -> Any:
        event = self.host_events.get(timeout=WAIT_S)
        assert isinstance(event, kind), event
        return event

    def begun(self, copy: HostedCopy) -> HostedCopy:
        copy.begin()
        assert self.next(Began) == Began(copy.copy, EPOCH)
        return copy

    def lends(self, copy: HostedCopy, version: int, state: CopyState) -> None:
        """Take a snapshot of a copy, keep it, and answer every fetch of a state with it."""
        copy.snapshot(version)
        assert self.next(SnapshotTaken) == SnapshotTaken(version)
        copy.lend(state)
        lent = copy.lent[version]

        def opened(channel: Channel) -> None:
            send = (channel, lent.snapshot.directory, lent.state)
            threading.Thread(target=send_state, args=send, daemon=True).start()

        def ignore(_: object) -> None:
            pass

        self.endpoint.handle(PURPOSE, lambda _hello: Accepted(opened, ignore, ignore))
        self.endpoint.ready()

    def fetch(self, copy: HostedCopy, attempt: int, version: int = 1) -> None:
        wanted = FetchState(copy.copy, EPOCH, "n1", COPY, attempt, version)
        copy.fetch(wanted, StateFetch(self.endpoint.address, wanted, "n2", self.settings))

    def works(self, copy: HostedCopy, number: int) -> tuple[Bucket, ...]:
        """Let a copy take a bucket of two rows, and see that it does; what it puts out."""
        copy.process((bucket_of_rows(number, 1, 2),))
        ((_, run),) = self.next(Produced).shares
        assert self.next(Processed) == Processed()
        found: tuple[Bucket, ...] = run
        return found

    def records(self) -> list[Any]:
        self.recorder.close()
        return list(records_of(self.settings.history_file("n1")))


def state_of(version: int, through: int) -> CopyState:
    return CopyState(version, through, ((SINK, OutletState((), through, through, ((0, through),))),))


def alive(*names: str) -> list[str]:
    """The threads of copies that still run, of these kinds."""
    return [t.name for t in threading.enumerate() if t.name.split()[0] in names]


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a condition that no event announces."""
    done = threading.Event()
    for _ in range(int(WAIT_S / 0.01)):
        if condition():
            return
        done.wait(0.01)
    raise AssertionError(f"not within {WAIT_S} s")
