"""The state mover: a snapshot from the node that keeps it to the node that needs it (`StateMover` in the
paper).

It runs beside the dataflow. Which snapshot goes to which standby is decided by the protocol (`core.replica.
movement`); the standby then opens an exchange of purpose `state` on the lender's node and names it. The
lender says how large it is, and streams its files in chunks, followed by the output that the copy keeps.
The standby writes the files to a folder of its own; the engine checks their digest before it uses them.

If either side dies half way, the exchange breaks, and the standby's host learns that the fetch has failed.

A backup, which holds an earlier snapshot of the same copy, names the digests of its files and how far it has
each consumer's output. Files never change, so it is sent only what it lacks, and links the rest from what it
holds.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, cast

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.outlet import OutletState
from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.host.parcels import FetchState
from understudy.core.replica.events import CopyState
from understudy.core.shape.partition import Copy, Partition
from understudy.engine.interface import Snapshot
from understudy.engine.storing import link, read_manifest
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import connect
from understudy.runtime.transport.parcels import runs_of
from understudy.runtime.transport.wire import Bodies, Frame

log = logging.getLogger(__name__)

CHUNK_BYTES = 2**20
#: Chunks that may wait for the network, so that a large state does not sit in memory.
CHUNKS_WAITING_MAX = 16
PURPOSE = "state"
#: How often a standby says that more has arrived.
PROGRESS_S = 1.0


@dataclass(frozen=True)
class Has:
    """What a backup has already: files by their digests, and of each consumer's output a span: what follows
    one number, through another.
    """

    digests: frozenset[str] = frozenset()
    outputs: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def lacks(self, partition: Partition, bucket: Bucket) -> bool:
        after, through = self.outputs.get(str(partition), (NOTHING, NOTHING))
        return not after < bucket.number <= through


NOTHING_HELD = Has()


def send_state(channel: Channel, folder: Path, state: CopyState, has: Has = NOTHING_HELD) -> None:
    """Stream a snapshot's folder and the state that belongs to it, without what the other side has.

    Runs in its own thread.
    """
    try:
        began = time.monotonic()
        size_bytes = 0
        listed = read_manifest(folder)["files"] if has.digests else {}
        digests = {name: file["digest"] for name, file in listed.items()}
        files = [
            path
            for path in sorted(folder.rglob("*"))
            if path.is_file() and digests.get(path.relative_to(folder).as_posix()) not in has.digests
        ]
        channel.send(Frame({"kind": "moving", "bytes": sum(file.stat().st_size for file in files)}))
        for file in files:
            size_bytes += _send_file(channel, folder, file)
        for frame in _state_frames(state, has):
            _send_when_free(channel, frame)
        if channel.closed:
            log.warning("the standby went away while its state was moving")
            return
        took_ms = (time.monotonic() - began) * 1e3
        # A backup gets one every moment.
        level = logging.DEBUG if has.digests else logging.INFO
        log.log(level, "sent snapshot %d: %d bytes in %.0f ms", state.version, size_bytes, took_ms)
    except (OSError, EnvironmentFailed) as problem:
        log.exception("the state could not be read")
        channel.close(f"the state could not be read: {problem}")


def _send_when_free(channel: Channel, frame: Frame) -> None:
    while channel.waiting > CHUNKS_WAITING_MAX and not channel.wait_closed(0.005):
        pass
    channel.send(frame)


def _send_file(channel: Channel, folder: Path, file: Path) -> int:
    name = file.relative_to(folder).as_posix()
    sent = 0
    with file.open("rb") as stream:
        while True:
            chunk = stream.read(CHUNK_BYTES)
            if (not chunk and sent) or channel.closed:
                return sent
            _send_when_free(channel, Frame({"kind": "file", "name": name, "offset": sent}, (chunk,)))
            sent += len(chunk)
            if not chunk:
                return sent


def _state_frames(state: CopyState, has: Has = NOTHING_HELD) -> list[Frame]:
    """The outlets' buckets in runs that fit into a message each, then all that is said of them."""
    frames: list[Frame] = []
    for at, (partition, outlet) in enumerate(state.outlets):
        kept = tuple(bucket for bucket in outlet.kept if has.lacks(partition, bucket))
        frames += [_kept_frame(at, run) for run in runs_of(kept) if run]
    outlets = [
        [str(partition), outlet.produced_through, outlet.gone_through, [list(each) for each in outlet.floors]]
        for partition, outlet in state.outlets
    ]
    head = {"kind": "state", "version": state.version, "through": state.through, "outlets": outlets}
    return [*frames, Frame(head)]


