"""Every interleaving of a small world, with every crash point.

The world has no clock here: whatever could happen next is tried, one after the other, depth first. States
seen before are not entered again. In each state the checkers run, and in each state where nothing can happen
any more the world must have converged. Exploration begins where both replicas are attached and the input has
not begun, since how they got there is the same every time.

Faults are a budget: so many kills, gateway crashes and broken connections, each possible in every state in
which a complete replica would survive it. One run over the budget (1 kill) covers every crash point of either
replica and of the standby; a state in which budget is left and nothing else happens is also a run without.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from time import perf_counter

from understudy.core.bucket import Bucket
from understudy.core.buffer import Acks
from understudy.core.errors import BrokenInvariant, PeerError
from understudy.sim.checkers import Reference, Violation
from understudy.sim.convergence import check_converged
from understudy.sim.items import CONTROLLER, GATEWAY, Channel, Item, NewView, Setup
from understudy.sim.state import clone, freeze
from understudy.sim.world import World


@dataclass(frozen=True, slots=True)
class Bounds:
    """How small the world is and what may fail in it."""

    buckets: int = 3
    spares: int = 1
    kills: int = 1
    gateway_crashes: int = 0
    flaps: int = 0
    acks: Acks = Acks.CUMULATIVE
    group_buckets_max: int = 2
    lag_buckets: int = 0
    #: What takes no time: these happen before anything else can.
    instant: frozenset[str] = frozenset({"connect", "disk", "engine", "report"})
    #: Give up with what was seen so far after this many states; 0 means never.
    states_max: int = 0


@dataclass(slots=True)
class Explored:
    """What an exploration saw."""

    states: int = 0
    steps: int = 0
    ends: int = 0
    seconds: float = 0.0
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Faults:
    kills: int
    gateway_crashes: int
    flaps: int


@dataclass(slots=True)
class _Visit:
    world: World
    faults: Faults
    frozen: dict[str, Hashable]
    moves: Iterator[tuple[str, ...]] = field(default_factory=lambda: iter(()))


def explore(bounds: Bounds, *, progress: Callable[[Explored], None] | None = None) -> Explored:
    """Visit every reachable state. Raises `Violation` with the path that led to it."""
    explored = Explored()
    began = perf_counter()
    faults = Faults(bounds.kills, bounds.gateway_crashes, bounds.flaps)
    first = _Visit(_steady(bounds), faults, {})
    seen = {_fingerprint(first, GATEWAY)}
    first.moves = iter(_moves(first, bounds))
    stack = [first]
    path: list[tuple[str, ...]] = [("begin",)]
    while stack:
        visit = stack[-1]
        move = next(visit.moves, None)
        if move is None:
            stack.pop()
            path.pop()
            continue
        explored.steps += 1
        try:
            after, touched = _make(visit, move)
            mark = _fingerprint(after, touched)
            if mark in seen:
                continue
            seen.add(mark)
            moves = _moves(after, bounds)
            if not any(each[0] == "step" for each in moves):
                explored.ends += 1
                check_converged(after.world)
        except (Violation, PeerError, BrokenInvariant) as error:
            raise _explained(error, [*path, move]) from error
        after.moves = iter(moves)
        stack.append(after)
        path.append(move)
        explored.states = len(seen)
        if explored.states % 1_000 == 0:
            explored.seconds = perf_counter() - began
            if progress is not None:
                progress(explored)
        if bounds.states_max and explored.states >= bounds.states_max:
            explored.whole = False
            break
    explored.states = len(seen)
    explored.seconds = perf_counter() - began
    return explored


def _steady(bounds: Bounds) -> World:
    """Both replicas attached, the spare seen by all, no input yet."""
    setup = Setup(
        acks=bounds.acks,
        nodes=2 + bounds.spares,
        lag_buckets=bounds.lag_buckets,
        group_buckets_max=bounds.group_buckets_max,
        ingress_buckets_max=max(bounds.buckets, 2),
        suspicion=False,
    )
    buckets = [Bucket(10 + k, ((k % 2, k + 1),), 1) for k in range(bounds.buckets)]
    world = World(setup, Reference(buckets, lag_buckets=bounds.lag_buckets))
    world.begin()
    source = ("source", GATEWAY)
    while any(channel != source for channel in world.channels):
        world.step(next(channel for channel in world.channels if channel != source))
    return world


def _moves(visit: _Visit, bounds: Bounds) -> list[tuple[str, ...]]:
    world, faults = visit.world, visit.faults
    moves: list[tuple[str, ...]] = []
    for channel in world.channels:
        item = world.head(channel)
        if item is None:
            continue
        if channel[0] in bounds.instant or _to_a_bystander(world, channel, item):
            return [("step", *channel)]
        moves.append(("step", *channel))
    # A run in which nothing is left to do is over; what fails afterwards is the start of another one.
    if not moves:
        return moves
    if faults.kills:
        seated = [name for name, node in world.nodes.items() if node.token is not None]
        moves += [("kill", name) for name in seated if world.survives_without(name)]
    if faults.gateway_crashes and world.gateway.up:
        moves.append(("crash",))
    if faults.flaps:
        moves += [("flap", conn.name) for conn in sorted(world.open, key=lambda conn: conn.name)]
    return moves


def _to_a_bystander(world: World, channel: Channel, item: Item) -> bool:
    """Whether this is a view that a node without a seat looks at: nothing else can tell when it does."""
    if not isinstance(item, NewView) or channel[1] not in world.nodes:
        return False
    node = world.nodes[channel[1]]
    return node.token is None and item.view.slot_of(node.name) is None


def _make(visit: _Visit, move: tuple[str, ...]) -> tuple[_Visit, str]:
    """The state after the move, and which process it changed."""
    world, faults = _fork(visit.world), visit.faults
    touched = ""
    match move:
        case ("step", *channel):
            touched = channel[1]
            _own(world, touched)
            world.step(tuple(channel))
        case ("kill", name):
            faults = replace(faults, kills=faults.kills - 1)
            world.kill(name)
        case ("crash",):
            touched = GATEWAY
            faults = replace(faults, gateway_crashes=faults.gateway_crashes - 1)
            _own(world, GATEWAY)
            world.crash_gateway()
        case ("flap", name):
            faults = replace(faults, flaps=faults.flaps - 1)
            conn = next(conn for conn in world.open if conn.name == name)
            world.sever(conn, (GATEWAY, conn.node))
    return _Visit(world, faults, visit.frozen), touched


def _fork(world: World) -> World:
    """A world that shares its processes with the old one; `_own` gives it its own copy of one."""
    fork = object.__new__(World)
    fork.__dict__.update(world.__dict__)
    fork.nodes = dict(world.nodes)
    fork.channels = dict(world.channels)
    fork.open = set(world.open)
    return fork


def _own(world: World, name: str) -> None:
    if name == GATEWAY:
        world.gateway = clone(world.gateway)
    elif name == CONTROLLER:
        world.controller = clone(world.controller)
    elif name in world.nodes:
        world.nodes[name] = clone(world.nodes[name])


def _fingerprint(visit: _Visit, touched: str) -> int:
    """A number for the state. Only the process that changed is looked at anew."""
    world = visit.world
    names: list[str] = [GATEWAY, CONTROLLER, *world.nodes]
    frozen: dict[str, Hashable] = {}
    for name in names:
        if name != touched and name in visit.frozen:
            frozen[name] = visit.frozen[name]
        else:
            frozen[name] = hash(freeze(world.process(name)))
    visit.frozen = frozen
    channels: frozenset[tuple[Channel, object]] = frozenset(world.channels.items())
    return hash((tuple(frozen.items()), channels, frozenset(world.open), visit.faults))


def _explained(error: Exception, path: list[tuple[str, ...]]) -> Violation:
    invariant = error.invariant if isinstance(error, Violation) else "sound"
    steps = "\n".join(f"  {number:>4} {' '.join(move)}" for number, move in enumerate(path))
    return Violation(invariant, f"{error}\nthe path:\n{steps}")
