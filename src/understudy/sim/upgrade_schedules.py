"""Random schedules of a run that is upgraded: every fault in either version, and an operator who begins
upgrades, turns to the next version and back, commits and discards, at any time.

One seed makes one schedule. Each version is under chance of its own (`sim.schedules`), so one may be slow and
the other quick, one at rest and the other full of faults. At the end nothing fails any more, the rest of the
input comes, and the operator ends the upgrade as the seed wants it: by a commit, by taking it back, or not at
all.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from understudy.core.shape.partition import Partition
from understudy.sim.checkers import Violation, checkers
from understudy.sim.clock import STEPS_MAX, let_time_pass
from understudy.sim.faults import FAULTS, LOSSES
from understudy.sim.observing import Observer
from understudy.sim.schedules import Schedule, some_input
from understudy.sim.shapes import Shape, shape_of
from understudy.sim.upgrading import Upgrading
from understudy.sim.versions import Version
from understudy.sim.world import Choice

WISHES_MAX = 12
STRIKES_MAX = 8
#: How many buckets of each source come with every wish, so that an upgrade is never out of work.
INPUT_MAX = 3
#: How often a wish is had, compared with the others that can be: an upgrade is to get far before it ends.
ODDS: dict[str, float] = {"back": 0.5, "discard": 0.2}
#: What fails when the gateway would have gone on with an upgrade.
STRIKES = ("crash", "crash", "crash", "power")
#: The wishes that each ending of an upgrade takes, in this order.
ENDINGS: dict[str, tuple[str, ...]] = {
    "commit": ("begin", "turn", "commit"),
    "take back": ("back", "discard"),
    "stay": (),
    "stay turned": ("begin", "turn"),
}


def run_upgrade_seed(
    policy: str, seed: int, *, replicas: int | None = None, observers: Iterable[Observer] = ()
) -> Upgrading:
    """One schedule. Raises `Violation` if an invariant does not hold."""
    random = Random(f"upgrade/{policy}/{replicas or ''}/{seed}")
    shape = shape_of(policy, random, replicas, saved=True)
    return UpgradeSchedule(shape, random, observers).go()


class UpgradeSchedule:
    """A run under chance."""

    def __init__(self, shape: Shape, random: Random, observers: Iterable[Observer] = ()) -> None:
        self.random = random
        every = (*checkers(shape.setup.flow.reference), *observers)
        self.run = Upgrading(shape.setup, every, spares=shape.spares, keep=lambda n: random.randint(0, n))
        # Most of the input comes while the flow is upgraded.
        self.run.base.feed_max = some_input(shape, random) // 3 + 1
        self.schedules: dict[int, Schedule] = {}
        self.pace: dict[object, float] = {}
        self.wish_chance = 10 ** random.uniform(-3, -1)
        #: How often the base's newest saved state is damaged when it is to be adopted.
        self.damage_chance = random.choice((0, 0.3))
        #: How often something fails when the gateway would have gone on with an upgrade.
        self.strike_chance = random.choice((0, 0.1, 0.3))
        self.strikes_left = random.randint(0, STRIKES_MAX)
        #: Whether nothing fails any more.
        self.healed = False
        self.wishes_left = random.randint(1, WISHES_MAX)
        #: Whether an upgrade begins only when every partition was saved.
        self.patient = random.random() < 0.8
        self.ending = ENDINGS[random.choice(list(ENDINGS))]

    def go(self) -> Upgrading:
        run = self.run
        while run.steps < STEPS_MAX and self._go_on():
            pass
        self.healed = True
        for version in run.versions:
            version.feed_max = None
            if version.seated:
                self._schedule(version).heal()
        self._converge()
        return run

    # --- while something may fail ------------------------------------------------------------------------

    def _go_on(self) -> bool:
        if self.wishes_left and self.random.random() < self.wish_chance and self._wish():
            return True
        for actor in self._in_some_order():
            if self._schedule(actor).go_on() if isinstance(actor, Version) else self._own_step(actor):
                return True
        if not self.wishes_left:
            return False
        if not self._wish():
            self.wishes_left -= 1
        return True

    def _wish(self) -> bool:
        """The operator has a wish that can be had, and some input comes."""
        saved = self.run.base.vault.keys() >= set(self.run.setup.flow.topology.partitions)
        able = [wish for wish in self.run.wishes() if wish != ("begin",) or saved or not self.patient]
        if not able:
            return False
        self.wishes_left -= 1
        more = self.random.randint(0, INPUT_MAX)
        for version in self.run.versions:
            version.feed_max = more + (version.feed_max or 0)
        odds = [ODDS.get(str(wish[0]), 1) for wish in able]
        self.run.take(self.random.choices(able, odds)[0])
        return True

    # --- when nothing fails any more ---------------------------------------------------------------------

    def _converge(self) -> None:
        run = self.run
        while self._step() or any(let_time_pass(version) for version in run.versions) or self._end():
            if run.steps > 2 * STEPS_MAX:
                raise Violation("converged", run.base.with_choices("it goes on for ever"))
        run.check_converged()

    def _step(self) -> bool:
        if self.random.random() < self.wish_chance and self._end():
            return True
        return any(
            self._schedule(actor).step() if isinstance(actor, Version) else self._own_step(actor)
            for actor in self._in_some_order()
        )

    def _end(self) -> bool:
        """Take the next wish that the ending needs, if it can be had."""
        begun = self.run.happened["upgrades"] > 0
        able = [
            wish
            for wish in self.run.wishes()
            if wish[0] in self.ending and not (wish[0] == "begin" and begun)
        ]
        if able:
            self.run.take(able[0])
        return bool(able)

    # --- one step ----------------------------------------------------------------------------------------

    def _in_some_order(self) -> list[Version | Choice]:
        """The versions, and what the run itself can do: which of them is to take the next step, if it can."""
        paces: list[tuple[float, Version | Choice]] = [
            (self._pace_of(version.number), version) for version in self.run.versions if version.seated
        ]
        paces += [(self._pace_of(choice[:2], least=-2), choice) for choice in self.run.choices()]
        weighed = [(pace * self.random.random(), actor) for pace, actor in paces]
        return [actor for _, actor in sorted(weighed, key=lambda each: -each[0])]

    def _own_step(self, choice: Choice) -> bool:
        if not self._strikes():
            self.run.take(self._perhaps_older(choice))
        return True

    def _strikes(self) -> bool:
        """Whether something fails just now, when the gateway would have gone on with an upgrade."""
        if self.healed or not self.strikes_left or self.random.random() >= self.strike_chance:
            return False
        self.strikes_left -= 1
        name = self.random.choice(STRIKES)
        return self._schedule(self.run.base).let(name, {**FAULTS, **LOSSES}[name][0])

    def _perhaps_older(self, choice: Choice) -> Choice:
        """Of a partition's two saved states the newest may be damaged when it is to be adopted."""
        match choice:
            case "adopt", Partition() as partition if len(self.run.base.vault.get(partition, ())) > 1:
                older = not self.healed and self.random.random() < self.damage_chance
                return (*choice, "older") if older else choice
        return choice

    def _schedule(self, version: Version) -> Schedule:
        if version.number not in self.schedules:
            self.schedules[version.number] = Schedule(version, self.random)
            if self.healed:
                self.schedules[version.number].heal()
        return self.schedules[version.number]

    def _pace_of(self, what: object, least: float = -1) -> float:
        pace = self.pace.get(what)
        if pace is None:
            pace = self.pace[what] = 10 ** self.random.uniform(least, 0.3)
        return pace