def _kept_frame(outlet: int, buckets: Sequence[Bucket]) -> Frame:
    bodies = cast(Bodies, tuple(bucket.payload for bucket in buckets))
    return Frame({"kind": "kept", "outlet": outlet, "numbers": [b.number for b in buckets]}, bodies)


class Held(Protocol):
    """A snapshot that the fetching side has already."""

    @property
    def snapshot(self) -> Snapshot: ...

    @property
    def state(self) -> CopyState: ...


class StateFetch:
    """One attempt to fetch a snapshot into a folder. What is `held` already need not come again."""

    def __init__(
        self, address: str, wanted: FetchState, node: str, settings: RunSettings, held: Held | None = None
    ) -> None:
        self._held = held if wanted.hold else None
        self._digests: dict[str, str] = {}
        self._outputs: dict[str, tuple[int, int]] = {}
        self._address = address
        self._wanted = wanted
        self._node = node
        self._settings = settings
        self._kept: dict[int, list[Bucket]] = {}
        self._state: CopyState | None = None
        self._channel: Channel | None = None
        self._trouble: OSError | None = None
        self._progress: Callable[[], None] = lambda: None
        self._progressed_at = 0.0
        self._stopped = False
        self._into = Path()
        self.received_bytes = 0
        self.total_bytes = 0
        #: Output that came beside the files.
        self.output_bytes = 0

    def run(self, into: Path, progress: Callable[[], None]) -> CopyState:
        """Blocks until all files are in the folder; returns the state that belongs to them.

        Raises `ConnectionError` or `Refused` if it does not come, `EnvironmentFailed` if it cannot be kept.
        """
        self._into, self._progress = into, progress
        self._look_at_held()
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
        wanted = self._wanted
        connect(
            self._address,
            PURPOSE,
            {
                "node": self._node,
                "standby": str(wanted.copy),
                "epoch": wanted.epoch,
                "lender": str(wanted.lender),
                "version": wanted.version,
                "digests": sorted(self._digests),
                "outputs": self._outputs,
            },
            on_open=self._opened,
            on_frame=self._frame,
            on_closed=lambda _why: None,
            beat_s=self._settings.beat_s,
            silence_s=self._settings.silence_s,
        )
        if self._trouble is not None:
            raise EnvironmentFailed(f"The state cannot be written to {into}: {self._trouble}")
        if self._state is None:
            raise ConnectionError("the state did not arrive completely")
        self._link_held(into)
        level = logging.INFO if self._held is None else logging.DEBUG
        log.log(level, "snapshot %d arrived, %d bytes", self._state.version, self.received_bytes)
        return self._state

    def _look_at_held(self) -> None:
        if self._held is None:
            return
        files = read_manifest(self._held.snapshot.directory)["files"]
        self._digests = {file["digest"]: name for name, file in files.items()}
        self._outputs = {
            str(partition): (outlet.gone_through, outlet.produced_through)
            for partition, outlet in self._held.state.outlets
        }

    def _link_held(self, into: Path) -> None:
        """Put the files that did not come into their places, from the snapshot that is held."""
        if self._held is None:
            return
        for name, file in read_manifest(into)["files"].items():
            target = into.joinpath(*_parts_of(name))
            if not target.exists() and file["digest"] in self._digests:
                target.parent.mkdir(parents=True, exist_ok=True)
                link(self._held.snapshot.directory / self._digests[file["digest"]], target)

    def _kept_of(self, at: int, partition: Partition, gone_through: int) -> tuple[Bucket, ...]:
        """All output that an outlet keeps: what has come, and what is held and still wanted."""
        outlets = {} if self._held is None else dict(self._held.state.outlets)
        before = outlets.get(partition)
        came = self._kept.get(at, [])
        if before is None:
            return tuple(came)
        held = [bucket for bucket in before.kept if bucket.number > gone_through]
        return tuple(sorted((*held, *came), key=lambda bucket: bucket.number))

    def stop(self) -> None:
        """The state is no longer wanted. May be called from any thread."""
        self._stopped = True
        if self._channel is not None:
            self._channel.close("the state is no longer wanted")

    def _opened(self, channel: Channel) -> None:
        self._channel = channel
        if self._stopped:
            channel.close("the state is no longer wanted")

    def _frame(self, frame: Frame) -> None:
        if time.monotonic() - self._progressed_at > PROGRESS_S:
            self._progressed_at = time.monotonic()
            self._progress()
        match frame.kind:
            case "moving":
                self.total_bytes = int(frame.head["bytes"])
            case "file":
                chunk = frame.bodies[0] if frame.bodies else None
                if chunk is None:
                    raise PeerError("a piece of a file came without its bytes")
                self._write(str(frame.head["name"]), int(frame.head["offset"]), bytes(memoryview(chunk)))
            case "kept":
                numbers = frame.head["numbers"]
                if len(numbers) != len(frame.bodies):
                    raise PeerError(f"{len(numbers)} numbers came with {len(frame.bodies)} bodies")
                run = [_bucket(int(n), body) for n, body in zip(numbers, frame.bodies, strict=True)]
                self.output_bytes += sum(bucket.size_bytes for bucket in run)
                self._kept.setdefault(int(frame.head["outlet"]), []).extend(run)
            case "state":
                self._state = self._state_of(frame.head)
                cast(Channel, self._channel).close("the state is here")
            case _:
                raise PeerError(f"a state mover does not send {frame.kind!r}")

    def _state_of(self, head: Mapping[str, Any]) -> CopyState:
        try:
            outlets = tuple(
                (
                    Partition.of(name),
                    OutletState(
                        self._kept_of(at, Partition.of(name), int(gone)),
                        int(produced),
                        int(gone),
                        tuple((int(replica), int(floor)) for replica, floor in floors),
                    ),
                )
                for at, (name, produced, gone, floors) in enumerate(head["outlets"])
            )
            return CopyState(int(head["version"]), int(head["through"]), outlets)
        except (KeyError, TypeError, ValueError, BrokenInvariant) as problem:
            raise PeerError(f"a malformed state: {problem}") from problem

    def _write(self, name: str, offset: int, chunk: bytes) -> None:
        file = self._into.joinpath(*_parts_of(name))
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("ab") as stream:
                at = stream.tell()
                if at == offset:
                    stream.write(chunk)
        except OSError as trouble:
            self._trouble = trouble
            cast(Channel, self._channel).close(f"the state cannot be written: {trouble}")
            return
        if at != offset:
            raise PeerError(f"{name}: a chunk for offset {offset} came at {at}")
        self.received_bytes += len(chunk)


