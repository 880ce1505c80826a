"""When timers fire in a world without a clock: when nothing else can happen, those that wait least first."""

from __future__ import annotations

from collections.abc import Callable

from understudy.sim.faults import may_fire
from understudy.sim.world import Choice, World

#: How often all timers fire in vain before a world counts as at rest: a hung fetch is given up at the second.
IDLE_ROUNDS = 3


def let_time_pass(world: World, may: Callable[[Choice], bool] = lambda _: True) -> bool:
    """Fire timers until something can happen; False if nothing ever will."""
    for _ in range(IDLE_ROUNDS):
        for timer in sorted(world.timers(), key=lambda each: (each[-1], str(each))):
            if timer in world.timers() and may(timer) and may_fire(world, timer):
                world.take(timer)
            if any(map(may, world.choices())):
                return True
    return False
