"""The invariants of the whole world.

kept        a bucket that a living copy has not taken is kept by a living copy of its producer, by a
            state on its way to one, or by the source's log
saved-fit   any two saved states fit together: what one needs is in the other or will be made again, and logs
            go back far enough for each
view-safe   no view leaves a partition without a living holder of its state if it had one in the view
            before, unless states are saved
one-active  with backups, at most one copy of a partition works
one-awake   of several versions of a flow side by side, at most one hands output to a sink
converged   once nothing fails any more and the world has come to rest: everything is delivered, every
            seat that can be filled is active, and nothing is kept that no copy needs
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.edge.inlet import Inlet
from understudy.core.edge.outlet import Outlet, OutletState
from understudy.core.host.places import GATEWAY
from understudy.core.replica.replica import Replica
from understudy.core.shape.partition import STORE, Copy, Partition
from understudy.core.view.view import Seat, Status, View
from understudy.sim.checkers import demand
from understudy.sim.vault import Vault, check_fit, floor_of

if TYPE_CHECKING:
    from understudy.sim.process import Process
    from understudy.sim.world import World


def seats_of(view: View, partition: Partition) -> Iterator[tuple[Copy, Seat]]:
    """The living seats of a partition."""
    for replica, seat in enumerate(view.partitions[partition].seats):
        if seat.alive:
            yield Copy(partition, replica), seat


def holders(world: World, view: View, partition: Partition) -> dict[Copy, str]:
    """The copies in living seats of this view whose processes live and have the state."""
    found: dict[Copy, str] = {}
    for copy, seat in seats_of(view, partition):
        process = world.processes.get(seat.node)
        worker = process.workers.get(copy) if process is not None else None
        if worker is not None and worker.epoch == seat.epoch:
            assert process is not None
            if process.has_state(copy):
                found[copy] = seat.node
    return found


# --- kept ------------------------------------------------------------------------------------------------


def check_kept(world: World) -> None:
    view = world.view
    if world.setup.saved:
        check_fit(world.setup.flow, world.vault, world.disk.forgotten, world.adopted)
    if view is None or (view.lost and not world.setup.saved):
        return
    for process in world.processes.values():
        for copy, taken in _needs(process, view, world.vault):
            for producer in world.setup.flow.topology.producers(copy.partition):
                needed = world.setup.flow.reference.edges[producer, copy.partition].next_after(taken)
                if needed is not None:
                    gone = list(_gone(world, view, producer, copy))
                    what = f"{copy} on {process.name} has {taken}: {needed} of {producer} is gone"
                    demand(not gone or min(gone) < needed, "kept", what)


def _needs(process: Process, view: View, vault: Vault) -> Iterator[tuple[Copy, BucketId]]:
    """What the copies of a process, seated in this view, have taken so far.

    One that has only begun with a saved state which is none of those that are kept now goes back to one of
    these.
    """
    for copy, resident in process.host.residents.items():
        if resident.machine.below is None or not resident.machine.holds:
            continue
        if copy.partition not in view.partitions or view.holds(copy, process.name, resident.epoch):
            taken = min(inlet.taken for inlet in resident.machine.below.inlets.values())
            worker = process.workers.get(copy)
            if worker is None or worker.restored != taken or taken >= floor_of(vault, copy.partition):
                yield copy, taken
    for copy, worker in process.workers.items():
        if worker.fetched is not None and view.holds(copy, process.name, worker.epoch):
            yield copy, worker.fetched.state.through


def _gone(world: World, view: View, producer: Partition, consumer: Copy) -> Iterator[BucketId]:
    """Through which number each living holder of a producer's output has dropped it."""
    if producer in world.setup.flow.topology.ends:
        gateway = world.processes.get(GATEWAY)
        end = gateway.host.end(producer.name) if gateway is not None else None
        outlet = end.above.outlets[consumer.partition] if end is not None and end.above is not None else None
        if world.setup.saved:
            yield world.disk.forgotten[producer.name]
            return
        in_log = world.disk.trimmed[producer.name]
        yield max(in_log, outlet.buffer.gone_through) if outlet is not None else in_log
        return
    for copy, node in holders(world, view, producer).items():
        if (
            world.setup.isolated
            and consumer.partition in view.partitions
            and copy.replica != consumer.replica
        ):
            continue
        worker = world.processes[node].workers[copy]
        if not world.processes[node].host.residents[copy].begun:
            # What is on its way to a backup, or held by it, or the empty state with which it began.
            moved = worker.fetched or worker.held
            yield NOTHING if moved is None else _gone_of(dict(moved.state.outlets)[consumer.partition])
        else:
            machine = world.processes[node].host.residents[copy].machine
            assert machine.above is not None
            outlet = machine.above.outlets[consumer.partition]
            # With a gap its producer goes back to a saved state, which has what the consumer lacks.
            yield outlet.store_floor if outlet.gap else outlet.buffer.gone_through