def _parts_of(name: str) -> tuple[str, ...]:
    """The steps from the snapshot's folder to a file of it. Raises `PeerError`."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts:
        raise PeerError(f"a file of the state has the name {name!r}, which leads out of its folder")
    return parts


def request_of(hello: Mapping[str, Any]) -> tuple[str, Copy, int, Copy, int]:
    """Node, standby, seat epoch, lender and version that a standby names. Raises `PeerError`."""
    try:
        return (
            str(hello["node"]),
            Copy.of(hello["standby"]),
            int(hello["epoch"]),
            Copy.of(hello["lender"]),
            int(hello["version"]),
        )
    except (KeyError, ValueError, TypeError, AttributeError, BrokenInvariant) as problem:
        raise PeerError(f"a standby must name itself and the snapshot it wants: {problem}") from problem


def _bucket(number: int, body: Any) -> Bucket:
    # A copy of its own: a view would keep all of the message in memory.
    return Bucket(number) if body is None else Bucket(number, bytes(memoryview(body)), len(memoryview(body)))


def has_of(hello: Mapping[str, Any]) -> Has:
    """What a standby says that it has. Raises `PeerError`."""
    try:
        digests = frozenset(str(digest) for digest in hello.get("digests", ()))
        outputs = dict(hello.get("outputs", {}))
        spans = {str(name): (int(after), int(through)) for name, (after, through) in outputs.items()}
        return Has(digests, spans)
    except (TypeError, ValueError, OverflowError) as problem:
        raise PeerError(f"a backup must say what it has: {problem}") from problem
