"""A ZooKeeper session that comes back: connecting, waiting while the server is away, noticing a new session.

A **connection** may break and return within one session: nothing is lost, but watches are. A **session** that
expired took all that was ephemeral with it; the client then gets another id. kazoo does the reconnecting.
Here it is quick and endless, because a session survives a restart of the server only if its client is back in
time.

kazoo pings at random moments, up to 0.4 s or a third of the session timeout apart, whichever is longer, and
wants the answer within a sixth of the timeout. Timeouts far below the default would expire on a busy machine.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    OperationTimeoutError,
    SessionExpiredError,
    WriterNotClosedException,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from understudy.flow.errors import EnvironmentFailed, UserError

log = logging.getLogger(__name__)
# Each failed attempt to reconnect would be a line of the log; we say once that the connection is gone.
_quiet = logging.getLogger(f"{__name__}.kazoo")
_quiet.setLevel(logging.CRITICAL)

SESSION_TIMEOUT_MS = 2_000
CONNECT_TIMEOUT_S = 5.0
#: How long a goodbye may take. ZooKeeper clears away what was ephemeral after the session timeout anyway.
GOODBYE_TIMEOUT_S = 1.0
#: What a call raises while ZooKeeper is away; ConnectionClosedError also comes between two sessions.
AWAY = (ConnectionLoss, SessionExpiredError, OperationTimeoutError, KazooTimeoutError, ConnectionClosedError)

T = TypeVar("T")


class Closed(Exception):
    """The session was closed by its owner while a call was waiting."""


class Session:
    """`client` speaks to ZooKeeper until `close`; use it within `patiently`, or catch `AWAY`."""

    def __init__(self, address: str, timeout_ms: int, connect_timeout_s: float) -> None:
        self.address = address
        self.timeout_ms = timeout_ms
        self._id: int | None = None
        self._closed = threading.Event()
        self._connected = threading.Event()
        self._wakers: list[Callable[[], None]] = []
        retry = KazooRetry(max_tries=-1, delay=0.05, backoff=1.5, max_delay=0.25, max_jitter=0.2)
        try:
            self.client = KazooClient(
                address, timeout=timeout_ms / 1000, connection_retry=retry, logger=_quiet
            )
        except ValueError as error:
            raise UserError(
                f"{address!r} is no ZooKeeper address. Write host:port, several with commas."
            ) from error
        self.client.add_listener(self._on_state)
        try:
            self.client.start(timeout=connect_timeout_s)
        except KazooTimeoutError as error:
            raise EnvironmentFailed(
                f"ZooKeeper does not answer at {address} (waited {connect_timeout_s:.0f} s). "
                "Check that it runs there and that the address is right."
            ) from error

    @property
    def id(self) -> int | None:
        """Another id than before means that all that was ephemeral is gone. Stays while disconnected."""
        return self._id

    @property
    def connected(self) -> bool:
        return self._connected.is_set() and not self._closed.is_set()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def await_connection(self, timeout_s: float) -> None:
        """Returns when connected or closed, at the latest after the timeout."""
        self._connected.wait(timeout_s)

    def on_change(self, wake: Callable[[], None]) -> None:
        """`wake` is called, on any thread, when the connection came, went or was closed. It must be brief."""
        self._wakers.append(wake)

    def patiently(self, call: Callable[[], T]) -> T:
        """The result of `call`, tried again while ZooKeeper is away. Raises `Closed` after `close`."""
        while True:
            if self.closed:
                raise Closed(f"the session with ZooKeeper at {self.address} was closed")
            try:
                return call()
            except AWAY:
                # Connected again, a call may fail once more before kazoo's own state has settled.
                self._closed.wait(0.02)
                self.await_connection(1.0)

    def briefly(self, call: Callable[[], object]) -> bool:
        """Try `call` once, for `GOODBYE_TIMEOUT_S` at most; whether it was done. For goodbyes."""
        done = threading.Event()

        def attempt() -> None:
            with contextlib.suppress(*AWAY):
                call()
                done.set()

        if not self.connected:
            return False
        # kazoo queues what is asked while the connection is away, and would wait for its return.
        threading.Thread(target=attempt, name="goodbye", daemon=True).start()
        return done.wait(GOODBYE_TIMEOUT_S)

    def close(self) -> None:
        """Ends the session, within `GOODBYE_TIMEOUT_S`. A call that waits in `patiently` gets `Closed`."""
        if self.closed:
            return
        self._closed.set()
        self._connected.set()
        self._notify()
        stopping = threading.Thread(target=self._stop, name="goodbye", daemon=True)
        stopping.start()
        stopping.join(GOODBYE_TIMEOUT_S)

    def _stop(self) -> None:
        # A server that does not answer keeps kazoo waiting for 10 s, and then it raises.
        with contextlib.suppress(WriterNotClosedException):
            self.client.stop()
            self.client.close()

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            # kazoo itself tells the id only while connected, too seldom for "is this node still mine?".
            self._id = int(self.client.client_id[0])
            self._connected.set()
        elif not self.closed:
            if self._connected.is_set():
                log.warning("ZooKeeper at %s is away; going on with what is known", self.address)
            self._connected.clear()
        self._notify()

    def _notify(self) -> None:
        for wake in tuple(self._wakers):
            wake()
