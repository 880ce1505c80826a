"""The demonstration's run: start, watch, kill at the right moments, and remember what happened when.

Kills happen when the run is in the state that makes them worth watching, not at fixed times: the primary
dies when all replicas are active and output is flowing, the secondary when the standby has caught up in the
primary's place and output is flowing again. Of a flow of several partitions, which has no such roles, two
nodes die one after the other, and each time the copies that died with it are made again elsewhere. The input
has a fixed length, so the gateway ends by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

from understudy.cli.interruption import Interrupted, Interruption
from understudy.cli.picture import figures
from understudy.cli.policies import times
from understudy.runtime.local import LocalRun
from understudy.runtime.process_tree import memory_mb
from understudy.runtime.seating import PRIMARY, SECONDARY, in_one_piece, seats_in
from understudy.runtime.status import started_as
from understudy.runtime.trial import Trial, all_active, ready_processes

STEADY_S = 8.0
#: On a busy machine it may never be quite steady; after this long it goes on anyway.
PATIENCE_S = 20.0
#: So many groups of every engine show what is normal in a partitioned flow.
STEPS = 6
_PROGRESS_EVERY_S = 10.0
_WEIGH_EVERY_S = 2.0

Say = Callable[[str], None]


@dataclass
class Kill:
    node: str
    role: str
    at_us: int
    caught_up: str | None = None
    caught_up_us: int | None = None


@dataclass
class Story:
    """What happened when. Memory is the highest seen, of each process and of all at one moment, in MB.

    What a process holds counts pages that it shares with others; `total_mb` counts those once.
    """

    began_us: int
    steady_us: int = 0
    ended_us: int = 0
    kills: list[Kill] = field(default_factory=list)
    memory_mb: dict[str, float] = field(default_factory=dict)
    total_mb: float = 0.0


class Show:
    """One demonstration. The run does not replace nodes that die."""

    def __init__(self, run: LocalRun, interruption: Interruption, say: Say) -> None:
        self._run = run
        self._trial = Trial(run, pause=self._pause)
        self._interruption = interruption
        self._print = say
        self._said_s = self._began_s = time.monotonic()
        self._weighed_s = 0.0
        self.story = Story(now_us())

    def play(self, source_s: float) -> Story:
        """Run from start to end. Raises the trial's `Finished` if the input ends before the second kill."""
        self._wait_for_nodes()
        status = self._wait_until_steady("Every place is filled and output is flowing.")
        self.story.steady_us = now_us()
        if in_one_piece(seats_in(status)):
            survivor = self._trial.process_in(SECONDARY)
            self._wait_for_catch_up(self._kill(PRIMARY, "the primary"))
            self._wait_until_steady("Every place is filled again and output is flowing.")
            self._kill(survivor, "the former secondary")
            left = len(status["seats"]) - 1
            self._say("One replica is left." if left == 1 else f"{left} replicas are left.")
        else:
            first, second = holders(status)[1:3] if len(holders(status)) > 2 else holders(status)
            self._await_steps()
            self._wait_for_catch_up(self._kill(first, copies_on(status, first)))
            status = self._wait_until_steady("Every place is filled again and output is flowing.")
            self._wait_for_catch_up(self._kill(second, copies_on(status, second)))
        self._say("Waiting for the end of the input.")
        self._trial.wait_finished(source_s + 120.0)
        self.story.ended_us = now_us()
        self._say("Every packet has been taken in and every result delivered.")
        return self.story

    # --- moments -----------------------------------------------------------------------------------------

    def _wait_for_nodes(self) -> None:
        ready: set[str] = set()

        def all_there(status: dict[str, Any]) -> bool:
            for name in sorted(ready_processes(status) - ready):
                ready.add(name)
                self._say(f"{name} is ready after {time.monotonic() - self._began_s:.0f} s.")
            return ready >= set(self._run.node_names)

        self._trial.wait("every node to start", all_there, 300.0)

    def _wait_until_steady(self, then_say: str) -> dict[str, Any]:
        status = self._trial.wait_running(held_s=STEADY_S, patience_s=PATIENCE_S, timeout_s=600.0)
        latency = figures({}, status).latency
        self._say(f"{then_say} Latency {latency}, {status['rows_out']} results so far.")
        return status

    def _await_steps(self) -> None:
        """Let every engine take some groups, so that it is known what is normal."""
        groups = {node: facts["groups"] for node, facts in self._status()["nodes"].items()}

        def stepped(status: dict[str, Any]) -> bool:
            return all(status["nodes"][node]["groups"] >= before + STEPS for node, before in groups.items())

        self._trial.wait("some groups of every engine", stepped)

    def _status(self) -> dict[str, Any]:
        return self._trial.wait("a status", lambda _status: True)

    def _kill(self, target: str, role: str) -> Kill:
        name = self._trial.kill(target)
        kill = Kill(name, role, self._trial.harms[-1].at_us)
        self.story.kills.append(kill)
        self._say(f"Killed {name}, {role}: Python, Java and all that it started, with SIGKILL.")
        return kill

    def _wait_for_catch_up(self, kill: Kill) -> None:
        self._trial.wait_decided()
        self._say(f"{kill.node} was declared dead after {(now_us() - kill.at_us) / 1e6:.1f} s.")
        status = self._trial.wait("the standby to catch up", all_active)
        kill.caught_up_us = now_us()
        newest = max(status["seats"].values(), key=lambda seat: int(seat["epoch"]))
        kill.caught_up = started_as(newest["node"])
        took_s = (kill.caught_up_us - kill.at_us) / 1e6
        again = times(status["replicas"]).capitalize()
        self._say(f"{again} again, {took_s:.1f} s after the kill, thanks to {kill.caught_up}.")

    # --- meanwhile ---------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self._said_s = time.monotonic()
        self._print(text)

    def _pause(self, seconds: float) -> None:
        """Called between two looks at the run."""
        if self._interruption.wait(seconds):
            raise Interrupted
        self._weigh()
        if time.monotonic() - self._said_s >= _PROGRESS_EVERY_S:
            self._say(progress(self._trial.latest, self._run.node_names))

    def _weigh(self) -> None:
        """Look at the memory of every process now and then."""
        if time.monotonic() - self._weighed_s < _WEIGH_EVERY_S:
            return
        self._weighed_s = time.monotonic()
        pids = {name: child.process.pid for name, child in self._run.children.items() if child.running}
        server = self._run.zookeeper
        if server is not None and server.pid is not None:
            pids["zookeeper"] = server.pid
        for name, pid in pids.items():
            held_mb = sum(memory_mb(pid).values())
            self.story.memory_mb[name] = round(max(held_mb, self.story.memory_mb.get(name, 0.0)), 1)
        total_mb = sum(proportional_mb(pid) for pid in pids.values())
        self.story.total_mb = round(max(total_mb, self.story.total_mb), 1)


