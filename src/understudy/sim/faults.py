"""The faults: every fault is for every policy.

    kill          a node is killed: a copy, a lender, a standby, a spare
    kill standby  a standby is killed, wherever its catch-up is
    kill lender   the lender of a state that has been fetched is killed before the newcomer is active
    join          a node joins
    crash         the gateway is killed; it starts again from its logs and its sinks' positions
    sever         a connection breaks between any two steps
    stall, wake   a process handles nothing for long; its connections break, its session may end
    expire        the session of a living node ends; it joins again under its name
    suspect       a timer reports a node that lives: a false suspicion
    refuse        a process cannot be called for a while
    away          a process hears nothing from the store, and its reports wait
    leaderless    the leader decides nothing for a while
    lead          another leader takes over from the stored view
    move, drain, undrain
                  an operator's wishes, granted or declined
    bad snapshot, bad fetch, bad install, hung fetch
                  a movement of state that fails or hangs at each of its steps

Where state is saved, also:

    kill all      all processes that hold a copy of some partition are killed
    power         every process is killed at one moment, the gateway and the store's memory included
    bad save      a snapshot does not get into the vault
    old state     of a partition's saved states the newest is damaged, and a copy begins with the one before,
                  or with nothing if there is none

A fault that the flow would not survive does not happen (`sim.survival`).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from understudy.core.host.places import GATEWAY
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.events import Drain, MoveCopy, Undrain
from understudy.core.view.view import Status
from understudy.sim.invariants import holders
from understudy.sim.survival import may_fire, may_lose, may_suspect, seated, sure_active
from understudy.sim.vault import may_be_damaged
from understudy.sim.world import Choice, World

Fault = Callable[[World, Random], str | None]


def moving(world: World) -> bool:
    """Whether some standby waits for a state, or catches up."""
    view = world.view
    return view is not None and any(seat.status is Status.STDBY for seat in view.seats.values())


def recovering(world: World) -> bool:
    """Whether some state is on its way into the vault or out of it, or a log is read again."""
    if not world.setup.saved:
        return False
    workers = (worker for process in world.processes.values() for worker in process.workers.values())
    rereading = any(process.rereading for process in world.processes.values())
    return rereading or any(worker.saving is not None or worker.starting for worker in workers)


def kill(world: World, random: Random) -> str | None:
    able = [node for node in world.nodes if may_lose(world, node)]
    if not able or (len(world.nodes) == 1 and not world.setup.saved):
        return None
    named = [node for node in able if seated(world, node)]
    node = random.choice(named if named and random.random() < 0.8 else able)
    world.kill(node)
    if random.random() < 0.6:
        world.add_node()
    return node


def kill_all(world: World, random: Random) -> str | None:
    view = world.view
    if view is None or not world.setup.saved:
        return None
    lagging = _with_gaps(world) & view.partitions.keys()
    partition = random.choice(sorted(lagging) if lagging and random.random() < 0.8 else list(view.partitions))
    nodes = {seat.node for seat in view.partitions[partition].seats if seat.alive} & set(world.nodes)
    for node in sorted(nodes):
        world.kill(node)
    for _ in range(random.randint(0, len(nodes))):
        world.add_node()
    return str(partition)


def _with_gaps(world: World) -> set[Partition]:
    """The partitions whose producers do not keep all that their oldest saved state lacks."""
    return {
        partition
        for process in world.processes.values()
        for resident in process.host.residents.values()
        if resident.machine.above is not None
        for partition, outlet in resident.machine.above.outlets.items()
        if outlet.gap
    }


def power(world: World, random: Random) -> str | None:
    if not world.setup.saved:
        return None
    world.lose_power()
    return "everything"


def old_state(world: World, random: Random) -> str | None:
    able = [choice for choice in world.choices() if choice[0] == "start" and _may_be_older(world, choice)]
    if not able:
        return None
    choice = random.choice(able)
    world.take((*choice, "older"))
    return str(choice[2])


def _may_be_older(world: World, choice: Choice) -> bool:
    _, _, copy = choice
    assert isinstance(copy, Copy)
    return may_be_damaged(world.vault, copy.partition, world.adopted)


def kill_lender(world: World, random: Random) -> str | None:
    """Of a state that has been fetched, before the newcomer is active."""
    view = world.view
    if view is None:
        return None
    lenders = set()
    for partition, seats in view.partitions.items():
        held = holders(world, view, partition)
        standby = any(view.seat(copy).status is Status.STDBY for copy in held)
        lenders |= {s.node for s in seats.seats if standby and s.status is Status.ACTIVE}
    able = sorted(node for node in lenders & set(world.nodes) if may_lose(world, node))
    if not able:
        return None
    node = random.choice(able)
    world.kill(node)
    return node


def kill_standby(world: World, random: Random) -> str | None:
    view = world.view
    seats = view.seats.values() if view is not None else ()
    standbys = {seat.node for seat in seats if seat.status is Status.STDBY} & set(world.nodes)
    able = sorted(node for node in standbys if may_lose(world, node))
    if not able:
        return None
    node = random.choice(able)
    world.kill(node)
    if random.random() < 0.6:
        world.add_node()
    return node


def join(world: World, random: Random) -> str | None:
    return world.add_node() if len(world.nodes) < world.setup.nodes + 4 else None


def crash(world: World, random: Random) -> str | None:
    if GATEWAY not in world.processes:
        return None
    world.kill(GATEWAY)
    return GATEWAY


def sever(world: World, random: Random) -> str | None:
    able = [each for each in world.connections.values() if each.open]
    if not able:
        return None
    connection = random.choice(able)
    world.sever(connection.serial)
    return f"{connection.caller} - {connection.callee}"


def stall(world: World, random: Random) -> str | None:
    able = [name for name in world.processes if name not in world.stalled]
    if not able or len(world.stalled) >= 2:
        return None
    name = random.choice(able)
    world.stalled.add(name)
    # Its peers notice the silence, and then the next one's, but not at once.
    for connection in list(world.connections.values()):
        if connection.open and name in (connection.caller, connection.callee) and random.random() < 0.5:
            world.sever(connection.serial)
    return name


def wake(world: World, random: Random) -> str | None:
    if not world.stalled:
        return None
    name = random.choice(sorted(world.stalled))
    world.stalled.discard(name)
    return name


def expire(world: World, random: Random) -> str | None:
    able = [node for node in world.nodes if node in world.store.members and may_suspect(world, node)]
    if not able:
        return None
    node = random.choice(able)
    world.store.expire(node)
    return node


def rejoin(world: World, random: Random) -> str | None:
    able = [node for node in world.nodes if node not in world.store.members and node not in world.stalled]
    if not able:
        return None
    node = random.choice(able)
    world.store.join(node)
    return node


def suspect(world: World, random: Random) -> str | None:
    """The connection breaks and is not made again in time."""
    able = [timer for timer in world.timers() if timer[0] == "timer" and may_fire(world, timer)]
    able = [timer for timer in able if isinstance(timer[2], tuple) and timer[2][0] == "absent"]
    able = [timer for timer in able if timer[2][1] in world.processes]  # type: ignore[index]
    if not able:
        return None
    timer = random.choice(able)
    world.take(timer)
    return str(timer[2])


def refuse(world: World, random: Random) -> str | None:
    able = [name for name in world.processes if name not in world.refusing]
    if not able or len(world.refusing) >= 2:
        return None
    name = random.choice(able)
    world.refusing.add(name)
    for connection in list(world.connections.values()):
        if connection.open and name == connection.callee and random.random() < 0.5:
            world.sever(connection.serial)
    return name


def accept(world: World, random: Random) -> str | None:
    if not world.refusing:
        return None
    name = random.choice(sorted(world.refusing))
    world.refusing.discard(name)
    return name


def away(world: World, random: Random) -> str | None:
    if not world.processes:
        return None
    name = random.choice(sorted(world.processes))
    world.away.add(name)
    return name


def back(world: World, random: Random) -> str | None:
    if not world.away:
        return None
    name = random.choice(sorted(world.away))
    world.away.discard(name)
    return name


def leaderless(world: World, random: Random) -> str | None:
    if world.leaderless:
        return None
    world.leaderless = True
    return "gone"


def leader(world: World, random: Random) -> str | None:
    if not world.leaderless:
        return None
    world.leaderless = False
    return "back"


def lead(world: World, random: Random) -> str | None:
    world.store.change_leader()
    return f"from view {len(world.store.views)}"


def move(world: World, random: Random) -> str | None:
    view = world.view
    if view is None or world.leaderless or world.store.leader.publishing or not world.nodes:
        return None
    copy = random.choice(list(view.seats))
    if not may_lose(world, view.seat(copy).node):
        return None
    world.store.handle(MoveCopy(copy, random.choice(world.nodes)))
    return str(copy)


def drain(world: World, random: Random) -> str | None:
    if world.view is None or world.leaderless or world.store.leader.publishing:
        return None
    able = [node for node in world.nodes if may_lose(world, node)]
    if not able:
        return None
    node = random.choice(able)
    world.store.handle(Drain(node))
    return node


def undrain(world: World, random: Random) -> str | None:
    view = world.view
    if view is None or world.leaderless or world.store.leader.publishing or not view.drained:
        return None
    node = random.choice(sorted(view.drained))
    world.store.handle(Undrain(node))
    return node


def _failing(what: str) -> Fault:
    def fail(world: World, random: Random) -> str | None:
        able = [choice for choice in world.choices() if choice[0] == what and _may_fail(world, choice)]
        if not able:
            return None
        choice = random.choice(able)
        world.take((*choice, "fails"))
        return str(choice[2])

    return fail


def _may_fail(world: World, choice: Choice) -> bool:
    _, name, copy = choice
    assert isinstance(name, str)
    assert isinstance(copy, Copy)
    # An engine that does not start, and a backup's third fetch that fails, cost the seat.
    return choice[0] not in ("install", "fetch") or sure_active(world, copy.partition, name)


def hang(world: World, random: Random) -> str | None:
    able = [choice for choice in world.choices() if choice[0] == "fetch"]
    if not able:
        return None
    _, name, copy = random.choice(able)
    world.take(("hang", name, copy))
    return str(copy)


#: Every fault, and how often it is tried.
FAULTS: dict[str, tuple[Fault, float]] = {
    "kill": (kill, 3),
    "kill lender": (kill_lender, 4),
    "kill standby": (kill_standby, 2),
    "join": (join, 1),
    "crash": (crash, 1.5),
    "sever": (sever, 4),
    "stall": (stall, 1.5),
    "expire": (expire, 1),
    "suspect": (suspect, 3),
    "refuse": (refuse, 1),
    "away": (away, 1),
    "leaderless": (leaderless, 1),
    "lead": (lead, 1),
    "move": (move, 1),
    "drain": (drain, 0.7),
    "undrain": (undrain, 0.5),
    "bad snapshot": (_failing("snap"), 3),
    "bad fetch": (_failing("fetch"), 3),
    "bad install": (_failing("install"), 3),
    "hung fetch": (hang, 2),
}

#: Further faults where state is saved.
LOSSES: dict[str, tuple[Fault, float]] = {
    "kill all": (kill_all, 3),
    "power": (power, 1),
    "bad save": (_failing("save"), 3),
    "old state": (old_state, 3),
}

#: What ends by itself sooner or later, each with the fault that it ends.
RECOVERIES: dict[str, Fault] = {
    "wake": wake,
    "rejoin": rejoin,
    "accept": accept,
    "back": back,
    "leader": leader,
}


def heal(world: World) -> None:
    """Nothing fails any more. What hangs still hangs: only its timer ends it."""
    world.stalled.clear()
    world.refusing.clear()
    world.away.clear()
    world.leaderless = False
    for node in world.nodes:
        if node not in world.store.members:
            world.store.join(node)
    drained = frozenset() if world.view is None else world.view.drained
    needed = world.setup.nodes if world.view is None else 1
    while len(set(world.nodes) - drained) < needed:
        world.add_node()
