"""Asking a running gateway how things are."""

from __future__ import annotations

import queue
import threading
from typing import Any

from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.gateway.process import FACT
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
        except (ConnectionError, Refused) as problem:
            answers.put(str(problem))

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=timeout_s)
    except queue.Empty:
        answer = f"nothing was heard within {timeout_s:g} s"
    if isinstance(answer, str):
        raise EnvironmentFailed(f"The gateway at {address} does not tell its status: {answer}")
    return answer


def gateway_address(settings: RunSettings) -> str:
    """Where the gateway of a run listens, as ZooKeeper knows it."""
    with Coordination(settings.zookeeper, settings.run) as coordination:
        facts = coordination.get_fact(FACT)
    if not facts:
        raise EnvironmentFailed(f"Run {settings.run!r} has no gateway yet.")
    return str(facts["flight"])
