"""The two sides of a connection: a Flight server that accepts channels, and `connect`, which opens one.

A server has one **handler** per purpose. The handler looks at the hello and either raises (`Fenced`,
`PeerError`: the caller gets the reason and is not let in; `NotYet`: the caller is to retry shortly) or
returns the callbacks for the channel.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import flight

from understudy.core.errors import Fenced, PeerError
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.transport.channel import BEAT_S, SILENCE_S, Channel
from understudy.runtime.transport.leaving import OPEN
from understudy.runtime.transport.wire import BODIES, Frame, hello_bytes, hello_of

log = logging.getLogger(__name__)

#: How long a server may take to let a connection in or refuse it.
FIRST_BEAT_S = 10.0
SHUTDOWN_S = 2.0


class NotYet(Exception):
    """The server cannot answer yet, for example because it has not seen the view that the caller has."""


@dataclass(frozen=True)
class Accepted:
    """A handler's answer: the callbacks for the open channel, for its frames and for its end."""

    on_open: Callable[[Channel], None]
    on_frame: Callable[[Frame], None]
    on_closed: Callable[[str], None]
    name: str = "peer"
    epoch: int = 0


Handler = Callable[[Mapping[str, Any]], Accepted]


class Endpoint(flight.FlightServerBase):  # type: ignore[misc]
    """A Flight server whose every exchange is a channel."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        beat_s: float = BEAT_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        try:
            super().__init__(f"grpc://{host}:{port}")
        except (pa.ArrowException, OSError) as error:
            raise EnvironmentFailed(
                f"cannot listen on {host}:{port}: taken, or not allowed; choose another port ({error})"
            ) from error
        self.host = host
        self._beat_s = beat_s
        self._silence_s = silence_s
        self._handlers: dict[str, Handler] = {}
        self._ready = False
        self._channels: set[Channel] = set()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        threading.Thread(target=self._watch_silence, name="silence", daemon=True).start()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def handle(self, purpose: str, handler: Handler) -> None:
        """Answer connections of this purpose with this handler."""
        self._handlers[purpose] = handler

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Called by Flight in a thread of its own for every connection."""
        accepted = self._admit(context, descriptor.command)
        channel = Channel(
            accepted.name,
            accepted.on_frame,
            accepted.on_closed,
            epoch=accepted.epoch,
            beat_s=self._beat_s,
            silence_s=self._silence_s,
        )
        with self._lock:
            self._channels.add(channel)
        writer.begin(BODIES)
        thread = threading.Thread(
            target=channel.write_until_closed, args=(writer,), name=f"write {channel.name}", daemon=True
        )
        thread.start()
        try:
            accepted.on_open(channel)
            channel.read_until_closed(reader)
        finally:
            channel.close("the connection ended")
            with self._lock:
                self._channels.discard(channel)
            # Flight frees the writer when this returns; a write after that would crash the process.
            thread.join()

    def _admit(self, context: Any, command: bytes | None) -> Accepted:
        try:
            hello = hello_of(command)
            return self._handler(hello["purpose"])(hello)
        except NotYet as error:
            raise flight.FlightUnavailableError(f"not yet: {error}") from None
        except Fenced as error:
            log.warning("fenced: %s", error)
            raise flight.FlightUnauthorizedError(f"fenced: {error}") from None
        except PeerError as error:
            log.warning("refused a connection from %s: %s", context.peer(), error)
            raise flight.FlightServerError(f"refused: {error}") from None
        except Exception:
            # Left to Flight, the stack trace would go to the peer.
            log.exception("a connection from %s could not be answered", context.peer())
            raise flight.FlightInternalError("this connection could not be answered; see the log") from None

    def ready(self) -> None:
        """All handlers are set. A caller that connects before this is asked to retry."""
        self._ready = True

    def _handler(self, purpose: str) -> Handler:
        if not self._ready:
            raise NotYet("still starting")
        if purpose not in self._handlers:
            raise PeerError(f"nothing here answers to {purpose!r}")
        return self._handlers[purpose]

    def do_get(self, context: Any, ticket: Any) -> Any:
        raise flight.FlightServerError("refused: this port takes only exchanges of the understudy protocol")

    def _watch_silence(self) -> None:
        while not self._ended.wait(self._beat_s / 2):
            with self._lock:
                silent = [channel for channel in self._channels if channel.silent]
            for channel in silent:
                channel.close(f"nothing was heard from it for {channel.silence_s:g} s")

    def end(self) -> None:
        """Close every channel and stop listening."""
        self._ended.set()
        with self._lock:
            channels = list(self._channels)
        for channel in channels:
            channel.close("this side is going away")
        # It waits for exchanges to end, and one with a peer that is stopped never does.
        stopping = threading.Thread(target=self.shutdown, name="flight shutdown", daemon=True)
        stopping.start()
        stopping.join(timeout=SHUTDOWN_S)


