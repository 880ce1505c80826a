"""A trial: a run on one machine that is watched and harmed on purpose.

The demo, the cluster tests and the studies are all trials. They wait for states, never for times: a replica
is killed when both are active and output flows, and the next one when the standby has caught up.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.local import LocalRun
from understudy.runtime.status import gateway_address, status_at

POLL_S = 0.1
#: A newcomer has caught up when it has no more than this many buckets to go.
BEHIND_BUCKETS_MAX = 30


@dataclass(frozen=True)
class Harm:
    """Something that was done to a run: to whom, and when."""

    what: str
    target: str
    at_us: int


class Trial:
    """Watches and harms a local run. All waiting has an end."""

    def __init__(self, run: LocalRun, *, tell: Callable[[str], None] = lambda _text: None) -> None:
        self.run = run
        self.harms: list[Harm] = []
        self._tell = tell
        self._address: str | None = None
        self._decided_after = 0

    # --- watching ----------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any] | None:
        """The gateway's status; None while it cannot be had."""
        self.run.check()
        try:
            if self._address is None:
                self._address = gateway_address(self.run.settings)
            return status_at(self._address, timeout_s=2.0)
        except EnvironmentFailed:
            self._address = None
            return None

    def wait(
        self, what: str, condition: Callable[[dict[str, Any]], bool], timeout_s: float = 120.0
    ) -> dict[str, Any]:
        """Wait until the status meets the condition. Raises `TimeoutError` that says what was waited for."""
        deadline = time.monotonic() + timeout_s
        status: dict[str, Any] | None = None
        while time.monotonic() < deadline:
            status = self.status()
            if status is not None:
                if status["lost"]:
                    raise EnvironmentFailed(f"The flow is lost: {status['lost']}")
                if condition(status):
                    return status
            time.sleep(POLL_S)
        raise TimeoutError(f"{what} did not happen within {timeout_s:g} s; the last status was {status}")

    def wait_running(self, timeout_s: float = 180.0) -> dict[str, Any]:
        """Wait until every seat is active, every replica keeps up, and output flows.

        After harm to a seated node this includes that the controller has decided about it.
        """
        return self.wait(
            "a steady state", lambda s: s["epoch"] > self._decided_after and _steady(s), timeout_s
        )

    def wait_output(self, rows: int, timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait until that many more rows were delivered."""
        status = self.wait("a status", lambda _status: True, timeout_s)
        target = status["rows_out"] + rows
        return self.wait(
            f"{rows} more rows of output",
            lambda s: s["rows_out"] >= target or s["rows_out"] < rows,
            timeout_s,
        )

    def wait_epoch(self, after: int, timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait until the controller has decided something after this epoch."""
        return self.wait("a new view", lambda status: status["epoch"] > after, timeout_s)

    def wait_member(self, name: str, timeout_s: float = 120.0) -> dict[str, Any]:
        """Wait until a process that was started again is ready: a member, with or without a seat."""
        return self.wait(
            f"{name} as a member",
            lambda status: any(_base(node) == name for node in status["members"]),
            timeout_s,
        )

    def wait_finished(self, timeout_s: float = 300.0) -> None:
        """Wait until every source has ended and everything is delivered."""
        deadline = time.monotonic() + timeout_s
        while not self.run.finished:
            status = self.status()
            if status is not None and status["lost"]:
                raise EnvironmentFailed(f"The flow is lost: {status['lost']}")
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the run did not finish within {timeout_s:g} s; the last status was {status}"
                )
            time.sleep(POLL_S)

    # --- harming -----------------------------------------------------------------------------------------

    def process_in(self, role: str) -> str:
        """The process that a role is played by now: `sender`, `holder` (the other one) or `standby`.

        `standby` is the node that is catching up, or else one without a seat.
        """
        status = self.wait("a status", lambda s: s["sender"] is not None)
        seats = status["seats"]
        if role == "standby":
            seated = {seat["node"]: seat["status"] for seat in seats.values()}
            catching_up = [_base(node) for node, state in seated.items() if state == "STDBY"]
            active = {_base(node) for node, state in seated.items() if state == "ACTIVE"}
            free = [
                name for name in self.run.node_names if name not in active and self.run.children[name].running
            ]
            return (catching_up or free)[0]
        sender = status["sender"]
        other = next(slot for slot in seats if slot != sender)
        return _base(seats[sender if role == "sender" else other]["node"])

    def kill(self, role_or_name: str, number: signal.Signals = signal.SIGKILL) -> str:
        """Kill whoever plays a role, or a process by name; returns the process's name."""
        roles = ("sender", "holder", "standby")
        name = self.process_in(role_or_name) if role_or_name in roles else role_or_name
        if number in (signal.SIGKILL, signal.SIGSTOP) and name not in ("gateway", "zookeeper"):
            status = self.wait("a status", lambda _status: True)
            if name in {_base(seat["node"]) for seat in status["seats"].values() if seat["status"] != "DEAD"}:
                self._decided_after = status["epoch"]
        self._note(number.name, name)
        if name == "zookeeper":
            if self.run.zookeeper is None:
                raise ValueError("this run does not own its ZooKeeper")
            self.run.zookeeper.kill()
        else:
            self.run.kill(name, number)
        return name

    def restart(self, name: str) -> None:
        """Start a killed process again."""
        self._note("restart", name)
        if name == "zookeeper":
            if self.run.zookeeper is not None:
                self.run.zookeeper.start()
        else:
            self.run.children[name].process.wait()
            self.run.restart(name)

    def _note(self, what: str, target: str) -> None:
        self.harms.append(Harm(what, target, time.time_ns() // 1_000))
        self._tell(f"{what} {target}")


def _base(node: str) -> str:
    """The process behind a node's incarnation."""
    return node.rsplit(".", 1)[0]


def _steady(status: dict[str, Any]) -> bool:
    seats = status["seats"].values()
    if not seats or status["sender"] is None or not status["rows_out"]:
        return False
    if any(seat["status"] != "ACTIVE" for seat in seats):
        return False
    behind = [status["nodes"].get(seat["node"], {}).get("queued_buckets") for seat in seats]
    groups = [status["nodes"].get(seat["node"], {}).get("groups", 0) for seat in seats]
    return all(n is not None and n <= BEHIND_BUCKETS_MAX for n in behind) and min(groups) >= 3
