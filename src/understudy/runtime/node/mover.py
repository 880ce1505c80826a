"""The state mover: a checkpoint from the node that has it to the node that needs it (`StateMover` in the
paper).

It runs beside the dataflow. The standby opens an exchange of purpose `state` on the active node and names
its seat. That is the moment when the movers have met (`sm_ready`). The active node takes a snapshot, which
is a folder of hard links, says how large it is, and streams its files in chunks, followed by one frame with
what the replica keeps of its output. The standby writes the files to a folder of its own; the engine checks
their digest before it uses them.

If either side dies half way, the exchange breaks. The active node then only has a folder to remove.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, cast

from understudy.core.bucket import Bucket
from understudy.core.errors import PeerError
from understudy.core.messages import Installed, OutletState, PartitionState
from understudy.core.partition import Partition
from understudy.core.view import Slot
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Refused, connect
from understudy.runtime.transport.wire import Bodies, Frame

log = logging.getLogger(__name__)

CHUNK_BYTES = 2**20
#: Chunks that may wait for the network, so that a large state does not sit in memory.
CHUNKS_WAITING_MAX = 16
PURPOSE = "state"
FETCH_RETRY_S = 0.2


class ActiveGone(Exception):
    """The copy that had the state is dead: nobody can send it any more."""


#: What moves beside the engine's files: of a whole replica, or of one copy of a partition.
State = Installed | PartitionState


def send_state(channel: Channel, folder: Path, state: State) -> None:
    """Stream a snapshot's folder and what belongs to it; then remove the folder. Runs in its own thread."""
    try:
        began = time.monotonic()
        size_bytes = 0
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        channel.send(Frame({"kind": "moving", "bytes": sum(file.stat().st_size for file in files)}))
        for file in files:
            size_bytes += _send_file(channel, folder, file)
        if channel.closed:
            log.warning("the standby went away while its state was moving")
            return
        channel.send(_state_frame(state))
        log.info(
            "moved checkpoint %d: %d bytes in %.0f ms",
            state.version,
            size_bytes,
            (time.monotonic() - began) * 1e3,
        )
    except OSError as problem:
        log.exception("the state could not be read")
        channel.close(f"the state could not be read: {problem}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _send_file(channel: Channel, folder: Path, file: Path) -> int:
    name = file.relative_to(folder).as_posix()
    sent = 0
    with file.open("rb") as stream:
        while True:
            chunk = stream.read(CHUNK_BYTES)
            if (not chunk and sent) or channel.closed:
                return sent
            while channel.waiting > CHUNKS_WAITING_MAX and not channel.wait_closed(0.005):
                pass
            channel.send(Frame({"kind": "file", "name": name, "offset": sent}, (chunk,)))
            sent += len(chunk)
            if not chunk:
                return sent


def _state_frame(state: State) -> Frame:
    head: dict[str, Any] = {"kind": "state", "version": state.version, "through": state.through}
    if isinstance(state, PartitionState):
        outlets = [
            [
                str(partition),
                [bucket.number for bucket in outlet.kept],
                outlet.produced_through,
                {slot.value: number for slot, number in outlet.acked_through},
            ]
            for partition, outlet in state.outlets
        ]
        bodies = tuple(bucket.payload for _, outlet in state.outlets for bucket in outlet.kept)
        return Frame({**head, "outlets": outlets}, cast(Bodies, bodies))
    buffer = {
        "numbers": [bucket.number for bucket in state.unacked],
        "acked": list(state.acked),
        "produced_through": state.produced_through,
        "acked_through": state.acked_through,
    }
    return Frame({**head, **buffer}, cast(Bodies, tuple(bucket.payload for bucket in state.unacked)))


class StateFetch:
    """One attempt to fetch a checkpoint into a folder. `run` blocks until it is there or has failed."""

    def __init__(
        self, address: str, seat: Mapping[str, Any], into: Path, *, beat_s: float, silence_s: float
    ) -> None:
        self._address = address
        self._seat = seat
        self._into = into
        self._beat_s = beat_s
        self._silence_s = silence_s
        self._state: State | None = None
        self._channel: Channel | None = None
        self._trouble: OSError | None = None
        self.received_bytes = 0
        self.total_bytes = 0

    def run(self) -> State:
        """The state that goes with the files, which are then in the folder. Raises `ConnectionError`."""
        shutil.rmtree(self._into, ignore_errors=True)
        self._into.mkdir(parents=True)
        connect(
            self._address,
            PURPOSE,
            self._seat,
            on_open=self._opened,
            on_frame=self._frame,
            on_closed=lambda _why: None,
            beat_s=self._beat_s,
            silence_s=self._silence_s,
        )
        if self._trouble is not None:
            raise EnvironmentFailed(f"The state cannot be written to {self._into}: {self._trouble}")
        if self._state is None:
            raise ConnectionError("the state did not arrive whole")
        return self._state

    def _opened(self, channel: Channel) -> None:
        self._channel = channel

    def _frame(self, frame: Frame) -> None:
        match frame.kind:
            case "moving":
                self.total_bytes = int(frame.head["bytes"])
            case "file":
                chunk = frame.bodies[0] if frame.bodies else None
                if chunk is None:
                    raise PeerError("a piece of a file came without its bytes")
                self._write(str(frame.head["name"]), int(frame.head["offset"]), bytes(memoryview(chunk)))
            case "state":
                self._state = _state_of(frame)
                cast(Channel, self._channel).close("the state is here")
            case _:
                raise PeerError(f"a state mover does not send {frame.kind!r}")

    def _write(self, name: str, offset: int, chunk: bytes) -> None:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts:
            raise PeerError(f"a file of the state has the name {name!r}, which leads out of its folder")
        file = self._into.joinpath(*parts)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("ab") as stream:
                at = stream.tell()
                if at == offset:
                    stream.write(chunk)
        except OSError as trouble:
            # Asking again would not help, and would cost the survivor a snapshot each time.
            self._trouble = trouble
            cast(Channel, self._channel).close(f"the state cannot be written: {trouble}")
            return
        if at != offset:
            raise PeerError(f"{name}: a chunk for offset {offset} came at {at}")
        self.received_bytes += len(chunk)


def fetch_state(
    find: Callable[[], str | None],
    seat: Mapping[str, Any],
    into: Path,
    settings: RunSettings,
    *,
    stopped_after: Callable[[float], bool],
    on_attempt: Callable[[StateFetch], None] = lambda _fetch: None,
) -> State | None:
    """The state of the active copy, after as many attempts as that takes; None if it is no longer wanted.

    `find` says where the active copy is, None while that is not known, and raises `ActiveGone`.
    `stopped_after` waits for so long and says whether to give up.
    """
    while not stopped_after(0):
        address = find()
        if address is not None:
            fetch = StateFetch(address, seat, into, beat_s=settings.beat_s, silence_s=settings.silence_s)
            on_attempt(fetch)
            try:
                state = fetch.run()
            except (ConnectionError, Refused, PeerError) as problem:
                log.warning("the state did not arrive: %s", problem)
            else:
                log.info("checkpoint %d arrived, %d bytes", state.version, fetch.received_bytes)
                return state
        stopped_after(FETCH_RETRY_S)
    return None


def _state_of(frame: Frame) -> State:
    head = frame.head
    bodies = iter(frame.bodies)

    def kept(numbers: list[int]) -> tuple[Bucket, ...]:
        return tuple(_bucket(int(number), next(bodies)) for number in numbers)

    try:
        version, through = int(head["version"]), int(head["through"])
        state: State
        if "outlets" in head:
            outlets = tuple(
                (
                    Partition.of(name),
                    OutletState(kept(numbers), int(produced), _acked(acked)),
                )
                for name, numbers, produced, acked in head["outlets"]
            )
            state = PartitionState(version, through, outlets)
        else:
            state = Installed(
                version=version,
                through=through,
                unacked=kept(head["numbers"]),
                acked=tuple(head["acked"]),
                produced_through=int(head["produced_through"]),
                acked_through=int(head["acked_through"]),
            )
    except (KeyError, TypeError, ValueError, StopIteration, RuntimeError) as problem:
        raise PeerError(f"a malformed state: {problem}") from problem
    if next(bodies, frame) is not frame:
        raise PeerError("a state came with more bodies than it has numbers")
    return state


def _acked(numbers: Mapping[str, int]) -> tuple[tuple[Slot, int], ...]:
    return tuple((Slot(slot), int(number)) for slot, number in numbers.items())


def _bucket(number: int, body: Any) -> Bucket:
    return Bucket(number) if body is None else Bucket(number, bytes(memoryview(body)), len(memoryview(body)))
