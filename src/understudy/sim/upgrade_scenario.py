"""Scenarios of a run that is upgraded: acts of `sim.scenario`, and the operator's.

    UpgradeScript(setup).play([wait("active"), feed(4), wish("begin"), on(2), wait("active"), wish("turn")])

What an act does to a copy, and what is waited for, is of one version, of the first until `on` names another.
Chance decides between the steps of all versions and of the run itself. At the end the upgrade stays as it is,
and both versions must have caught up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from understudy.sim.checkers import Violation, checkers
from understudy.sim.clock import STEPS_MAX, let_time_pass
from understudy.sim.faults import heal
from understudy.sim.scenario import Act, Script
from understudy.sim.setup import Setup
from understudy.sim.upgrading import Upgrading
from understudy.sim.versions import Version
from understudy.sim.world import Choice, World


@dataclass(frozen=True, slots=True)
class Wish:
    """The operator's next step, as soon as it can be had."""

    what: str


@dataclass(frozen=True, slots=True)
class On:
    """The acts that follow are of this version."""

    version: int


def wish(what: str) -> Wish:
    return Wish(what)


def on(version: int) -> On:
    return On(version)


def _version_of(choice: Choice) -> int | None:
    """The version that a choice of the run itself is about, if it is about one."""
    match choice:
        case "tell sink", int(version):
            return version
    return None


def run_of(world: World) -> Upgrading:
    """The run that a world is a version of."""
    assert isinstance(world, Version)
    return world.run


class UpgradeScript(Script):
    """A scenario on a run."""

    def _begin(self, setup: Setup, spares: int) -> World:
        self.upgrading = Upgrading(
            setup, checkers(setup.flow.reference), spares=spares, keep=lambda n: self.random.randint(0, n)
        )
        return self.upgrading.base

    def play(self, acts: Sequence[Act | Wish | On]) -> Upgrading:
        for act in acts:
            match act:
                case Wish(what):
                    self._wish((what,))
                case On(number):
                    (self.world,) = (each for each in self.upgrading.versions if each.number == number)
                case _:
                    self._carry_out(act)
        self.held = []
        self._converge()
        return self.upgrading

    def _wish(self, choice: Choice) -> None:
        run = self.upgrading
        while choice not in run.wishes():
            if not (self._step() or self._let_time_pass()) or run.steps > STEPS_MAX:
                raise Violation("converged", run.base.with_choices(f"this could never be had: {choice[0]}"))
        run.take(choice)

    def _feed(self, count: int) -> None:
        for version in self.upgrading.versions:
            version.feed_max = (version.feed_max or 0) + count

    def _converge(self) -> None:
        run = self.upgrading
        for version in run.versions:
            version.feed_max = None
            if version.seated:
                heal(version)
        while self._step() or self._let_time_pass():
            if run.steps > STEPS_MAX:
                raise Violation("converged", run.base.with_choices("it goes on for ever"))
        run.check_converged()

    def _step(self) -> bool:
        run = self.upgrading
        able: list[tuple[Upgrading | Version, Choice]] = [
            (run, choice) for choice in run.choices() if self._may(choice, _version_of(choice))
        ]
        for version in run.versions:
            able += [(version, choice) for choice in version.choices() if self._may(choice, version.number)]
        if able:
            actor, choice = self.random.choice(able)
            actor.take(choice)
        return bool(able)

    def _let_time_pass(self) -> bool:
        return any(
            let_time_pass(version, partial(self._may, version=version.number))
            for version in self.upgrading.versions
        )
