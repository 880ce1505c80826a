"""Random schedules: faults while data flows, then healing, then everything must have arrived.

One seed makes one schedule. In every other one the flow saves its state. The seed draws the shape of the
flow, its input, how often each kind of choice comes (some worlds have slow views, some slow engines, some
slow nodes), and which faults come when.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from understudy.sim.checkers import checkers
from understudy.sim.clock import STEPS_MAX, asks, converge, saves
from understudy.sim.faults import FAULTS, LOSSES, RECOVERIES, Fault, heal, moving, recovering
from understudy.sim.observing import Observer
from understudy.sim.shapes import Shape, shape_of
from understudy.sim.survival import may_fire
from understudy.sim.world import Choice, World

FAULTS_MAX = 16
#: How many faults are tried until one can happen.
ATTEMPTS = 5
#: What is tried when a state moves, beside the failure of that very step.
ON_THE_MOVE = (
    "kill",
    "kill lender",
    "kill lender",
    "kill standby",
    "sever",
    "crash",
    "lead",
    "suspect",
    "hung fetch",
)
#: What is also tried there, and when a state is saved or begun with, or a log is read again.
ALL_AT_ONCE = ("kill all", "power")
#: How each of these steps fails by itself.
FAILS = {
    "snap": "bad snapshot",
    "fetch": "bad fetch",
    "install": "bad install",
    "save": "bad save",
    "start": "old state",
}


def run_seed(
    policy: str, seed: int, *, replicas: int | None = None, observers: Iterable[Observer] = ()
) -> World:
    """One schedule. Raises `Violation` if an invariant does not hold."""
    random = Random(f"{policy}/{replicas or ''}/{seed}")
    world = world_of(shape_of(policy, random, replicas, saved=seed % 2 == 1), random, observers)
    return Schedule(world, random).run()


def world_of(shape: Shape, random: Random, observers: Iterable[Observer] = ()) -> World:
    every = (*checkers(shape.setup.flow.reference), *observers)
    world = World(shape.setup, every, keep=lambda n: random.randint(0, n))
    for _ in range(shape.setup.nodes + shape.spares):
        world.add_node()
    world.feed_max = some_input(shape, random)
    return world


def some_input(shape: Shape, random: Random) -> int:
    """How many buckets of each source come while something may fail: some come only after that, so that
    catching up is never out of work.
    """
    return random.randint(1, min(len(buckets) for buckets in shape.setup.flow.inputs.values()))


class Schedule:
    """A world under chance."""

    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.random = random
        self.pace: dict[object, float] = {"feed": 10 ** random.uniform(-1.5, 0.5)}
        self.timer_chance = 10 ** random.uniform(-3, -1.3)
        self.fault_chance = 10 ** random.uniform(-2.5, -1.3)
        #: How often something fails at each step of a state's movement.
        self.strike_chance = random.choice((0, 0.1, 0.3))
        #: How often a snapshot does not get into the vault, or is damaged there.
        self.damage_chance = random.choice((0, 0.2, 0.6))
        #: How much more often something fails while a standby waits or catches up.
        self.haste = random.choice((1, 3, 6))
        self.recovery_chance = 10 ** random.uniform(-2, -1)
        self.faults_left = random.randint(0, FAULTS_MAX)
        self.faults = {**FAULTS, **(LOSSES if world.setup.saved else {})}
        self.odds = {name: odds * 10 ** random.uniform(-1, 0.5) for name, (_, odds) in self.faults.items()}

    def run(self) -> World:
        while self.world.steps < STEPS_MAX and self.go_on():
            pass
        self.heal()
        converge(self.world, self.step)
        return self.world

    def go_on(self) -> bool:
        """Let something happen or fail; False if only timers are left."""
        world = self.world
        if self.random.random() < self.recovery_chance:
            name = self.random.choice(list(RECOVERIES))
            self.let(name, RECOVERIES[name])
        haste = self.haste if self.faults_left and (moving(world) or recovering(world)) else 1
        if self.faults_left and self.random.random() < self.fault_chance * haste:
            self._fault()
        elif not self.step():
            if not self.faults_left:
                return False
            self._fault()
        return True

    def heal(self) -> None:
        """Nothing fails any more, and all input comes."""
        heal(self.world)
        self.faults_left = self.damage_chance = 0
        self.world.feed_max = None

    # --- one step ----------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Let one choice happen; False if there are only timers."""
        if self.random.random() < self.timer_chance and self._fire(self.world.timers()):
            return True
        choices = self.world.choices()
        if not choices:
            return False
        # Requests are repeated and states saved more often than other timers fire, and less often than
        # anything is handled.
        choices += [timer for timer in self.world.timers() if asks(timer) or saves(self.world, timer)]
        weights = [self._weight(choice) for choice in choices]
        self._take(self.random.choices(choices, weights)[0])
        return True

    def _weight(self, choice: Choice) -> float:
        kind = choice[0]
        if kind == "timer":
            return 0.1 * self._pace_of("deliver" if asks(choice) else "save")
        where = choice[-1] if kind == "deliver" else choice[1] if len(choice) > 1 else ""
        # Some processes hear of views mostly through others.
        return self._pace_of(kind) * self._pace_of((kind == "view", where), -3 if kind == "view" else -1)

    def _pace_of(self, what: object, least: float = -1) -> float:
        pace = self.pace.get(what)
        if pace is None:
            pace = self.pace[what] = 10 ** self.random.uniform(least, 0.3)
        return pace

    def _take(self, choice: Choice) -> None:
        match choice:
            case "view", str(name), int(newest):
                # Some views are never seen.
                known = self.world.processes[name].view_epoch
                self.world.take(("view", name, self.random.randint(known + 1, newest)))
            case ((("snap" | "fetch" | "install" | "reread") as what), *_) if self._strikes():
                self._strike(what)
            case ((("save" | "start") as what), *_) if self.world.setup.saved and self._strikes():
                self._strike(what)
            case ((("save" | "start") as what), *_) if self._damages():
                if not self.let(FAILS[what], self.faults[FAILS[what]][0]):
                    self.world.take(choice)
            case _:
                self.world.take(choice)

    def _strike(self, what: str) -> None:
        """Let something fail just now, when this step would have gone on."""
        saved = ALL_AT_ONCE if self.world.setup.saved else ()
        tried = self.random.sample([*ON_THE_MOVE, *saved], k=ATTEMPTS)
        if what in FAILS and self.random.random() < 0.5:
            tried = [FAILS[what], *tried]
        next((name for name in tried if self.let(name, self.faults[name][0])), None)

    def _damages(self) -> bool:
        """Whether a save, or a saved state, is bad: that costs no copy, and may happen time and again."""
        return self.world.setup.saved and self.random.random() < self.damage_chance

    def _strikes(self) -> bool:
        struck = self.faults_left > 0 and self.random.random() < self.strike_chance
        self.faults_left -= struck
        return struck

    def _fire(self, timers: list[Choice]) -> bool:
        able = [timer for timer in timers if may_fire(self.world, timer)]
        if not able:
            return False
        # One that waits longer fires less often.
        delays = [timer[-1] for timer in able if isinstance(timer[-1], int)]
        self._take(self.random.choices(able, [1 / (delay_ms + 1) for delay_ms in delays])[0])
        return True

    def _fault(self) -> None:
        """Let something fail that can."""
        self.faults_left -= 1
        names = self.random.choices(list(self.odds), list(self.odds.values()), k=ATTEMPTS)
        next((name for name in names if self.let(name, self.faults[name][0])), None)

    def let(self, name: str, fault: Fault) -> bool:
        """Let this fail, or end, if it can."""
        world = self.world
        target = fault(world, self.random)
        if target is None:
            return False
        world.faults[name] += 1
        world.note(f"FAULT {name} {target}")
        for observer in world.observers:
            observer.fault(name, target)
        return True