def _gone_of(outlet: OutletState) -> BucketId:
    """The same of an outlet that has moved with its copy's state, and may have moved with a gap."""
    return min(outlet.gone_through, dict(outlet.floors).get(STORE, outlet.gone_through))


# --- view-safe -------------------------------------------------------------------------------------------


def check_view(world: World, before: View | None, after: View) -> None:
    epoch = before.epoch if before is not None else 0
    demand(after.epoch == epoch + 1, "view-safe", f"view {after.epoch} was stored after {epoch}")
    for partition in after.partitions if before is not None else ():
        assert before is not None
        if before.partitions[partition] == after.partitions[partition]:
            continue
        had = holders(world, before, partition)
        has = holders(world, after, partition)
        what = f"{partition} is in no living seat of view {after.epoch}, and {had} hold it"
        demand(bool(has) or not had or world.setup.saved, "view-safe", what)
        if world.setup.timing.ship_ms:
            active = [copy for copy, seat in seats_of(after, partition) if seat.status is Status.ACTIVE]
            demand(len(active) <= 1, "one-active", f"{active} work at once since view {after.epoch}")


# --- one-awake -------------------------------------------------------------------------------------------


def check_awake(versions: Collection[World]) -> None:
    """The worlds are versions of one flow, and share a gateway."""
    for sink in sorted({name for world in versions for name in world.setup.flow.topology.sinks}):
        awake = sum(_hands_out(world, sink) for world in versions)
        demand(awake <= 1, "one-awake", f"{sink} is awake in {awake} versions")


def _hands_out(world: World, sink: str) -> bool:
    """Whether the sink of this version is awake, or has a group of it in hand."""
    gateway = world.processes.get(GATEWAY)
    end = gateway.host.end(sink) if gateway is not None else None
    return end is not None and end.below is not None and (not end.below.rests or end.below.busy)


# --- converged -------------------------------------------------------------------------------------------


def check_converged(world: World, lost: bool = False, *, beside: Collection[World] = ()) -> None:
    """`beside` are other versions of the flow, which are fed from the same logs."""
    view = world.view
    if view is None:
        _converged(False, "there is no view")
        return
    if lost:
        _converged(view.lost is not None, f"the state is gone, and view {view.epoch} does not say so")
        return
    _converged(view.lost is None, f"the flow is lost: {view.lost}")
    _check_delivered(world)
    _check_seats(world, view)
    for process in world.processes.values():
        _converged(process.view_epoch == view.epoch, f"{process.name} never saw view {view.epoch}")
        _check_process(world, process)
    _check_store_is_known(world)
    for source in world.disk.forgotten if world.setup.saved else ():
        _check_log(world, source, beside)


