"""Asking a run's gateway how things are. Everybody who looks at a run from outside asks here.

The run's settings say where the gateway listens, so nobody else has to be asked: a status can be had while
ZooKeeper is away. A port may have gone to another run since; the answer says whose it is.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Refused, connect
from understudy.runtime.transport.wire import Frame


def status_at(address: str, timeout_s: float = 5.0) -> dict[str, Any]:
    """The status of the gateway at an address. Raises `EnvironmentFailed` if it does not answer."""
    answers: queue.SimpleQueue[dict[str, Any] | str] = queue.SimpleQueue()
    channels: list[Channel] = []

    def arrived(frame: Frame) -> None:
        answers.put(dict(frame.head["status"]))
        channels[0].close("thank you")

    def ask() -> None:
        try:
            connect(
                address,
                "status",
                {},
                on_open=channels.append,
                on_frame=arrived,
                on_closed=answers.put,
            )
        except ConnectionError:
            # What Flight says here is a paragraph about sockets.
            answers.put("nobody listens there, or it is still starting")
        except Refused as problem:
            answers.put(str(problem))

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=timeout_s)
    except queue.Empty:
        answer = f"nothing was heard within {timeout_s:g} s"
    if isinstance(answer, str):
        raise EnvironmentFailed(f"The gateway at {address} does not tell its status: {answer}.")
    return answer


def status_of(settings: RunSettings, timeout_s: float = 5.0) -> dict[str, Any]:
    """The status of a run. Raises `EnvironmentFailed` if its gateway does not answer."""
    if not settings.gateway_port:
        raise EnvironmentFailed(f"Run {settings.run!r} has no gateway yet.")
    status = status_at(f"{settings.host}:{settings.gateway_port}", timeout_s)
    if status["run"] != settings.run:
        raise EnvironmentFailed(
            f"Run {settings.run!r} has ended; its gateway's port now belongs to run {status['run']!r}."
        )
    return status


def started_as(node: str) -> str:
    """The name a node's process was started under; the node's own name counts its incarnations."""
    return node.rpartition(".")[0] or node