def proportional_mb(pid: int) -> float:
    """Memory of a process and its descendants, with its share of each page that others hold too.

    Three Javas map the same start-up cache and libraries, which should not count thrice.
    """
    total_mb = 0.0
    try:
        process = psutil.Process(pid)
        for member in [process, *process.children(recursive=True)]:
            with suppress(psutil.Error):
                total_mb += member.memory_full_info().pss / 2**20
    except psutil.NoSuchProcess:
        pass
    return total_mb


def holders(status: dict[str, Any]) -> list[str]:
    """The processes that hold copies of partitions."""
    return sorted({started_as(seat["node"]) for seat in status["seats"].values() if seat["status"] != "DEAD"})


def copies_on(status: dict[str, Any], name: str) -> str:
    """What a process holds, in words."""
    copies = [copy for copy, seat in status["seats"].items() if started_as(seat["node"]) == name]
    return f"with {', '.join(copies)}"


def progress(status: dict[str, Any] | None, nodes: list[str]) -> str:
    """Where a run is that has had no news for a while."""
    if status is None:
        return "... the gateway does not answer yet."
    if not status["rows_in"]:
        starting = [name for name in nodes if name not in ready_processes(status)]
        return f"... Spark is still starting on {', '.join(starting)}." if starting else "... no packets yet."
    return f"... {status['rows_in']} packets in, {status['rows_out']} results out."


def now_us() -> int:
    return time.time_ns() // 1_000