def _check_delivered(world: World) -> None:
    flow = world.setup.flow
    for sink, delivered in world.disk.delivered.items():
        expected = flow.reference.taken[Partition(sink)].through
        _converged(delivered == expected, f"{sink} was delivered through {delivered}, not {expected}")
    for source, trimmed in world.disk.trimmed.items():
        consumers = flow.topology.consumers(Partition(source))
        taken = min(flow.reference.taken[consumer].through for consumer in consumers)
        numbers = [b.number for b in flow.inputs[source] if trimmed < b.number <= taken]
        _converged(not numbers, f"the log of {source} keeps {numbers}, which all have taken")


def _check_store_is_known(world: World) -> None:
    """Every producer has heard what the store holds of its consumers."""
    floors = _known_floors(world)
    for machine in _machines(world):
        for partition, outlet in machine.above.outlets.items() if machine.above is not None else ():
            # A backup hears of it with the next snapshot.
            if outlet.stored and partition in floors and not machine.backs_up:
                what = f"{outlet.name}: the store holds {floors[partition]}, {outlet.store_floor} is known"
                _converged(outlet.store_floor >= floors[partition], what)


def _check_log(world: World, source: str, beside: Collection[World]) -> None:
    """A log goes back no further than some saved state needs."""
    forgotten, needed = world.disk.forgotten[source], world.disk.trimmed[source]
    for version in (world, *beside):
        floors, consumers = _known_floors(version), version.setup.flow.topology.consumers(Partition(source))
        if not floors.keys() >= set(consumers):
            return
        needed = min(needed, *(floors[each] for each in consumers))
    _converged(forgotten >= needed, f"the log of {source} keeps what follows {forgotten}, not {needed}")


def _known_floors(world: World) -> dict[Partition, BucketId]:
    """What the store holds of each partition, as far as its copies have said so: as long as a copy has more
    to save, it may not have said yet what was saved before it came.
    """
    saved = {each.copy.partition for each in _machines(world) if each.saves and not each.worth_saving}
    return {partition: floor_of(world.vault, partition) for partition in saved}


def _machines(world: World) -> list[Replica]:
    return [r.machine for p in world.processes.values() for r in p.host.residents.values()]


def _check_seats(world: World, view: View) -> None:
    controller = world.store.leader.controller
    for copy, seat in view.seats.items():
        if seat.status.has_state:
            _converged(seat.node in world.processes, f"{copy} is active on {seat.node}, which is dead")
        else:
            free = [] if world.setup.isolated else controller.eligible(copy)
            filled = not free and seat.status is Status.DEAD
            _converged(filled, f"{copy} is {seat.status.name} on {seat.node}, and {free} could take it")


def _check_process(world: World, process: Process) -> None:
    taken = world.setup.flow.reference.taken
    for copy, resident in process.host.residents.items():
        machine = resident.machine
        _converged(machine.holds, f"{copy} on {process.name} never began")
        for partition, end in machine.ends.items():
            if machine.backs_up and isinstance(end, Outlet):
                continue
            # A backup takes output and gives none.
            passive = isinstance(end, Inlet) and world.setup.timing.ship_ms > 0
            live = {
                r
                for r, s in end.status.items()
                if s is Status.ACTIVE or (s is not Status.DEAD and not passive)
            }
            attached = end.attached == live
            _converged(attached, f"{copy} on {process.name}: {partition} is attached by {end.attached}")
            if isinstance(end, Outlet):
                held = end.buffer.floor.get(STORE, taken[partition].through)
                kept = [b.number for b in end.buffer if b.number <= min(held, taken[partition].through)]
                _converged(not kept, f"{copy} on {process.name} keeps {kept} for {partition}")
    for copy, worker in process.workers.items():
        through = taken[copy.partition].through
        given = worker.given == through or copy.partition not in world.setup.flow.topology.partitions
        _converged(given, f"{copy} on {process.name} holds {worker.given}, not {through}")
        lent = [*worker.lent, *worker.taken]
        _converged(not lent, f"{copy} on {process.name} keeps the snapshots {lent} for no standby")


def _converged(condition: bool, what: str) -> None:
    demand(condition, "converged", what)
