"""The state mover: a checkpoint from the node that has it to the node that needs it (`StateMover` in the
paper).

It runs beside the dataflow. The standby opens an exchange of purpose `state` on the active node and names
its seat. That is the moment when the movers have met (`sm_ready`). The active node takes a snapshot, which
is a folder of hard links, and streams its files in chunks, followed by one frame with S-Prod's buffer. The
standby writes the files to a folder of its own; the engine checks their digest before it uses them.

If either side dies half way, the exchange breaks. The active node then only has a folder to remove.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, cast

from understudy.core.bucket import Bucket
from understudy.core.errors import PeerError
from understudy.core.messages import Installed
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import connect
from understudy.runtime.transport.wire import Frame

log = logging.getLogger(__name__)

CHUNK_BYTES = 2**20
#: Chunks that may wait for the network, so that a large state does not sit in memory.
CHUNKS_WAITING_MAX = 16
PURPOSE = "state"


def send_state(channel: Channel, folder: Path, state: Installed) -> None:
    """Stream a snapshot's folder and what belongs to it; then remove the folder. Runs in its own thread."""
    try:
        began = time.monotonic()
        size_bytes = 0
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
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


def _state_frame(state: Installed) -> Frame:
    head = {
        "kind": "state",
        "version": state.version,
        "through": state.through,
        "numbers": [bucket.number for bucket in state.unacked],
        "acked": list(state.acked),
        "produced_through": state.produced_through,
        "acked_through": state.acked_through,
    }
    return Frame(head, tuple(bucket.payload for bucket in state.unacked))


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
        self._state: Installed | None = None
        self._channel: Channel | None = None
        self._trouble: OSError | None = None
        self.received_bytes = 0

    def run(self) -> Installed:
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


def _state_of(frame: Frame) -> Installed:
    head = frame.head
    try:
        numbers = head["numbers"]
        if len(numbers) != len(frame.bodies):
            raise PeerError(f"{len(numbers)} numbers came with {len(frame.bodies)} bodies")
        unacked = tuple(
            Bucket(number) if body is None else Bucket(number, bytes(memoryview(body)), len(memoryview(body)))
            for number, body in zip(numbers, frame.bodies, strict=True)
        )
        return Installed(
            version=int(head["version"]),
            through=int(head["through"]),
            unacked=unacked,
            acked=tuple(head["acked"]),
            produced_through=int(head["produced_through"]),
            acked_through=int(head["acked_through"]),
        )
    except (KeyError, TypeError, ValueError) as problem:
        raise PeerError(f"a malformed state: {problem}") from problem
