"""Asking a run's gateway for its status: for everything that looks at a run from outside.

The run's settings say where the gateway listens, so the status does not depend on ZooKeeper. A port may have
gone to another run since; the answer names the run.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Any

from understudy.core.errors import Fenced, PeerError
from understudy.flow.errors import EnvironmentFailed
from understudy.flow.policy import SILENCE_MS_MIN
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Refused, connect
from understudy.runtime.transport.wire import Frame

#: How often the asking side gives a sign: often enough for a gateway with any silence limit.
BEAT_S = SILENCE_MS_MIN / 1_000 / 8
CLOSE_TIMEOUT_S = 1.0


class RunStatus:
    """Asks a run's gateway for its status, as often as it is wanted, over one connection.

    The connection is made for the first question, and made again for the next one if it broke. Any thread may
    ask; one question is answered at a time.
    """

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._connection: _Connection | None = None
        self._lock = threading.Lock()

    def ask(self, timeout_s: float = 5.0) -> dict[str, Any]:
        """The status now. Raises `EnvironmentFailed` if the gateway does not answer."""
        run = self._settings.run
        if not self._settings.gateway_port:
            raise EnvironmentFailed(f"Run {run!r} has no gateway yet.")
        with self._lock:
            status = self._asked(timeout_s)
        if status["run"] != run:
            raise EnvironmentFailed(
                f"Run {run!r} has ended; its gateway's port now belongs to run {status['run']!r}."
            )
        return status

    def _asked(self, timeout_s: float) -> dict[str, Any]:
        address = f"{self._settings.host}:{self._settings.gateway_port}"
        connection = self._connection
        if connection is None or connection.ended:
            # The gateway tells its status to every newcomer.
            connection = self._connection = _Connection(address)
        else:
            connection.ask()
        try:
            answer = connection.answers.get(timeout=timeout_s)
        except queue.Empty:
            answer = f"nothing was heard within {timeout_s:g} s"
        if isinstance(answer, str):
            self._connection = None
            connection.close()
            raise EnvironmentFailed(f"The gateway at {address} does not tell its status: {answer}.")
        return answer

    def tell(self, what: str, timeout_s: float) -> bool:
        """Tell the run's gateway something; whether it answered with its status."""
        with self._lock:
            try:
                if self._asked(timeout_s)["run"] != self._settings.run:
                    return False
                assert self._connection is not None
                self._connection.ask(what)
                return isinstance(self._connection.answers.get(timeout=timeout_s), dict)
            except (EnvironmentFailed, queue.Empty):
                return False

    def close(self) -> None:
        """Close the connection, if there is one. A later question makes another."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _Connection:
    """One connection to a gateway, in a thread of its own. Answers are statuses, or why there is none."""

    def __init__(self, address: str) -> None:
        self.answers: queue.SimpleQueue[dict[str, Any] | str] = queue.SimpleQueue()
        self._address = address
        self._channel: Channel | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"status of {address}", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return self._over.is_set()

    def ask(self, what: str = "status") -> None:
        if self._channel is not None:
            self._channel.send(Frame({"kind": what}))

    def close(self) -> None:
        self._over.set()
        if self._channel is not None:
            self._channel.close("thank you")
        # A thread that is inside Flight when its process ends aborts the process.
        self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        try:
            connect(
                self._address,
                "status",
                {},
                on_open=self._opened,
                on_frame=self._arrived,
                on_closed=self._closed,
                beat_s=BEAT_S,
            )
        except ConnectionError:
            # What Flight says here is a paragraph about sockets.
            self._closed("nothing listens there, or it is still starting")
        except (Refused, Fenced) as problem:
            self._closed(str(problem))

    def _opened(self, channel: Channel) -> None:
        self._channel = channel
        if self._over.is_set():
            channel.close("thank you")

    def _arrived(self, frame: Frame) -> None:
        status = frame.head.get("status")
        if not isinstance(status, dict):
            raise PeerError(f"a gateway that is asked for its status does not send {frame.kind!r}")
        self.answers.put(status)

    def _closed(self, why: str) -> None:
        self._over.set()
        self.answers.put(why)


def status_of(settings: RunSettings, timeout_s: float = 5.0) -> dict[str, Any]:
    """The status of a run, once. Raises `EnvironmentFailed` if its gateway does not answer."""
    with contextlib.closing(RunStatus(settings)) as status:
        return status.ask(timeout_s)


def started_as(node: str) -> str:
    """The name a node's process was started under; the node's own name counts its incarnations."""
    return node.rpartition(".")[0] or node
