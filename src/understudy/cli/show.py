"""The demonstration's run: start, watch, kill at the right moments, and remember what happened when.

Kills happen when the run is in the state that makes them worth watching, not at fixed times: the primary
dies when both replicas are active and output is flowing, its former partner when the standby has caught up
in the primary's place and output is flowing again. The input has a fixed length, so the gateway ends by
itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from understudy.cli.interruption import Interruption
from understudy.cli.watching import Seen, Watch
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.local import LocalRun, memory_mb

STEADY_S = 8.0
#: On a busy machine it may never be quite steady; after this long it goes on anyway.
PATIENCE_S = 20.0
_LATENCY_MS_MAX = 2_500
_PAUSE_S_MAX = 2.0
_GROUP_MS_MAX = 2_000
_QUEUED_MAX = 20
_LOOK_EVERY_S = 0.1
_WEIGH_EVERY_S = 2.0

Say = Callable[[str], None]


class TooShort(Exception):
    """The input ended before everything was shown."""


class Interrupted(Exception):
    """The user has seen enough."""


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

    def __init__(self, run: LocalRun, watch: Watch, interruption: Interruption, say: Say) -> None:
        self._run = run
        self._watch = watch
        self._interruption = interruption
        self._say = say
        self._weighed_s = 0.0
        self.story = Story(now_us())

    def play(self, source_s: float) -> Story:
        """The whole run. Raises `TooShort` if the input ends before the second kill."""
        self._wait_for_nodes()
        self._wait_until_steady("Both replicas are active and output is flowing.")
        self.story.steady_us = now_us()
        first = self._kill("PRIM", "primary")
        survivor = self._watch.latest.status["seats"]["SEC"]["node"]
        self._wait_for_catch_up(first)
        self._wait_until_steady("Both places are filled again and output is flowing.")
        self._kill_node(survivor, "the former secondary")
        self._say("One replica is left. Waiting for the end of the input.")
        self._wait(lambda _seen: self._run.finished, source_s + 120.0, "the end of the run", may_finish=True)
        self.story.ended_us = now_us()
        self._say("Every packet has been taken in and every result delivered.")
        return self.story

    # --- moments -----------------------------------------------------------------------------------------

    def _wait_for_nodes(self) -> None:
        ready: set[str] = set()
        began_s = time.monotonic()

        def all_there(seen: Seen) -> bool:
            for name in sorted(seen.ready_nodes - ready):
                ready.add(name)
                self._say(f"{name} is ready after {time.monotonic() - began_s:.0f} s.")
            return ready >= set(self._run.node_names)

        self._wait(all_there, 300.0, "every node to start")

    def _wait_until_steady(self, then_say: str) -> None:
        began_s = time.monotonic()
        since_s = began_s

        def steady(seen: Seen) -> bool:
            nonlocal since_s
            status, now_s = seen.status, time.monotonic()
            if not flowing(seen):
                since_s = now_s
            # Output there must be, however busy the machine is.
            tired = seen.all_active and status.get("rows_out", 0) > 0 and now_s - began_s > PATIENCE_S
            return tired or now_s - since_s >= STEADY_S

        self._wait(steady, 600.0, "steady output")
        status = self._watch.latest.status
        self._say(f"{then_say} Latency {status['latency_ms']:.0f} ms, {status['rows_out']} results so far.")

    def _kill(self, slot: str, role: str) -> Kill:
        return self._kill_node(self._watch.latest.status["seats"][slot]["node"], role)

    def _kill_node(self, node: str, role: str) -> Kill:
        name = node.rpartition(".")[0] or node
        kill = Kill(name, role, now_us())
        self._run.kill(name)
        self.story.kills.append(kill)
        self._say(f"Killed {name}, {role}: its Python, its Java and everything else of it, with SIGKILL.")
        return kill

    def _wait_for_catch_up(self, kill: Kill) -> None:
        epoch = self._watch.latest.status["epoch"]
        told = False

        def caught_up(seen: Seen) -> bool:
            nonlocal told
            status = seen.status
            if not status or status["epoch"] <= epoch:
                return False
            if not told:
                told = True
                self._say(f"{kill.node} was declared dead after {(now_us() - kill.at_us) / 1e6:.1f} s.")
            return seen.all_active

        self._wait(caught_up, 120.0, "the standby to catch up")
        kill.caught_up_us = now_us()
        newest = max(self._watch.latest.status["seats"].values(), key=lambda seat: int(seat["epoch"]))
        kill.caught_up = newest["node"].rpartition(".")[0] or newest["node"]
        took_s = (kill.caught_up_us - kill.at_us) / 1e6
        self._say(f"{kill.caught_up} has caught up in its place, {took_s:.1f} s after the kill.")

    # --- waiting -----------------------------------------------------------------------------------------

    def _wait(
        self, until: Callable[[Seen], bool], limit_s: float, what: str, *, may_finish: bool = False
    ) -> None:
        deadline_s = time.monotonic() + limit_s
        while not until(self._watch.latest):
            if self._interruption.wait(_LOOK_EVERY_S):
                raise Interrupted
            self._run.check()
            self._weigh()
            lost = self._watch.latest.status.get("lost")
            if lost:
                raise EnvironmentFailed(
                    f"The flow is lost: {lost.rstrip('.')}. Logs are in {self._run.settings.path}/logs."
                )
            if self._run.finished and not may_finish:
                raise TooShort(what)
            if time.monotonic() > deadline_s:
                logs = self._run.settings.path / "logs"
                raise EnvironmentFailed(f"Waited {limit_s:.0f} s for {what} in vain. Logs are in {logs}.")

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


def flowing(seen: Seen) -> bool:
    """Whether both places are filled, output comes regularly, and both replicas keep up with the input.

    Only the sender's pace shows in the output. The other one must be as far, or it could not take over.
    """
    status = seen.status
    if not seen.all_active or status.get("sender") is None or status.get("last_output_s") is None:
        return False
    replicas = [status["nodes"].get(seat["node"], {}) for seat in status["seats"].values()]
    return (
        status["last_output_s"] < _PAUSE_S_MAX
        and status["latency_ms"] < _LATENCY_MS_MAX
        and all(
            facts.get("last_group_ms", math.inf) < _GROUP_MS_MAX and facts["queued_buckets"] < _QUEUED_MAX
            for facts in replicas
        )
    )


def now_us() -> int:
    return time.time_ns() // 1_000