class Refused(Exception):
    """The server did not let this side in, and will not."""


def connect(
    address: str,
    purpose: str,
    facts: Mapping[str, Any],
    *,
    on_open: Callable[[Channel], None],
    on_frame: Callable[[Frame], None],
    on_closed: Callable[[str], None],
    epoch: int = 0,
    beat_s: float = BEAT_S,
    silence_s: float = SILENCE_S,
) -> None:
    """Open a channel and run it in this thread until it closes.

    `on_open` is called once the server has let us in. Raises `Fenced` or `Refused` if it does not, and
    `ConnectionError` if it is not there or asks to try again.
    """
    channel = Channel(
        f"{purpose} at {address}", on_frame, on_closed, epoch=epoch, beat_s=beat_s, silence_s=silence_s
    )
    failure: Exception | None = None
    # What Flight made is freed within this block, for freeing it is still a call into Flight. An exception
    # would take it along, with the frames of its traceback and of its context.
    with OPEN.entered(channel):
        try:
            _connect(address, hello_bytes(purpose, facts), channel, on_open)
        except (ConnectionError, Fenced, Refused) as problem:
            failure = problem.with_traceback(None)
            failure.__context__ = None
    if failure is not None:
        raise failure


def _connect(address: str, hello: bytes, channel: Channel, on_open: Callable[[Channel], None]) -> None:
    client = flight.connect(f"grpc://{address}")
    try:
        descriptor = flight.FlightDescriptor.for_command(hello)
        try:
            writer, reader = client.do_exchange(descriptor)
        except (pa.ArrowException, OSError) as error:
            raise ConnectionError(_reason(error)) from None
        try:
            _run_channel(channel, writer, reader, on_open)
        finally:
            # Left to itself, a writer whose exchange broke complains on standard error when it is freed.
            with contextlib.suppress(pa.ArrowException, OSError):
                writer.close()
    finally:
        # A channel outlives its connection in its owner's hands; the connection itself must not.
        channel.cancel = None
        client.close()


def _run_channel(channel: Channel, writer: Any, reader: Any, on_open: Callable[[Channel], None]) -> None:
    channel.cancel = reader.cancel
    if channel.closed:
        # This process ends, and that was said before there was anything to cancel.
        reader.cancel()
    try:
        writer.begin(BODIES)
        # The server writes its first beat once it has let us in: nothing is ours before that.
        late = threading.Timer(FIRST_BEAT_S, reader.cancel)
        late.daemon = True
        late.start()
        try:
            reader.read_chunk()
        finally:
            late.cancel()
    except flight.FlightUnauthorizedError as error:
        raise Fenced(_reason(error)) from None
    except flight.FlightServerError as error:
        raise Refused(_reason(error)) from None
    except (StopIteration, pa.ArrowException, OSError) as error:
        raise ConnectionError(_reason(error)) from None
    writing = threading.Thread(target=channel.write_until_closed, args=(writer,), daemon=True)
    watching = threading.Thread(target=_watch, args=(channel,), daemon=True)
    on_open(channel)
    writing.start()
    watching.start()
    try:
        channel.read_until_closed(reader)
    finally:
        channel.close("the connection ended")
        writing.join()
        watching.join()


def _watch(channel: Channel) -> None:
    while not channel.wait_closed(channel.beat_s / 2):
        if channel.silent:
            channel.close(f"nothing was heard from it for {channel.silence_s:g} s")


def _reason(error: BaseException) -> str:
    return str(error).split(". Detail:", 1)[0].split("\n", 1)[0]
