"""A process that joins a run as a node and stays until it is killed or its standard input closes.

With "lead" it also leads. With "die-before-view-2" or "die-after-view-2" it ends, as by a crash, just
before or after it publishes that view.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from understudy.core.shape.topology import chain_of
from understudy.core.view.controller import Controller
from understudy.core.view.view import View
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.leader import Leadership

address, run, name, *options = sys.argv[1:]


class MortalCoordination(Coordination):
    def publish(self, view: View, expected_version: int | None) -> int:
        if f"die-before-view-{view.epoch}" in options:
            os._exit(9)
        version = super().publish(view, expected_version)
        if f"die-after-view-{view.epoch}" in options:
            os._exit(9)
        return version


coordination = MortalCoordination(address, run, session_timeout_ms=1_000)
if "lead" in options:
    Leadership(coordination, name, partial(Controller, chain_of(flow=1), 2, 2)).start().await_leading(10.0)
coordination.join("node", name, {"pid": os.getpid()})
print("ready", flush=True)
sys.stdin.read()
