"""Scenarios: a schedule written by hand, for what chance brings about too rarely.

    Script(setup).run([wait("active"), feed(2), kill(Copy(F, 1)), join(), feed(4), wait("active")])

A scenario is a list of acts, carried out in order. Between two acts chance decides what happens next, except
what is on `hold`: a kind of choice, at one process or at all of them. Every scenario ends with an unspoken
act: nothing is held any more, and all input comes and must be delivered, once and in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from understudy.core.edge.inlet import Inlet
from understudy.core.host.places import GATEWAY
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.events import CopySuspected
from understudy.core.view.view import Status
from understudy.sim.checkers import Violation, checkers, demand
from understudy.sim.clock import STEPS_MAX, converge, let_time_pass
from understudy.sim.faults import heal
from understudy.sim.setup import Setup
from understudy.sim.world import Choice, World


@dataclass(frozen=True, slots=True)
class Feed:
    """Every source has this many further buckets ready."""

    count: int = 1


@dataclass(frozen=True, slots=True)
class Kill:
    """The process that this copy lives on is killed, or the gateway."""

    copy: Copy | None = None


@dataclass(frozen=True, slots=True)
class Join:
    """A node joins."""


@dataclass(frozen=True, slots=True)
class Sever:
    """The connection between the processes of two copies breaks, or of one and the gateway."""

    one: Copy
    other: Copy | None = None


@dataclass(frozen=True, slots=True)
class Expire:
    """The session of a copy's node ends, though it lives."""

    copy: Copy


@dataclass(frozen=True, slots=True)
class Suspect:
    """The gateway reports that it cannot reach a copy's node."""

    copy: Copy


@dataclass(frozen=True, slots=True)
class Lead:
    """Another leader takes over from the stored view."""


@dataclass(frozen=True, slots=True)
class LosePower:
    """Every process is killed at one moment, and starts again."""


@dataclass(frozen=True, slots=True)
class Hold:
    """This kind of choice does not happen, at this process or at any; a delivery is at its receiver."""

    kind: str
    name: str | None = None
    #: Only in this version, of those side by side.
    version: int | None = None

    def holds(self, choice: Choice, version: int | None) -> bool:
        at = choice[-1] if choice[0] == "deliver" else choice[1] if len(choice) > 1 else None
        here = self.name in (None, str(at)) and self.version in (None, version)
        return self.kind == choice[0] and here


