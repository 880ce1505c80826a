"""Every interleaving of a small world, with a kill at every point and the catch-up after it.

A world is copied at every step, and known again where it comes back to a state (`sim.forking`).

*Moves* are all choices of `sim.world`, every view that a process has not seen, the loss of what a dead
process had sent, and kills, crashes, power failures and broken connections as long as some are left. Where
states are saved, so are the saves, as long as some are left, the end of a lost node's grace, and the start
from the snapshot before the newest. With backups, the time to ship may come whenever a backup waits.

*What is no choice.* Some steps are taken as soon as they can be, because to take them later would only delay
what they lead to, and that may be late anyway:

    call      the connection's `Up` waits in its queues, and may be handled or lost at any time
    publish, member, report
              a decision shows only in views, and those reach a process at any time. Which of several comes
              first is a choice
    finish    what happens at a process between its engine's output and its standing still could as well
              happen before or after both
    up        only with `eager`: a connection that is needed stands at once, and only what is said over it
              takes its time

Timers fire when nothing else can happen. Suspicions and limits never come to pass here: nothing is slow.

*Quiet steps* go first as well, once nothing can fail any more: the delivery of an acknowledgement at a
process that knows the newest view, when no seat changes at either end of the edge. `prove_quiet` tries each
of them in both orders with every other move, in every state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from understudy.core.edge.messages import Ack
from understudy.core.host.parcels import Say
from understudy.core.host.places import GATEWAY
from understudy.core.shape.partition import Copy
from understudy.core.view.view import View
from understudy.sim.checkers import Violation
from understudy.sim.clock import asks, saves
from understudy.sim.connections import Up
from understudy.sim.forking import ForkingWorld, Known
from understudy.sim.invariants import check_converged
from understudy.sim.searching import Explored, search
from understudy.sim.setup import Setup
from understudy.sim.survival import may_lose
from understudy.sim.world import Choice, World

#: More than this many steps that follow from one another without a choice never end.
FORCED_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """How small the world is, and what may fail in it."""

    setup: Setup
    spares: int = 0
    kills: int = 0
    #: The nodes that may be killed; none named means all.
    victims: frozenset[str] = frozenset()
    crashes: int = 0
    severs: int = 0
    #: How often states are saved, if the setup saves any, and how often everything is killed at once.
    saves: int = 0
    powers: int = 0
    #: Whether connections stand as soon as they are needed.
    eager: bool = True
    #: Whether quiet steps go first.
    reduced: bool = True
    #: Whether to try quiet steps in both orders with every other move; only without reduction.
    prove_quiet: bool = False


class Space:
    """A small world as a space to search."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.known = Known()

    def first(self) -> ForkingWorld:
        """Every edge stands, every process has seen the first view, and no input has come."""
        bounds = self.bounds
        world = ForkingWorld(bounds.setup, self.known)
        for _ in range(bounds.setup.nodes + bounds.spares):
            world.add_node()
        world.feed_max = 0
        while choices := world.choices() or _asked_again(world):
            world.take(choices[0])
        world.feed_max = None
        world.processes = {name: self.known.met(process) for name, process in world.processes.items()}
        world.kills_left, world.crashes_left, world.severs_left = bounds.kills, bounds.crashes, bounds.severs
        world.saves_left, world.powers_left = bounds.saves, bounds.powers
        return world

    # --- moves -------------------------------------------------------------------------------------------

    def moves(self, world: ForkingWorld) -> list[Choice]:
        found: list[Choice] = []
        for choice in world.choices():
            match choice:
                case "view", str(name), int(newest):
                    process = world.processes[name]
                    # To a process without a copy only the newest view matters.
                    first = process.view_epoch + 1 if process.workers else newest
                    found += [("view", name, epoch) for epoch in range(first, newest + 1)]
                case "deliver", int(serial), str(to):
                    found.append(choice)
                    connection = world.connections[serial]
                    if not connection.open and len(connection.queue(to)) > 1:
                        found.append(("lose", serial, to))
                case "start", _, Copy() as copy if world.vault.get(copy.partition):
                    found += [choice, (*choice, "older")]
                case _:
                    found.append(choice)
        found += self._saves(world)
        if not found:
            found += [timer for timer in world.timers() if asks(timer)]
        if found or self.bounds.setup.saved:
            found += self._faults(world)
        return found

    def _saves(self, world: ForkingWorld) -> Iterator[Choice]:
        """The timers that do not wait until nothing else can happen."""
        for timer in world.timers():
            if timer[0] == "grace":
                due = self.bounds.setup.saved
            else:
                due = saves(world, timer) and (world.saves_left > 0 or _ships(timer))
            if due:
                yield timer

    def _faults(self, world: ForkingWorld) -> Iterator[Choice]:
        victims = self.bounds.victims
        if world.kills_left:
            for name in world.nodes:
                seated = world.view is not None and bool(world.view.copies_on(name))
                if seated and (not victims or name in victims) and may_lose(world, name):
                    yield "kill", name
        if world.crashes_left and GATEWAY in world.processes:
            yield "kill", GATEWAY
        if world.powers_left:
            yield ("power",)
        if world.severs_left:
            yield from (("sever", each.serial) for each in world.connections.values() if each.open)

    def after(self, world: ForkingWorld, move: Choice, path: list[Choice]) -> ForkingWorld:
        """The world after a move and all that is forced by it."""
        after = world.fork()
        path.append(move)
        after.make(move)
        while (forced := self._forced(after)) is not None:
            path.append(forced)
            after.make(forced)
            if len(path) > FORCED_MAX:
                raise Violation("converged", "it goes on for ever")
        return after

    def _forced(self, world: ForkingWorld) -> Choice | None:
        choices = world.choices()
        for choice in choices:
            if choice[0] in ("call", "finish", "publish") or (self.bounds.eager and _comes_up(world, choice)):
                return choice
        deciding = [choice for choice in choices if choice[0] in ("member", "report")]
        if len(deciding) == 1:
            return deciding[0]
        return next(self.quiet(world, choices), None) if self.bounds.reduced else None

    # --- quiet steps -------------------------------------------------------------------------------------

    def quiet(self, world: ForkingWorld, choices: list[Choice]) -> Iterator[Choice]:
        """The steps of which no other step can tell when they are taken."""
        if world.kills_left or world.crashes_left or world.severs_left or world.view is None:
            return
        if self.bounds.setup.saved or self.bounds.setup.timing.ship_ms:
            # What is acknowledged decides what a snapshot keeps.
            return
        for choice in choices:
            if choice[0] != "deliver":
                continue
            _, serial, to = choice
            assert isinstance(serial, int) and isinstance(to, str)
            connection = world.connections[serial]
            if not connection.open:
                continue
            match connection.queue(to)[0]:
                case Say(consumer, producer, _, Ack()) if world.processes[to].view_epoch == world.view.epoch:
                    if _rests(world.view, producer) and _rests(world.view, consumer):
                        yield choice

    def check(self, world: ForkingWorld, moves: list[Choice]) -> int:
        """What must hold in a state that was not seen before. How many pairs of moves commuted."""
        if not moves:
            check_converged(world)
        return self._prove_quiet(world, moves) if self.bounds.prove_quiet else 0

    def _prove_quiet(self, world: ForkingWorld, moves: list[Choice]) -> int:
        """Try every quiet step in both orders with every other one. Raises unless all commute."""
        commuted = 0
        for quiet in self.quiet(world, moves):
            first = self.after(world, quiet, [])
            for other in moves:
                if other == quiet:
                    continue
                then = self.after(world, other, [])
                one = self.after(first, other, []) if other in self.moves(first) else first
                two = self.after(then, quiet, []) if quiet in self.moves(then) else then
                if one.mark() != two.mark():
                    raise Violation("quiet", f"{quiet} does not commute with {other}")
                commuted += 1
        return commuted


def _asked_again(world: World) -> list[Choice]:
    """What standbys wait for that had no copy to ask when they were seated, or come after another one."""
    if world.view is None or all(seats.whole for seats in world.view.partitions.values()):
        return []
    ships = [timer for timer in world.timers() if saves(world, timer) and _ships(timer)]
    return ships or [timer for timer in world.timers() if asks(timer)]


def _ships(timer: Choice) -> bool:
    return isinstance(timer[2], tuple) and timer[2][0] == "ship"


def _rests(view: View, copy: Copy) -> bool:
    """Whether no seat of this partition changes any more, unless another fault strikes."""
    seats = view.partitions.get(copy.partition)
    return seats is None or seats.whole


def _comes_up(world: World, choice: Choice) -> bool:
    match choice:
        case "deliver", int(serial), str(to):
            return isinstance(world.connections[serial].queue(to)[0], Up)
    return False


def explore(
    bounds: Bounds,
    *,
    states_max: int = 0,
    seed: int | None = None,
    progress: Callable[[Explored], None] | None = None,
) -> Explored:
    """Visit every reachable state: `sim.searching`."""
    return search(Space(bounds), states_max=states_max, seed=seed, progress=progress)
