"""A channel: one end of a connection that carries frames both ways, in order, until it breaks.

Frames go through a bounded queue to a writer thread of its own, so the thread that runs the protocol never
waits for the network. A channel that has sent nothing for a while sends a **beat**. A peer that was not heard
for `silence_s` counts as gone: a process that is stopped keeps its connections open, and only silence gives
it away. A broken connection is noticed at once. A process that was itself paused could not hear its peers, so
it listens for a fresh `silence_s` before it judges.

A channel closes exactly once. `on_closed(reason)` is called then, and nothing arrives after it.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from understudy.core.errors import PeerError
from understudy.runtime.pauses import Clock, OwnPauses
from understudy.runtime.transport.pieces import Assembly, FrameTooLarge, pieces_of
from understudy.runtime.transport.wire import Frame, frame_of

log = logging.getLogger(__name__)

BEAT_S = 0.25
SILENCE_S = 2.0
#: Frames that may wait to be written. A peer that lets more pile up is not taking part.
OUTBOUND_MAX = 200_000

#: Frames that are taken from the queue at a time.
RUN_FRAMES_MAX = 4_096

_BEAT = Frame({"kind": "beat"})


class FlightWriter(Protocol):
    """What both ends of Flight offer for writing."""

    def write_metadata(self, metadata: bytes) -> None: ...

    def write_with_metadata(self, batch: pa.RecordBatch, metadata: bytes) -> None: ...


class Channel:
    """Sends frames, and passes frames that arrive to `on_frame`. Safe to use from any thread."""

    def __init__(
        self,
        name: str,
        on_frame: Callable[[Frame], None],
        on_closed: Callable[[str], None],
        *,
        epoch: int = 0,
        beat_s: float = BEAT_S,
        silence_s: float = SILENCE_S,
        clock: Clock = time.monotonic,
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.beat_s = beat_s
        self.silence_s = silence_s
        self._clock = clock
        self._pauses = OwnPauses(silence_s / 2, clock)
        self.heard_at = clock()
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._outbound: queue.Queue[Frame | None] = queue.Queue(OUTBOUND_MAX)
        self._closed = threading.Event()
        #: Whether it was closed because a message of the peer was not of this protocol.
        self.broke_protocol = False
        self._lock = threading.Lock()
        self.cancel: Callable[[], None] | None = None

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    @property
    def silent(self) -> bool:
        """Whether the peer was not heard for too long. To be looked at several times in `silence_s`."""
        if self._pauses.tick():
            self.heard_at = self._clock()
        return self._clock() - self.heard_at > self.silence_s

    @property
    def waiting(self) -> int:
        """How many messages wait to be written."""
        return self._outbound.qsize()

    def send(self, *frames: Frame) -> None:
        """Queue frames for the peer. On a closed channel they are lost, as they would be on the way."""
        if self.closed:
            return
        try:
            for frame in frames:
                self._outbound.put_nowait(frame)
        except queue.Full:
            self.close(f"more than {OUTBOUND_MAX} messages wait for it")

    def close(self, reason: str, *, broke_protocol: bool = False) -> None:
        """Close for this reason, unless it is closed already."""
        with self._lock:
            if self.closed:
                return
            self.broke_protocol = broke_protocol
            self._closed.set()
        # The writer may be waiting; a full queue means it is not.
        with contextlib.suppress(queue.Full):
            self._outbound.put_nowait(None)
        cancel = self.cancel
        if cancel is not None:
            cancel()
        log.debug("%s closed: %s", self.name, reason)
        self._on_closed(reason)

    def wait_closed(self, timeout_s: float) -> bool:
        """Wait until it is closed; False if it still is not."""
        return self._closed.wait(timeout_s)

    # --- the two threads of a channel --------------------------------------------------------------------

    def write_until_closed(self, writer: FlightWriter) -> None:
        """Write what is queued, and beats, until the channel closes."""
        try:
            # The first beat tells the other side that it was let in.
            writer.write_metadata(_BEAT.metadata())
            while not self.closed:
                for frame in self._next_frames():
                    for piece in pieces_of(frame):
                        _write(writer, piece)
        except FrameTooLarge as error:
            log.error("%s: %s", self.name, error)  # noqa: TRY400
            self.close(f"writing failed: {error}")
        except (pa.ArrowException, OSError) as error:
            self.close(f"writing failed: {_first_line(error)}")

    def _next_frames(self) -> Sequence[Frame]:
        """What to write next: all that is queued, or a beat if nothing comes for a while."""
        try:
            first = self._outbound.get(timeout=self.beat_s)
        except queue.Empty:
            return [_BEAT]
        frames: list[Frame] = []
        while first is not None:
            frames.append(first)
            if len(frames) == RUN_FRAMES_MAX:
                break
            try:
                first = self._outbound.get_nowait()
            except queue.Empty:
                break
        return frames

    def read_until_closed(self, reader: Any) -> None:
        """Pass on what arrives until the channel closes or breaks."""
        assembly = Assembly()
        try:
            while not self.closed:
                chunk = self._read(reader)
                if chunk is None:
                    return
                self.heard_at = self._clock()
                frame = assembly.completed(frame_of(chunk.app_metadata, chunk.data))
                if frame is None:
                    continue
                if frame.kind == "bye":
                    self.close(str(frame.head.get("reason", "the other side said goodbye")))
                elif frame.kind != "beat" and not self.closed:
                    self._on_frame(frame)
        except PeerError as error:
            log.warning("%s: refused a message: %s", self.name, _first_line(error))
            self.close(f"it broke the protocol: {_first_line(error)}", broke_protocol=True)
        except Exception as error:
            # Left to Flight, the stack trace would go to the peer.
            log.exception("%s: a message could not be handled", self.name)
            self.close(f"a message could not be handled: {type(error).__name__}")

    def _read(self, reader: Any) -> Any:
        """The next chunk; None, and the channel is closed, if the connection broke."""
        try:
            return reader.read_chunk()
        except StopIteration:
            self.close("the connection broke")
        except (pa.ArrowException, OSError) as error:
            self.close(f"the connection broke: {_first_line(error)}")
        return None


def _write(writer: FlightWriter, frame: Frame) -> None:
    batch = frame.batch()
    if batch is None:
        writer.write_metadata(frame.metadata())
    else:
        writer.write_with_metadata(batch, frame.metadata())


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0][:300]
