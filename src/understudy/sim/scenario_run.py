"""Carries scenarios out in virtual time."""

from __future__ import annotations

from random import Random
from typing import Any

from understudy.core.buffer import Acks
from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.view import Status
from understudy.sim.checkers import Reference, Violation
from understudy.sim.convergence import check_converged
from understudy.sim.items import GATEWAY, Setup
from understudy.sim.random_schedules import inputs
from understudy.sim.scenario import (
    Act,
    CutLinks,
    FeedBucket,
    KillGateway,
    KillSlot,
    Scenario,
    Standby,
    Wait,
)
from understudy.sim.timed import TimedWorld

WAIT_STEPS_MAX = 5_000
_SEEN = {"snapshot": "snapshot", "installed": "installed", "attached": "attached", "taken over": "sender"}


class ScenarioWorld(TimedWorld):
    """A world whose source and faults follow a scenario. Delays are even unless a seed is to vary them."""

    def __init__(self, scenario: Scenario, seed: int = 0, *, acks: Acks = Acks.CUMULATIVE) -> None:
        count = sum(act.count for act in scenario if isinstance(act, FeedBucket))
        setup = Setup(acks=acks, lag_buckets=0)
        reference = Reference(inputs(Random(seed), count, dense=acks is Acks.EACH), lag_buckets=0)
        super().__init__(setup, reference, seed, even=seed == 0)
        self.scenario = scenario
        self.fed = 0
        self.seen: set[str] = set()

    def may_seal(self, sealed: int) -> bool:
        return sealed < self.fed

    def observe(self, by: str, record: str, /, **facts: Any) -> None:
        self.seen.add(record)

    def run(self) -> None:
        """Carry the scenario out, heal, and require convergence."""
        try:
            self.begin()
            for act in self.scenario:
                self._act(act)
            while self.next_step() is not None:
                pass
            check_converged(self)
        except (Violation, PeerError, BrokenInvariant) as error:
            raise self.explain(error) from error

    def _act(self, act: Act) -> None:
        self.faults.append(f"{act} at step {self.steps}")
        match act:
            case FeedBucket(count):
                self.fed += count
            case KillSlot(slot):
                name = self.seated(slot)
                if name is None or name not in self.nodes:
                    raise ValueError(f"nobody sits in {slot.value}, so nobody can be killed there")
                self.kill(name)
            case KillGateway():
                self.crash_gateway()
            case Standby():
                self.add_node()
            case CutLinks(slot):
                for conn in sorted(self.open, key=lambda conn: conn.name):
                    if conn.node == self.seated(slot):
                        self.sever(conn, (GATEWAY, conn.node))
            case Wait(moment):
                self._wait(moment)

    def _wait(self, moment: str) -> None:
        for _ in range(WAIT_STEPS_MAX):
            if self._came(moment):
                self.seen.clear()
                return
            if self.next_step() is None:
                break
        raise Violation("converged", f"{moment!r} never came")

    def _came(self, moment: str) -> bool:
        if moment in _SEEN:
            return _SEEN[moment] in self.seen
        view = self.controller.view
        statuses = [seat.status for seat in view.seats.values()] if view is not None else []
        if moment == "caught up":
            return bool(statuses) and all(status is Status.ACTIVE for status in statuses)
        if moment == "seated":
            return Status.STDBY in statuses
        sealed = self.gateway.disk.sealed_count
        complete = self.reference.inputs[sealed - 1].number if sealed else None
        return sealed == self.fed and self.gateway.disk.delivered == complete


def run_scenario(scenario: Scenario, seed: int = 0, *, acks: Acks = Acks.CUMULATIVE) -> ScenarioWorld:
    """The scenario's world at rest. Raises `Violation` if an invariant breaks."""
    world = ScenarioWorld(scenario, seed, acks=acks)
    world.run()
    return world
