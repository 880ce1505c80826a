"""Schedules written by hand for flows with backups: who dies in the middle of shipping and of a take-over."""

from __future__ import annotations

from random import Random

import pytest

from understudy.core.host.limits import Limits, Timing
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import chain_of
from understudy.core.view.view import Status
from understudy.sim.scenario import (
    Act,
    Script,
    Wait,
    copies,
    feed,
    hold,
    join,
    kill,
    kill_gateway,
    release,
    sever,
    until,
    wait,
)
from understudy.sim.setup import Setup
from understudy.sim.shapes import flow_of
from understudy.sim.world import World

#: Each seed makes another order of what a scenario leaves open.
SEEDS = range(8)
FIRST, SECOND, THIRD = copies("f", 3)
F0, G0 = Copy(Partition("f")), Copy(Partition("g"))


def backed(replicas: int = 2, *, save_ms: int = 0, **segments: int) -> Setup:
    """Every copy has a node of its own."""
    topology = chain_of(**(segments or {"f": 1}))
    layout = tuple((copy, f"n{at:02}") for at, copy in enumerate(topology.copies(replicas), start=1))
    return Setup(
        flow_of(topology, Random(1), buckets=12),
        replicas,
        len(layout),
        layout=layout,
        limits=Limits(group_buckets_max=1),
        timing=Timing(ship_ms=500, save_ms=save_ms),
    )


def _whole(world: World) -> bool:
    return world.view is not None and all(seats.whole for seats in world.view.partitions.values())


WHOLE = until("every copy works or holds a snapshot", _whole)


def _offered(world: World) -> bool:
    """Whether a snapshot is kept for a backup that holds an older one."""
    for process in world.processes.values():
        for copy, worker in process.workers.items():
            for kept in worker.lent.values():
                others = [p.workers.get(Copy(copy.partition, 1)) for p in world.processes.values()]
                older = [w.held.state.through for w in others if w is not None and w.held is not None]
                if any(through < kept.state.through for through in older):
                    return True
    return False


def _holds_all(world: World) -> bool:
    """Whether the backup holds all that was fed."""
    fed = world.setup.flow.inputs["source"][: world.feed_max]
    view = world.view
    assert view is not None
    worker = world.processes[view.seat(SECOND).node].workers[SECOND]
    return worker.held is not None and worker.held.state.through == fed[-1].number


def active(copy: Copy) -> Wait:
    return until(f"{copy} works", lambda world: world.view.seat(copy).status is Status.ACTIVE)  # type: ignore[union-attr]


OFFERED = until("a newer snapshot waits for the backup", _offered)
HELD = until("the backup holds everything", _holds_all)
RESUMING = until(
    "a backup takes over",
    lambda world: any(w.resuming for p in world.processes.values() for w in p.workers.values()),
)
START: list[Act] = [WHOLE, feed(3), wait("delivered")]

ONE: dict[str, list[Act]] = {
    "nothing fails": [*START, feed(4), HELD],
    "the active copy dies when it has just shipped": [*START, HELD, kill(FIRST), feed(3), active(SECOND)],
    "the active copy dies between snapshot and shipping": [
        *(*START, HELD, hold("fetch"), feed(3), OFFERED, kill(FIRST), feed(2), release()),
    ],
    "the active copy dies when its snapshot has been fetched and is not held yet": [
        *(*START, HELD, hold("install"), feed(3), wait("fetched"), kill(FIRST), active(SECOND), release()),
    ],
    "the backup dies in the middle of a fetch": [
        *(*START, HELD, hold("fetch"), feed(3), OFFERED, kill(SECOND), join(), release(), feed(1), WHOLE),
    ],
    "one after the other dies": [
        *(*START, kill(FIRST), join(), feed(2), active(SECOND), WHOLE, feed(2), wait("delivered")),
        *(kill(SECOND), join(), feed(2), active(FIRST), WHOLE, feed(2)),
    ],
    "the gateway crashes while a backup takes over": [
        *(*START, hold("resume"), feed(2), kill(FIRST), RESUMING, kill_gateway(), feed(2), release()),
    ],
    "the gateway crashes while a backup fetches": [
        *(*START, HELD, hold("fetch"), feed(3), OFFERED, kill_gateway(), release(), feed(2), WHOLE, HELD),
    ],
    "the connection between the two breaks between request and offer": [
        *(*START, hold("snap"), feed(2), sever(FIRST, SECOND), release(), feed(2), HELD),
        *(sever(FIRST), sever(SECOND), feed(2), HELD),
    ],
}


def run(acts: list[Act], setup: Setup, spares: int = 0) -> None:
    for seed in SEEDS:
        Script(setup, seed, spares).run(acts)


@pytest.mark.parametrize("name", ONE)
def test_a_copy_with_a_backup_loses_and_repeats_nothing(name: str) -> None:
    run(ONE[name], backed())


def test_both_die_and_the_partition_goes_on_from_its_saved_state() -> None:
    saved = until("a state is saved", lambda world: bool(world.vault))
    acts: list[Act] = [*START, saved, feed(3), kill(FIRST), kill(SECOND), join(), join(), feed(3), WHOLE]
    run(acts, backed(save_ms=1_000))


@pytest.mark.parametrize("shipped", [True, False], ids=["shipped", "not shipped"])
def test_the_active_copies_of_two_neighbours_die_at_once(shipped: bool) -> None:
    ship: list[Act] = [] if shipped else [hold("fetch")]
    acts: list[Act] = [*START, *ship, feed(4), wait("delivered"), kill(F0), kill(G0), feed(2), release()]
    run(acts, backed(f=1, g=1))


def test_an_active_copy_and_the_backup_of_its_neighbour_die_at_once() -> None:
    acts: list[Act] = [*START, feed(2), kill(F0), kill(Copy(Partition("g"), 1)), join(), feed(3), WHOLE]
    run(acts, backed(f=1, g=1))


def _second_holds_less(world: World) -> bool:
    view = world.view
    assert view is not None
    through = []
    for copy in (SECOND, THIRD):
        worker = world.processes[view.seat(copy).node].workers[copy]
        through.append(worker.held.state.through if worker.held is not None else 0)
    return through[0] < through[1]


def test_a_backup_that_holds_less_than_another_takes_over_and_the_other_waits_until_it_is_passed() -> None:
    for seed in SEEDS:
        script = Script(backed(3), seed)
        for act in START:
            script._carry_out(act)
        assert script.world.view is not None
        slow = script.world.view.seat(SECOND).node
        less = until("the second backup holds less than the third", _second_holds_less)
        script.run([hold("fetch", slow), feed(3), less, kill(FIRST), active(SECOND), release(), feed(2)])
