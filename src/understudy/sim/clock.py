"""When timers fire in a world without a clock: when nothing else can happen, those that are due first.

A timer that is set again and again is due at a multiple of its delay, so it keeps no longer one waiting.
"""

from __future__ import annotations

from collections.abc import Callable

from understudy.core.shape.partition import Copy
from understudy.sim.checkers import Violation
from understudy.sim.invariants import check_converged
from understudy.sim.survival import may_fire
from understudy.sim.world import Choice, World

#: A world that takes more steps never comes to rest.
STEPS_MAX = 20_000
#: How often all timers fire without effect before a world counts as at rest: a hung fetch ends at the second.
IDLE_ROUNDS = 3


def let_time_pass(world: World, may: Callable[[Choice], bool] = lambda _: True) -> bool:
    """Fire timers until something can happen; False if nothing ever will."""
    for _ in range(IDLE_ROUNDS):
        for timer in sorted(world.timers(), key=lambda each: (_due_ms(world, each), str(each))):
            if timer in world.timers() and may(timer) and may_fire(world, timer):
                world.fired[timer] += 1
                world.take(timer)
            if any(map(may, world.choices())):
                return True
    return False


def converge(world: World, step: Callable[[], bool], may: Callable[[Choice], bool] = lambda _: True) -> None:
    """Take steps until nothing can happen any more, as time passes too; then everything must have arrived."""
    while step() or let_time_pass(world, may):
        if world.steps > STEPS_MAX:
            raise Violation("converged", world.with_choices("it goes on for ever"))
    try:
        check_converged(world)
    except Violation as violation:
        raise Violation(violation.invariant, world.with_choices(violation.what)) from violation


def asks(timer: Choice) -> bool:
    """Whether a standby repeats its request, or a consumer its attempt, when this timer fires."""
    return timer[0] == "timer" and isinstance(timer[2], tuple) and timer[2][0] in ("ask", "try")


def saves(world: World, timer: Choice) -> bool:
    """Whether a copy would save its state, or ship it to a backup, if this timer fired."""
    match timer:
        case "timer", str(name), (("save" | "ship") as what, Copy() as copy, int(epoch)), _:
            resident = world.processes[name].host.residents.get(copy)
            if resident is None or resident.epoch != epoch:
                return False
            machine = resident.machine
            if what == "save":
                return machine.worth_saving
            return bool(machine.lending.wanted) and not machine.lending.ship_due
    return False


def _due_ms(world: World, timer: Choice) -> int:
    delay_ms = timer[-1]
    assert isinstance(delay_ms, int)
    return delay_ms * (1 + world.fired[timer])
