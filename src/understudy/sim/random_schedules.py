"""Random fault schedules: one seed makes the input, the latencies, the faults and their moments.

A run has two halves. First faults happen while the input flows: nodes are killed or stalled, connections
break, the gateway crashes, the controller is away, the mover loses its peer, a healthy node is suspected.
Faults overlap as they like, but never destroy the last node that holds the whole state; a standby holds it
from the moment it has installed it, so the active one may die right then. Faults prefer the moments just
after a step of take-over or catch-up. Then everything heals, the world comes to rest, and must have
converged: all that is sealed is delivered, every slot is active, buffers are empty.

With `Acks.EACH`, the paper's own rules, the gateway does not fail and connections do not flap: the paper
assumes both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from time import perf_counter

from understudy.core.bucket import Bucket
from understudy.core.buffer import Acks
from understudy.core.controller import Suspected
from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.messages import CSync, PSync, Reverse
from understudy.core.view import Slot
from understudy.history.writing import HistoryWriter
from understudy.sim.checkers import Reference, Violation
from understudy.sim.convergence import check_converged
from understudy.sim.items import (
    CONTROLLER,
    GATEWAY,
    Acting,
    Down,
    Hello,
    Item,
    Moved,
    MoverMet,
    NewView,
    Report,
    Setup,
    SnapshotLinked,
    Up,
)
from understudy.sim.recorder import Recorder
from understudy.sim.timed import TimedWorld

STEPS_MAX = 60_000
BUCKETS_MAX = 40
#: Processes that end come back, under new names, while a run is younger than this many nodes.
NODES_MAX = 24


@dataclass(slots=True)
class Summary:
    """What a number of seeds added up to."""

    policy: str
    seeds: int = 0
    steps: int = 0
    buckets: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    caught_up: int = 0
    violations: list[tuple[int, Violation]] = field(default_factory=list)


def inputs(random: Random, count: int, *, dense: bool) -> list[Bucket]:
    """Buckets with rising numbers, some of them empty; unless dense, with gaps between them."""
    buckets: list[Bucket] = []
    number = 10
    for _ in range(count):
        rows = tuple((random.randrange(3), random.randrange(20)) for _ in range(random.choice((0, 1, 1, 3))))
        buckets.append(Bucket(number, rows or None, len(rows)))
        number += 1 if dense or random.random() < 0.7 else random.randint(2, 4)
    return buckets


def setup_of(policy: str, random: Random, acks: Acks) -> Setup:
    slots = (Slot.PRIM,) if policy == "none" else (Slot.PRIM, Slot.SEC)
    return Setup(
        slots=slots,
        acks=acks,
        nodes=len(slots) + random.choice((0, 0, 1, 2)),
        lag_buckets=random.choice((0, 1, 3)),
        group_buckets_max=random.choice((1, 2, 5)),
        ingress_buckets_max=random.choice((4, 8, 16)),
        output_buckets_max=random.choice((2, 6, 16)),
        detach_replaced=random.random() < 0.5,
    )


class Chaos:
    """Chooses the faults of one run and their moments."""

    def __init__(self, world: TimedWorld, *, nodes_fail: bool, edges_fail: bool) -> None:
        self.world = world
        self.random = world.random
        self.left = self.random.choice((1, 2, 3, 5, 8, 12))
        self._rate = self.random.choice((0.003, 0.01, 0.03))
        self._hot_rate = self.random.choice((0.05, 0.15, 0.4))
        kinds: list[Callable[[], str | None]] = []
        if nodes_fail:
            kinds += [self._kill, self._kill, self._break_move, self._suspect]
        if edges_fail:
            kinds += [self._flap, self._flap, self._crash_gateway, self._stall]
        kinds.append(self._controller_away)
        self._kinds = kinds

    def after(self, item: Item) -> None:
        """Perhaps let something fail, now that this has happened."""
        rate = self._hot_rate if _hot(item) else self._rate
        while self.left > 0 and self.random.random() < rate:
            fault = self.random.choice(self._kinds)()
            if fault is None:
                return
            self.left -= 1
            self.world.faults.append(f"{fault} at step {self.world.steps}")

    def _expendable(self) -> list[str]:
        world = self.world
        seated = [n for n in world.nodes if world.nodes[n].token is not None]
        return [name for name in seated if world.survives_without(name)]

    def _kill(self) -> str | None:
        names = self._expendable()
        if not names:
            return None
        name = self.random.choice(names)
        self.world.kill(name)
        return f"kill {name}"

    def _stall(self) -> str | None:
        names = list(self.world.nodes)
        name = self.random.choice(names)
        for_us = int(10 ** self.random.uniform(2.5, 5.5))
        self.world.stall(name, for_us)
        if for_us > 30_000:
            # Longer than anybody listens to silence: the other end gives the connections up.
            for conn in [c for c in self.world.nodes[name].conns.values() if c is not None]:
                self.world.sever(conn, (GATEWAY, name))
        return f"stall {name} for {for_us} us"

    def _suspect(self) -> str | None:
        names = self._expendable()
        if not names:
            return None
        token = self.world.nodes[self.random.choice(names)].token
        assert token is not None
        report = Report(Suspected(token.node, token.epoch, "somebody"))
        self.world.post(("report", CONTROLLER, "somebody"), report)
        return f"suspect {token.node}"

    def _break_move(self) -> str | None:
        world = self.world
        moving = [(a, b) for a in world.nodes for b in world.nodes if world.nodes[a].awaits_state_from(b)]
        if not moving:
            return None
        standby, active = self.random.choice(moving)
        world.break_move(standby, active)
        return f"break the move to {standby}"

    def _flap(self) -> str | None:
        conns = sorted(self.world.open, key=lambda conn: conn.name)
        if not conns:
            return None
        conn = self.random.choice(conns)
        self.world.sever(conn, (GATEWAY, conn.node))
        return f"break {conn.name}"

    def _crash_gateway(self) -> str | None:
        if not self.world.gateway.up:
            return None
        self.world.crash_gateway()
        return "crash the gateway"

    def _controller_away(self) -> str | None:
        for_us = int(10 ** self.random.uniform(3, 5))
        self.world.stall(CONTROLLER, for_us)
        return f"controller away for {for_us} us"


def _hot(item: Item) -> bool:
    match item:
        case Moved() | SnapshotLinked() | MoverMet() | NewView() | Acting() | Hello():
            return True
        case Up(_, _, CSync() | PSync()) | Down(_, Reverse()):
            return True
    return False


def run_seed(
    policy: str, seed: int, acks: Acks = Acks.CUMULATIVE, *, history: HistoryWriter | None = None
) -> TimedWorld:
    """One run. Raises `Violation` with the seed and the story; returns the world at rest."""
    random = Random(f"{policy}/{acks.value}/{seed}")
    setup = setup_of(policy, random, acks)
    each = acks is Acks.EACH
    count = random.randint(5, BUCKETS_MAX)
    reference = Reference(inputs(random, count, dense=each), lag_buckets=setup.lag_buckets)
    world = TimedWorld(setup, reference, seed)
    if history is not None:
        world.observe = Recorder(history, lambda: world.now_us)  # type: ignore[method-assign]
    chaos = Chaos(world, nodes_fail=policy == "pair", edges_fail=not each)
    try:
        world.begin()
        while (taken := world.next_step()) is not None:
            chaos.after(taken[1])
            _replace_ended(world)
            if world.steps > STEPS_MAX:
                raise Violation("converged", f"no rest after {STEPS_MAX} steps")  # noqa: TRY301
        check_converged(world)
    except (Violation, PeerError, BrokenInvariant) as error:
        raise world.explain(error) from error
    return world


def _replace_ended(world: TimedWorld) -> None:
    """Whoever ended is started again under a new name, so that a standby comes sooner or later."""
    if len(world.nodes) < world.setup.nodes and world.joined < NODES_MAX:
        world.add_node()


def simulate(
    policy: str,
    seeds: int,
    start_seed: int = 0,
    *,
    acks: Iterable[Acks] = (Acks.CUMULATIVE, Acks.EACH),
    progress: Callable[[Summary], None] | None = None,
    violations_max: int = 1,
) -> Summary:
    """Run this many seeds, each under every way of acknowledging; stop after `violations_max` failures."""
    summary = Summary(policy)
    began = perf_counter()
    for seed in range(start_seed, start_seed + seeds):
        for way in acks:
            try:
                world = run_seed(policy, seed, way)
            except Violation as violation:
                summary.violations.append((seed, violation))
                continue
            summary.steps += world.steps
            summary.buckets += world.gateway.disk.sealed_count
            summary.caught_up += world.controller.caught_up
            summary.faults.update(fault.split()[0] for fault in world.faults)
        summary.seeds += 1
        summary.seconds = perf_counter() - began
        if progress is not None:
            progress(summary)
        if len(summary.violations) >= violations_max:
            break
    return summary
