"""Settings for processes on a mesh, and a connection that a test makes to one of them by hand."""

from __future__ import annotations

import queue
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from understudy.core.host.parcels import Parcel
from understudy.flow.policy import POLICIES
from understudy.runtime.mesh import PURPOSE
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import connect
from understudy.runtime.transport.parcels import frames_of, parcel_of

WAIT_S = 10.0


def settings_in(folder: Path) -> RunSettings:
    return RunSettings("run", "flow.py", str(folder), "", policy=replace(POLICIES["pair"], silence_ms=500))


class Caller:
    """A connection that calls itself node-9 and numbers its attempt as the test says."""

    def __init__(self, address: str, serial: int) -> None:
        self.arrived: queue.Queue[tuple[Parcel, int]] = queue.Queue()
        self.closed = threading.Event()
        opened: queue.Queue[Channel] = queue.Queue()
        hello = {"node": "node-9", "serial": serial}
        callbacks: dict[str, Any] = {
            "on_open": opened.put,
            "on_frame": lambda frame: self.arrived.put(parcel_of(frame)),
            "on_closed": lambda _why: self.closed.set(),
        }
        threading.Thread(
            target=connect, args=(address, PURPOSE, hello), kwargs=callbacks, daemon=True
        ).start()
        self.channel = opened.get(timeout=WAIT_S)

    def say(self, parcel: Parcel) -> None:
        self.channel.send(*frames_of(parcel))