@dataclass(frozen=True, slots=True)
class Release:
    """What was held may happen again; everything, if nothing is named."""

    held: Hold | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Go on when this holds."""

    what: str
    moment: Callable[[World], bool]


@dataclass(frozen=True, slots=True)
class Expect:
    """This holds now."""

    what: str
    moment: Callable[[World], bool]


Act = Feed | Kill | Join | Sever | Expire | Suspect | Lead | LosePower | Hold | Release | Wait | Expect


def feed(count: int = 1) -> Feed:
    return Feed(count)


def kill(copy: Copy) -> Kill:
    return Kill(copy)


def kill_gateway() -> Kill:
    return Kill()


def join() -> Join:
    return Join()


def sever(one: Copy, other: Copy | None = None) -> Sever:
    return Sever(one, other)


def expire(copy: Copy) -> Expire:
    return Expire(copy)


def suspect(copy: Copy) -> Suspect:
    return Suspect(copy)


def lead() -> Lead:
    return Lead()


def lose_power() -> LosePower:
    return LosePower()


def hold(kind: str, name: str | None = None, version: int | None = None) -> Hold:
    return Hold(kind, name, version)


def release(kind: str | None = None, name: str | None = None, version: int | None = None) -> Release:
    return Release(None if kind is None else Hold(kind, name, version))


def wait(moment: str) -> Wait:
    """Wait for one of the moments that have a name."""
    if moment not in MOMENTS:
        raise ValueError(f"there is no moment {moment!r}; known are {', '.join(MOMENTS)}")
    return Wait(moment, MOMENTS[moment])


def until(what: str, moment: Callable[[World], bool]) -> Wait:
    return Wait(what, moment)


def expect(what: str, moment: Callable[[World], bool]) -> Expect:
    return Expect(what, moment)


def _statuses(world: World) -> list[Status]:
    return [seat.status for seat in world.view.seats.values()] if world.view is not None else []


def _delivered(world: World) -> bool:
    """Whether all that was fed so far has been taken by every copy, and nothing is under way."""
    fed = {s: world.setup.flow.inputs[s][: world.feed_max] for s in world.disk.sealed}
    through = min(buckets[-1].number for buckets in fed.values())
    lags = sum(world.setup.flow.lags.values())
    return all(delivered >= through - lags for delivered in world.disk.delivered.values())


#: What a scenario can wait for by name.
MOMENTS: dict[str, Callable[[World], bool]] = {
    "active": lambda world: bool(_statuses(world)) and all(s is Status.ACTIVE for s in _statuses(world)),
    "seated": lambda world: (
        world.view is not None
        and any(s.status is Status.STDBY and s.node in world.processes for s in world.view.seats.values())
    ),
    "asked": lambda world: any(
        bool(resident.machine.lending.wanted)
        for process in world.processes.values()
        for resident in process.host.residents.values()
    ),
    "offered": lambda world: any(w.lent for p in world.processes.values() for w in p.workers.values()),
    "fetched": lambda world: any(w.fetched for p in world.processes.values() for w in p.workers.values()),
    "installed": lambda world: any(
        resident.machine.catching_up
        for process in world.processes.values()
        for resident in process.host.residents.values()
    ),
    "pausing": lambda world: any(
        isinstance(end, Inlet) and any(end._pausing.values())
        for process in world.processes.values()
        for resident in process.host.residents.values()
        for end in resident.machine.ends.values()
    ),
    "delivered": _delivered,
}


class Script:
    """A scenario on a world."""

    def __init__(self, setup: Setup, seed: int = 0, spares: int = 0) -> None:
        self.random = Random(f"scenario/{seed}")
        self.held: list[Hold] = []
        self.world = self._begin(setup, spares)
        self.world.feed_max = 0

    def _begin(self, setup: Setup, spares: int) -> World:
        world = World(setup, checkers(setup.flow.reference), keep=lambda n: self.random.randint(0, n))
        for _ in range(setup.nodes + spares):
            world.add_node()
        return world

    def run(self, acts: Sequence[Act]) -> World:
        for act in acts:
            self._carry_out(act)
        self.held = []
        self._converge()
        return self.world

    def _converge(self) -> None:
        self.world.feed_max = None
        heal(self.world)
        converge(self.world, self._step, self._may)

    def _carry_out(self, act: Act) -> None:
        world = self.world
        match act:
            case Feed(count):
                self._feed(count)
            case Kill(copy):
                world.kill(GATEWAY if copy is None else self._node(copy))
            case Join():
                world.add_node()
            case Sever(one, other):
                ends = {self._node(one), GATEWAY if other is None else self._node(other)}
                found = [
                    c.serial for c in world.connections.values() if {c.caller, c.callee} == ends and c.open
                ]
                for serial in found:
                    world.sever(serial)
            case Expire(copy):
                world.store.expire(self._node(copy))
            case Suspect(copy):
                assert world.view is not None
                world.store.put_report(GATEWAY, CopySuspected(copy, world.view.seat(copy).epoch, GATEWAY))
            case Lead():
                world.store.change_leader()
            case LosePower():
                world.lose_power()
            case Hold():
                self.held.append(act)
            case Release(held):
                self.held = [] if held is None else [each for each in self.held if each != held]
            case Wait(what, moment):
                while not moment(world):
                    if not (self._step() or self._let_time_pass()) or world.steps > STEPS_MAX:
                        raise Violation("converged", world.with_choices(f"this never came: {what}"))
            case Expect(what, moment):
                demand(moment(world), "expected", world.with_choices(what))

    def _feed(self, count: int) -> None:
        assert self.world.feed_max is not None
        self.world.feed_max += count

    def _node(self, copy: Copy) -> str:
        assert self.world.view is not None
        return self.world.view.seat(copy).node

    def _may(self, choice: Choice, version: int | None = None) -> bool:
        return not any(held.holds(choice, version) for held in self.held)

    def _step(self) -> bool:
        choices = [choice for choice in self.world.choices() if self._may(choice)]
        if choices:
            self.world.take(self.random.choice(choices))
        return bool(choices)

    def _let_time_pass(self) -> bool:
        return let_time_pass(self.world, self._may)


def copies(name: str, replicas: int, index: int = 0) -> list[Copy]:
    """The copies of a partition, by replica."""
    return [Copy(Partition(name, index), replica) for replica in range(replicas)]
