"""Every interleaving of a small world, with every crash point.

The world has no clock here: whatever could happen next is tried, one after the other, depth first. States
seen before are not entered again. In each state the checkers run, and in each state where nothing can happen
any more the world must have converged. Exploration begins where both replicas are attached and the input has
not begun, since how they got there is the same every time.

Faults are a budget: so many kills, gateway crashes and broken connections, each possible in every state in
which a complete replica would survive it. A budget of one kill covers every crash point of either replica;
after a death at the start, also every crash point of the standby that comes for it. A state in which budget
is left and nothing else happens is also a run without.

Some steps are not choices; they are taken as soon as they can be:

* *Instant* steps, which by assumption take no time (`Bounds.instant`), and views that change nothing.
* *Quiet* steps, once the budget is spent. A quiet step commutes with every other one: whichever is taken
  first, the other can still be taken, and the state after both is the same. So every state in which nothing
  can happen any more, and every violation on the way, is reached as well when the quiet step goes first. That
  a kind of step is quiet is no opinion: `explore` with `reduced=False` and `prove_quiet=True` tries both
  orders in every reachable state. Before a fault no step is quiet, since a fault destroys what is in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

from understudy.core.bucket import Bucket
from understudy.core.buffer import Acks
from understudy.core.messages import Ack
from understudy.core.view import Status
from understudy.sim.checkers import Reference, Violation
from understudy.sim.convergence import check_converged
from understudy.sim.items import (
    CONTROLLER,
    GATEWAY,
    Acting,
    Channel,
    Down,
    Item,
    Moved,
    NewView,
    Setup,
    Up,
    WantState,
)
from understudy.sim.search import Explored, Move, search
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
    #: Whether a replica is dead from the start, so that the kills can hit the standby that comes for it.
    begin_with_a_death: bool = False
    acks: Acks = Acks.CUMULATIVE
    group_buckets_max: int = 2
    lag_buckets: int = 0
    #: What takes no time: these happen before anything else can.
    instant: frozenset[str] = frozenset({"connect", "disk", "engine", "report"})
    #: Whether quiet steps go first once no fault can follow.
    reduced: bool = True
    #: Whether to try quiet steps in both orders with every other step; only without reduction.
    prove_quiet: bool = False
    #: Give up with what was seen so far after this many states; 0 means never.
    states_max: int = 0


@dataclass(frozen=True, slots=True)
class Faults:
    kills: int
    gateway_crashes: int
    flaps: int

    @property
    def spent(self) -> bool:
        return not (self.kills or self.gateway_crashes or self.flaps)


@dataclass(slots=True)
class _Visit:
    """One state: the world, the faults left, and a hash per process."""

    world: World
    faults: Faults
    frozen: dict[str, int] = field(default_factory=dict)
    mark: int = 0


@dataclass(frozen=True, slots=True)
class _Pair:
    """A pair of replicas as a space to search."""

    bounds: Bounds

    def mark(self, visit: _Visit) -> int:
        return visit.mark

    def moves(self, visit: _Visit) -> list[Move]:
        return _moves(visit)

    def after(self, visit: _Visit, move: Move, path: list[Move]) -> _Visit:
        return _after(visit, move, self.bounds, path)

    def seen(self, visit: _Visit, moves: Sequence[Move]) -> int:
        if not moves:
            check_converged(visit.world)
        return _prove_quiet(visit, moves, self.bounds) if self.bounds.prove_quiet else 0

    def told(self, move: Move) -> Move:
        return move


def explore(bounds: Bounds, *, progress: Callable[[Explored], None] | None = None) -> Explored:
    """Visit every reachable state. Raises `Violation` with the path that led to it."""
    faults = Faults(bounds.kills, bounds.gateway_crashes, bounds.flaps)
    first = _Visit(_steady(bounds), faults)
    _fingerprint(first, set())
    return search(_Pair(bounds), first, states_max=bounds.states_max, progress=progress)


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
    if bounds.begin_with_a_death:
        world.kill("n1")
    return world


# --- what may happen -------------------------------------------------------------------------------------


def _moves(visit: _Visit) -> list[Move]:
    """All choices in this state; none if it is an end."""
    world, faults = visit.world, visit.faults
    moves: list[Move] = [("step", *channel) for channel in world.channels if world.head(channel) is not None]
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


def _forced(world: World, faults: Faults, bounds: Bounds) -> Channel | None:
    """A step that is no choice, if there is one."""
    for channel in world.channels:
        item = world.head(channel)
        if item is None:
            continue
        if channel[0] in bounds.instant or _idle(world, channel, item):
            return channel
        if bounds.reduced and faults.spent and _quiet(world, channel, item):
            return channel
    return None


def _idle(world: World, channel: Channel, item: Item) -> bool:
    """Whether this is a view that changes nothing: nothing else can tell when it is looked at."""
    match item:
        case NewView(view) if (node := world.nodes.get(channel[1])) is not None:
            return node.token is None and view.slot_of(node.name) is None
        case NewView(view) | Acting(_, _, view):
            seen = world.gateway.view
            return seen is not None and seen.epoch >= view.epoch
    return False


def _quiet(world: World, channel: Channel, item: Item) -> bool:
    """Whether no other step can tell when this one is taken.

    What a replica acknowledges only adds to what ingress knows of that replica. A state on its way reaches a
    standby that can do nothing before. That a standby came, or is active, changes nothing at the gateway
    until that standby speaks. What egress acknowledges is only told by a snapshot, and none is taken once all
    are active. `CSync` and `PSync` commute as well, but only because the machines are right about them: a
    machine that is wrong about their order must still be found, so they are left to choice.
    """
    match item:
        case Up(_, _, Ack()) | WantState() | Moved():
            return True
        case NewView(view) | Acting(_, _, view) if channel[1] == GATEWAY:
            return all(seat.alive for seat in view.seats.values())
        case Down(_, Ack()):
            decided = world.controller.view
            return decided is not None and all(s.status is Status.ACTIVE for s in decided.seats.values())
    return False


def _prove_quiet(visit: _Visit, moves: Sequence[Move], bounds: Bounds) -> int:
    """Try every quiet step in both orders with every other one; raises unless all commute. How many did."""
    if not visit.faults.spent:
        return 0
    commuted = 0
    for quiet in moves:
        item = visit.world.head(quiet[1:])
        if item is None or not _quiet(visit.world, quiet[1:], item):
            continue
        for other in moves:
            if other == quiet:
                continue
            ends = {_after_both(visit, quiet, other, bounds), _after_both(visit, other, quiet, bounds)}
            if len(ends) > 1:
                raise Violation("quiet", f"{' '.join(quiet)} does not commute with {' '.join(other)}")
            commuted += 1
    return commuted


def _after_both(visit: _Visit, first: Move, second: Move, bounds: Bounds) -> int:
    path: list[Move] = []
    between = _after(visit, first, bounds, path)
    if ("forced", *second[1:]) in path:
        # After the first one nothing can tell any more when the second is taken, so it has been.
        return between.mark
    if second not in _moves(between):
        raise Violation("quiet", f"{' '.join(second)} is not possible after {' '.join(first)}")
    return _after(between, second, bounds, []).mark


# --- making it happen ------------------------------------------------------------------------------------


def _after(visit: _Visit, move: Move, bounds: Bounds, path: list[Move]) -> _Visit:
    """The state after the move and all that is forced by it. `path` tells what happened, also if it fails."""
    world, owned = _fork(visit.world), set[str]()
    faults = visit.faults
    path.append(move)
    match move:
        case ("step", *channel):
            _step(world, tuple(channel), owned)
        case ("kill", name):
            faults = replace(faults, kills=faults.kills - 1)
            world.kill(name)
        case ("crash",):
            faults = replace(faults, gateway_crashes=faults.gateway_crashes - 1)
            _own(world, GATEWAY, owned)
            world.crash_gateway()
        case ("flap", name):
            faults = replace(faults, flaps=faults.flaps - 1)
            conn = next(conn for conn in world.open if conn.name == name)
            world.sever(conn, (GATEWAY, conn.node))
    while (forced := _forced(world, faults, bounds)) is not None:
        path.append(("forced", *forced))
        _step(world, forced, owned)
    after = _Visit(world, faults, visit.frozen)
    _fingerprint(after, owned)
    return after


def _fork(world: World) -> World:
    """A world that shares its processes with the old one; `_own` gives it its own copy of one."""
    fork = object.__new__(World)
    fork.__dict__.update(world.__dict__)
    fork.nodes = dict(world.nodes)
    fork.channels = dict(world.channels)
    fork.open = set(world.open)
    return fork


def _step(world: World, channel: Channel, owned: set[str]) -> None:
    _own(world, channel[1], owned)
    world.step(channel)


def _own(world: World, name: str, owned: set[str]) -> None:
    if name in owned:
        return
    owned.add(name)
    if name == GATEWAY:
        world.gateway = clone(world.gateway)
    elif name == CONTROLLER:
        world.controller = clone(world.controller)
    elif name in world.nodes:
        world.nodes[name] = clone(world.nodes[name])


def _fingerprint(visit: _Visit, changed: set[str]) -> None:
    """Give the state its number. Only the processes that changed are looked at anew."""
    world, known = visit.world, visit.frozen
    visit.frozen = {
        name: known[name] if name in known and name not in changed else hash(freeze(world.process(name)))
        for name in (GATEWAY, CONTROLLER, *world.nodes)
    }
    channels: frozenset[tuple[Channel, object]] = frozenset(world.channels.items())
    facts: Hashable = (frozenset(visit.frozen.items()), channels, frozenset(world.open), visit.faults)
    visit.mark = hash(facts)
