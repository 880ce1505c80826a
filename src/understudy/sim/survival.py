"""What a flow survives: whether it may lose a node now, hear a false suspicion, or have a timer fire.

A flow that saves no state survives every fault but the loss of all copies of a partition's state, so faults
that would cause that are left out (`may_lose`), unless a schedule asks for just that. The controller cannot
know everything: if one copy has died unnoticed, a false suspicion of the other is a second loss at once
(`may_suspect`).
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy.core.host.places import GATEWAY
from understudy.core.replica.backing import Backing
from understudy.core.replica.movement import FETCHES_MAX
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.events import CopyMoveFailed, CopySuspected, Report
from understudy.core.view.view import Status, View
from understudy.sim.invariants import holders, seats_of
from understudy.sim.process import Process
from understudy.sim.world import Choice, World


def views(world: World) -> list[View]:
    """The stored view, and the newest that the leader has decided on."""
    found = [world.store.view, world.store.leader.controller.view]
    return [view for view in dict.fromkeys(found) if view is not None]


def reports(world: World) -> Iterator[Report]:
    """All reports that no stored view reflects yet."""
    for queue in (*world.reports.values(), *world.store.reports.values()):
        yield from queue


def doomed(world: World) -> set[str]:
    """Nodes whose seats may be declared dead for what has happened already, though they live."""
    found = {name for name in world.nodes if name not in world.store.members}
    found |= {name for name in world.nodes if _soon_given_up(world.processes[name])}
    for view in views(world):
        found |= view.drained
        found |= {view.seat(copy).node for copy in view.wanted}
        for report in reports(world):
            if isinstance(report, CopySuspected | CopyMoveFailed):
                seat = view.seat(report.copy)
                if seat.epoch == report.epoch:
                    found.add(seat.node)
    return found


def _soon_given_up(process: Process) -> bool:
    """Whether a backup there gives its seat up if one more fetch brings nothing."""
    borrowings = (resident.machine.borrowing for resident in process.host.residents.values())
    return any(isinstance(each, Backing) and each.failures >= FETCHES_MAX - 1 for each in borrowings)


def sure(world: World, partition: Partition, besides: str) -> bool:
    """Whether the partition's state is safe on another process, whichever deaths are still to be reported."""
    unsure = doomed(world) | {besides}
    found: set[Copy] | None = None
    for view in views(world):
        held = {copy for copy, node in holders(world, view, partition).items() if node not in unsure}
        found = held if found is None else found & held
    return bool(found)


def sure_active(world: World, partition: Partition, besides: str) -> bool:
    """The same, of a copy that is called active."""
    unsure = doomed(world) | {besides}
    return all(
        any(
            view.seat(copy).status.has_state and node not in unsure
            for copy, node in holders(world, view, partition).items()
        )
        for view in views(world)
    )


def seated(world: World, node: str) -> set[Partition]:
    return {copy.partition for view in views(world) for copy in view.copies_on(node)}


def may_lose(world: World, node: str) -> bool:
    """Whether the flow survives the loss of this node now."""
    if world.setup.saved:
        return True
    if not world.store.views:
        # The first view may seat it, and no process would have its state.
        return False
    if world.setup.isolated:
        return not seated(world, node) or _replica_sure(world, node)
    return all(sure(world, partition, node) for partition in seated(world, node))


def may_suspect(world: World, node: str) -> bool:
    """Whether the flow survives that the controller hears that this node, which lives, is dead."""
    if world.setup.saved:
        return True
    if world.setup.isolated:
        return not seated(world, node) or _replica_sure(world, node) or not _other_replica_active(world, node)
    for partition in seated(world, node):
        others = [
            seat.node
            for view in views(world)
            for _, seat in seats_of(view, partition)
            if seat.status.has_state and seat.node != node
        ]
        if others and not sure_active(world, partition, node):
            return False
    return True


def _replica_sure(world: World, node: str) -> bool:
    """With isolated replicas: whether all copies of some replica are active without this node."""
    unsure = doomed(world) | {node}
    for view in views(world):
        replicas = {copy.replica for copy in view.copies_on(node)}
        safe = [
            r
            for r in range(world.setup.replicas)
            if r not in replicas and _all_active(world, view, r, unsure)
        ]
        if not safe:
            return False
    return True


def _all_active(world: World, view: View, replica: int, unsure: set[str]) -> bool:
    return all(
        seats.seats[replica].status is Status.ACTIVE
        and holders(world, view, partition).get(Copy(partition, replica), GATEWAY) not in {*unsure, GATEWAY}
        for partition, seats in view.partitions.items()
    )


def _other_replica_active(world: World, node: str) -> bool:
    for view in views(world):
        replicas = {copy.replica for copy in view.copies_on(node)}
        for r in set(range(world.setup.replicas)) - replicas:
            if all(seats.seats[r].status is Status.ACTIVE for seats in view.partitions.values()):
                return True
    return False


def may_fire(world: World, timer: Choice) -> bool:
    """Whether enough time can have passed for this timer, so that the flow survives what it leads to."""
    match timer:
        case "timer", _, ("absent", str(node)), _:
            return node not in world.processes or node == GATEWAY or may_suspect(world, node)
        case "timer", str(name), ("stuck", Copy() as copy, _), _:
            return not world.processes[name].has_state(copy) or may_suspect(world, name)
        case "grace", ("missed", str(node)), _:
            return world.setup.saved or node not in world.processes
    return True
