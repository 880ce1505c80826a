"""A trial: a run on one machine that is watched and harmed on purpose.

The demo, the cluster tests and the studies are all trials. They wait for states, never for times: a replica
is killed when both are active and output flows, and the next one when the standby has caught up.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.local import LocalRun
from understudy.runtime.seating import ROLES, players, seats_in, senders_in
from understudy.runtime.status import started_as

POLL_S = 0.2
#: A replica keeps up when it has no more than this many buckets to go.
BEHIND_BUCKETS_MAX = 20
#: The first groups of a replica are slow: Java still compiles.
GROUPS_MIN = 3
PAUSE_S_MAX = 2.0

Condition = Callable[[dict[str, Any]], bool]


class Finished(Exception):
    """The run's work was done before what was waited for happened."""


@dataclass(frozen=True)
class Harm:
    """Something that was done to a run: to whom, and when."""

    what: str
    target: str
    at_us: int


class Trial:
    """Watches and harms a local run. All waiting has an end.

    `tell` hears of every harm. `pause` is called between two looks at the run, with how long to wait; what
    it raises ends the waiting. `latest` is what the last look saw; None if the gateway did not answer.
    """

    def __init__(
        self,
        run: LocalRun,
        *,
        tell: Callable[[str], None] = lambda _text: None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.run = run
        self.harms: list[Harm] = []
        self.latest: dict[str, Any] | None = None
        self._tell = tell
        self._pause = pause
        #: Seats that were harmed, by copy: the controller has decided when other nodes sit there, or none.
        self._harmed: dict[str, int] = {}

    # --- watching ----------------------------------------------------------------------------------------

    def wait(self, what: str, condition: Condition, timeout_s: float = 120.0) -> dict[str, Any]:
        """Wait until the status meets the condition.

        Raises `Finished` if the run is done first, and `EnvironmentFailed` if the flow is lost or the time
        is over; both say what was waited for.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            status = self._status()
            if status is not None and condition(status):
                return status
            if self.run.finished:
                raise Finished(what)
            self._pause(POLL_S)
        raise self._in_vain(what, timeout_s)

    def wait_running(
        self, *, held_s: float = 0.0, patience_s: float = math.inf, timeout_s: float = 180.0
    ) -> dict[str, Any]:
        """Wait until the run is steady and has been for `held_s`.

        After harm to a seated node this includes that the controller has decided about it. On a busy machine
        a run may never be quite steady: after `patience_s`, warm replicas and some output are enough.
        """
        began_s = time.monotonic()
        since_s = math.inf

        def held(status: dict[str, Any]) -> bool:
            nonlocal since_s
            now_s = time.monotonic()
            decided = self._is_decided(status)
            since_s = min(since_s, now_s) if decided and steady(status) else math.inf
            tired = now_s - began_s > patience_s and decided and warm(status) and status["rows_out"] > 0
            return tired or now_s - since_s >= held_s

        return self.wait("a steady run", held, timeout_s)

    def wait_output(self, rows: int, timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait until that many more rows were delivered."""
        before: int = self.wait("a status", lambda _status: True, timeout_s)["rows_out"]
        target = before + rows

        def delivered(status: dict[str, Any]) -> bool:
            nonlocal before, target
            if status["rows_out"] < before:
                # The gateway was started again and counts from the beginning.
                target = rows
            before = status["rows_out"]
            return before >= target

        return self.wait(f"{rows} more rows of output", delivered, timeout_s)

    def wait_decided(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait until the controller has decided about every seated node that was harmed."""
        return self.wait("a decision about the harmed nodes", self._is_decided, timeout_s)

    def _is_decided(self, status: dict[str, Any]) -> bool:
        # A gateway that has just been started again does not know of any seat.
        seats = status["seats"]
        return all(
            copy in seats and (seats[copy]["status"] == "DEAD" or seats[copy]["epoch"] != epoch)
            for copy, epoch in self._harmed.items()
        )

    def wait_member(self, name: str, timeout_s: float = 120.0) -> dict[str, Any]:
        """Wait until a process that was started again is ready: a member, with or without a seat."""
        return self.wait(f"{name} as a member", lambda status: name in ready_processes(status), timeout_s)

    def wait_finished(self, timeout_s: float = 300.0) -> None:
        """Wait until every source has ended and everything is delivered."""
        try:
            self.wait("the end of the run", lambda _status: False, timeout_s)
        except Finished:
            return

    def _status(self) -> dict[str, Any] | None:
        self.latest = status = self.run.status()
        if status is not None and status["lost"]:
            raise EnvironmentFailed(
                f"The flow is lost: {status['lost'].rstrip('.')}. Logs are in {self._logs}."
            )
        return status

    def _in_vain(self, what: str, timeout_s: float) -> EnvironmentFailed:
        problem = EnvironmentFailed(
            f"Waited {timeout_s:.0f} s for {what}, which did not come. See {self._logs}."
        )
        # For a reader of the stack trace; a sentence for users has no room for it.
        problem.add_note(f"the last status was {self.latest}")
        return problem

    @property
    def _logs(self) -> str:
        return str(self.run.settings.path / "logs")

    # --- harming -----------------------------------------------------------------------------------------

    def process_in(self, role: str) -> str:
        """The process that plays a role of `seating` now. Raises `ValueError` if several do."""

        def found(status: dict[str, Any]) -> list[str]:
            children = self.run.children
            running = [m for m in status["members"] if children[started_as(m)].running]
            return players(role, seats_in(status), senders_in(status), running)

        status = self.wait(f"a {role}", lambda status: bool(found(status)))
        processes = [started_as(node) for node in found(status)]
        if len(processes) > 1:
            raise ValueError(f"{', '.join(processes)} are each {role} of some partitions: name one")
        return processes[0]

    def kill(self, role_or_name: str, number: signal.Signals = signal.SIGKILL) -> str:
        """Kill the process that plays a role, or a process by name; returns the process's name."""
        return self.kill_at_once([role_or_name], number)[0]

    def kill_at_once(
        self, roles_or_names: Sequence[str], number: signal.Signals = signal.SIGKILL
    ) -> list[str]:
        """Kill several processes with nothing in between; returns their names."""
        names = [self.process_in(each) if each in ROLES else each for each in roles_or_names]
        if "zookeeper" in names and self.run.zookeeper is None:
            raise ValueError("this run does not own its ZooKeeper")
        if number in (signal.SIGKILL, signal.SIGSTOP) and not set(names) <= {"gateway", "zookeeper"}:
            status = self.wait("a status", lambda _status: True)
            self._harmed |= {
                copy: seat["epoch"]
                for copy, seat in status["seats"].items()
                if started_as(seat["node"]) in names and seat["status"] != "DEAD"
            }
        for name in names:
            self._note(number.name, name)
            if name != "zookeeper":
                self.run.kill(name, number)
            elif self.run.zookeeper is not None:
                self.run.zookeeper.kill()
        return names

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


def ready_processes(status: dict[str, Any]) -> set[str]:
    """The node processes that have come up, by the names they were started under."""
    return {started_as(node) for node in status["members"]}


def all_active(status: dict[str, Any]) -> bool:
    seats = status["seats"].values()
    return bool(seats) and all(seat["status"] in ("ACTIVE", "BACKUP") for seat in seats)


def warm(status: dict[str, Any]) -> bool:
    """Whether every place is filled by a replica whose slow first groups are behind it."""
    return all_active(status) and all(
        status["nodes"].get(seat["node"], {}).get("groups", 0) >= GROUPS_MIN
        for seat in status["seats"].values()
        if seat["status"] == "ACTIVE"
    )


def steady(status: dict[str, Any]) -> bool:
    """Whether every replica is warm and keeps up with the input, and output comes regularly.

    Only the sender's pace shows in the output. The others must be as far, or they could not take over. What a
    node tells is the worst of its copies.
    """
    senders = status["senders"].values()
    if not warm(status) or status["last_output_s"] is None or not senders or None in senders:
        return False
    behind: list[int] = [
        status["nodes"][seat["node"]]["queued_buckets"]
        for seat in status["seats"].values()
        if seat["status"] == "ACTIVE"
    ]
    return max(behind) <= BEHIND_BUCKETS_MAX and float(status["last_output_s"]) < PAUSE_S_MAX
