"""Random schedules of a partitioned flow: faults while data flows, then healing, then convergence."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from understudy.core.bucket import NOTHING
from understudy.core.outlet import Outlet
from understudy.core.partition import Copy
from understudy.core.view import Status
from understudy.sim.checkers import Violation
from understudy.sim.exchange import ExchangeWorld
from understudy.sim.exchange_flow import Shape, shape_of
from understudy.sim.random_schedules import Summary

STEPS_MAX = 200_000


def simulate_exchange(
    seeds: int, start_seed: int = 0, *, progress: Callable[[Summary], None] | None = None
) -> Summary:
    """Run this many seeds, each with a flow of its own shape; stop at the first that fails."""
    summary = Summary("flux")
    began = perf_counter()
    for seed in range(start_seed, start_seed + seeds):
        try:
            world = run_exchange(seed, shape_of(seed))
        except Violation as violation:
            summary.violations.append((seed, violation))
            break
        summary.seeds += 1
        summary.steps += world.steps
        summary.buckets += world.sealed
        summary.caught_up += world.caught_up
        summary.faults.update(world.faults)
        summary.seconds = perf_counter() - began
        if progress is not None:
            progress(summary)
    return summary


def run_exchange(seed: int, shape: Shape | None = None) -> ExchangeWorld:
    """One run: faults while data flows, then healing, then everything must have arrived."""
    world = ExchangeWorld(seed, shape)
    faults = world.shape.faults
    while world.step():
        if faults and world.random.random() < 0.01:
            faults -= 1
            _fault(world)
        if world.steps > STEPS_MAX:
            raise Violation("converged", world.told("it goes on for ever"))
    check_converged(world)
    return world


def _fault(world: ExchangeWorld) -> None:
    chance = world.random.random()
    seated = [n for n in world.nodes if world.views and world.views[-1].copies_on(n)]
    if chance < 0.35:
        world.break_one()
    elif chance < 0.45:
        world.crash_gateway()
    elif chance < 0.5:
        world.drain(world.random.choice(world.nodes))
    elif chance < 0.55 and seated:
        copy = world.random.choice(world.views[-1].copies_on(world.random.choice(seated)))
        world.move(copy, world.random.choice(world.nodes))
    elif able := [node for node in seated if world.may_kill(node)]:
        world.kill(world.random.choice(able))
        if world.random.random() < 0.8:
            world.add_node()


def check_converged(world: ExchangeWorld) -> None:
    """At rest: all delivered, every seat that can be filled active, nothing kept that nobody needs."""
    last = max(world.expected, default=NOTHING)
    if world.sealed < len(world.inputs) or world.delivered < last:
        raise Violation("converged", world.told(f"delivered through {world.delivered} of {last}"))
    for partition, view in world.views[-1].partitions.items():
        for slot, seat in view.seats.items():
            free = world.controller.eligible(Copy(partition, slot))
            if seat.status is not Status.ACTIVE and free:
                raise Violation("converged", world.told(f"{partition} {slot.value} stays {seat.status.name}"))
    for process in world.processes.values():
        for resident in process.host.residents.values():
            for end in resident.ends.values():
                if isinstance(end, Outlet) and len(end.buffer):
                    raise Violation("converged", world.told(f"{end.name} keeps {list(end.buffer)}"))
