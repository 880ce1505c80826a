"""Every order of what the gateway does in a small run that is upgraded, with a crash of it at any point.

The operator's wishes come in a fixed order, each at any time at which it can be had. *Moves* are the steps of
the gateway, in both versions: a bucket of a source is sealed or put in, output comes to a sink, a sink's
writer has written a group and stands still, a view is seen, the gateway's turning hears of something, a sink
is told what it said, the gateway crashes and begins again.

*What is no choice.* Nodes and leaders do at once whatever they can, and all but output comes to the gateway
at once. Output waits as long as it likes, so a quick node and a slow one are the same to a sink. What else
comes late is left to chance (`sim.upgrade_schedules`). Timers fire when nothing else can happen.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from understudy.core.edge.messages import Data
from understudy.core.host.parcels import Say
from understudy.core.host.places import GATEWAY
from understudy.sim.checkers import Violation, checkers, demand
from understudy.sim.clock import asks, saves
from understudy.sim.disk import Disk
from understudy.sim.forking import SERIALS_MAX, state_of
from understudy.sim.process import Process
from understudy.sim.searching import Explored, search
from understudy.sim.setup import Setup
from understudy.sim.state import clone, freeze
from understudy.sim.upgrading import Upgrading
from understudy.sim.versions import SharedDisk, Version
from understudy.sim.world import Choice

#: More than this many steps that follow from one another without a choice never end.
FORCED_MAX = 1_000
#: What the operator wants, one after the other.
WISHES = ("begin", "turn", "back")


@dataclass(frozen=True, slots=True)
class UpgradeBounds:
    """How small the run is, what the operator wants, and how often the gateway crashes."""

    setup: Setup
    wishes: tuple[str, ...] = WISHES
    crashes: int = 0


class ForkingVersion(Version):
    """A version that can be copied at every step: processes are shared until one of them changes."""

    #: The processes that no other copy of this version has.
    own: set[str]
    #: How many connections were made between two processes so far.
    calls_made: Counter[tuple[str, str]]

    def fork(self, run: Upgrading) -> ForkingVersion:
        """The same in a copy of its run."""
        copy = object.__new__(ForkingVersion)
        copy.__dict__.update(self.__dict__)
        copy.run, copy.happened, copy.own = run, run.happened, set()
        copy._disk = SharedDisk(run.disk, run, self.number)
        copy.processes, copy.store = dict(self.processes), clone(self.store)
        copy.connections, copy.calls = dict(self.connections), dict(self.calls)
        copy.reports, copy._needed = dict(self.reports), dict(self._needed)
        copy.fired, copy.calls_made = Counter(self.fired), Counter(self.calls_made)
        return copy

    @property
    def disk(self) -> Disk:
        return self._disk

    def to_change(self, name: str) -> Process:
        if name not in self.own:
            self.own.add(name)
            self.processes[name] = clone(self.processes[name])
        process = self.processes[name]
        # It is another one from here on.
        process.number = 0
        if name == GATEWAY:
            process.disk = self._disk
        return process

    def mark(self) -> Hashable:
        for process in self.processes.values():
            process.number = process.number or hash(state_of(process))
        return (
            self.number,
            tuple(sorted((name, process.number) for name, process in self.processes.items())),
            tuple(sorted((serial, hash(each)) for serial, each in self.connections.items())),
            tuple(sorted(self.calls.items())),
            tuple(sorted((name, queue) for name, queue in self.reports.items() if queue)),
            freeze(self.store),
            hash(freeze(self.vault)),
        )

    def _next_serial(self, caller: str, callee: str) -> int:
        """The same for the same connection, whichever others were made before it."""
        self.calls_made[caller, callee] += 1
        return (100 * _number(caller) + _number(callee)) * SERIALS_MAX + self.calls_made[caller, callee]


def _number(process: str) -> int:
    return 0 if process == GATEWAY else int(process.removeprefix("n"))


class ForkingRun(Upgrading):
    """A run that can be copied at every step."""

    def __init__(self, bounds: UpgradeBounds) -> None:
        super().__init__(bounds.setup, checkers(bounds.setup.flow.reference))
        self.wishes_left = bounds.wishes
        self.crashes_left = bounds.crashes

    def _version(self, number: int) -> Version:
        made = ForkingVersion(self, number, self.setup, self.observers, self.keep)
        made.own, made.calls_made = set(), Counter()
        return made

    def fork(self) -> ForkingRun:
        copy = object.__new__(ForkingRun)
        copy.__dict__.update(self.__dict__)
        copy.disk, copy.turning = clone(self.disk), clone(self.turning)
        copy.floors = clone(self.floors)
        copy.happened = Counter(self.happened)
        copy.unheard = {kind: deque(events) for kind, events in self.unheard.items()}
        copy.untold = {version: deque(told) for version, told in self.untold.items() if told}
        copy.to_adopt = deque(self.to_adopt)
        copy.made = list(self.made)
        for version in self.versions:
            assert isinstance(version, ForkingVersion)
            copy.made[version.number - 1] = version.fork(copy)
        copy.base = copy.made[self.base.number - 1]
        copy.candidate = self.candidate and copy.made[self.candidate.number - 1]
        return copy

    def mark(self) -> int:
        versions = [version for version in self.versions if isinstance(version, ForkingVersion)]
        return hash(
            (
                tuple(version.mark() for version in versions),
                (self.base_number, self.wanted, self.wishes_left, self.crashes_left),
                freeze(self.disk),
                freeze(self.floors),
                freeze(self.turning),
                freeze(self.unheard),
                freeze({version: told for version, told in self.untold.items() if told}),
                tuple(self.to_adopt),
            )
        )


class UpgradeSpace:
    """A small run as a space to search."""

    def __init__(self, bounds: UpgradeBounds) -> None:
        self.bounds = bounds

    def first(self) -> ForkingRun:
        """The base works; it has delivered the first bucket, and saved its state as often as is kept. Unless
        its beginning is among the wishes, the candidate works, too.
        """
        run = ForkingRun(self.bounds)
        run.base.feed_max = 1
        self._let_all_happen(run)
        if "begin" not in self.bounds.wishes:
            run._take(("begin",))
            self._let_all_happen(run)
        for version in run.versions:
            version.feed_max = None
        return run

    def _let_all_happen(self, run: ForkingRun) -> None:
        """As long as nothing fails and the operator wants nothing."""
        while True:
            able = [move for move in self.moves(run) if move[0] not in ("wish", "crash")]
            able += [(run.base.number, *timer) for timer in run.base.timers() if saves(run.base, timer)]
            move = self._forced(run) or next(iter(able), None)
            if move is None:
                return
            self._make(run, move)

    def moves(self, run: ForkingRun) -> list[Choice]:
        found: list[Choice] = [("run", *choice) for choice in run.choices()]
        for version in run.versions:
            for choice in version.choices():
                match choice:
                    case "view", str(name), int(newest):
                        seen = version.processes[name].view_epoch
                        found += [(version.number, "view", name, at) for at in range(seen + 1, newest + 1)]
                    case _:
                        found.append((version.number, *choice))
        if run.wishes_left and (run.wishes_left[0],) in run.wishes():
            found.append(("wish", run.wishes_left[0]))
        if not found:
            found += [(v.number, *timer) for v in run.versions for timer in v.timers() if asks(timer)]
        if found and run.crashes_left and run.gateway_lives:
            found.append(("crash",))
        return found

    def after(self, run: ForkingRun, move: Choice, path: list[Choice]) -> ForkingRun:
        """The run after a move and all that is forced by it."""
        after = run.fork()
        forced: Choice | None = move
        while forced is not None:
            path.append(forced)
            self._make(after, forced)
            if len(path) > FORCED_MAX:
                raise Violation("converged", "it goes on for ever")
            forced = self._forced(after)
        return after

    def _make(self, run: ForkingRun, move: Choice) -> None:
        match move:
            case "wish", str(what):
                run.wishes_left = run.wishes_left[1:]
                run._take((what,))
            case "run", *choice:
                run._take(tuple(choice))
            case ("crash",):
                run.crashes_left -= 1
                run.crash()
            case int(number), *choice:
                run.made[number - 1]._take(tuple(choice))
        run.check()

    def _forced(self, run: ForkingRun) -> Choice | None:
        """What nodes and leaders do at once, and what is on its way between them."""
        if any(choice[0] == "adopt" for choice in run.choices()):
            return "run", "adopt", run.to_adopt[0]
        for version in run.versions:
            for choice in version.choices():
                if not _may_come_late(version, choice):
                    return version.number, *choice
        return None

    def check(self, run: ForkingRun, moves: list[Choice]) -> int:
        """What must hold in a state that was not seen before."""
        if not moves:
            demand(not run.wishes_left, "converged", f"this could never be had: {run.wishes_left}")
            run.check_converged()
        return 0


def _may_come_late(version: Version, choice: Choice) -> bool:
    """Whether this is one of the steps of the gateway that are tried in every order."""
    match choice:
        case "deliver", int(serial), str(to):
            item = version.connections[serial].queue(to)[0]
            return to == GATEWAY and isinstance(item, Say) and isinstance(item.message, Data)
        case ("restart",) | ("feed", *_):
            return True
        case (("produce" | "finish" | "view"), str(name), *_):
            return name == GATEWAY
    return False


def explore_upgrades(
    bounds: UpgradeBounds,
    *,
    states_max: int = 0,
    seed: int | None = None,
    progress: Callable[[Explored], None] | None = None,
) -> Explored:
    """`explore`, of a run that is upgraded."""
    return search(UpgradeSpace(bounds), states_max=states_max, seed=seed, progress=progress)
