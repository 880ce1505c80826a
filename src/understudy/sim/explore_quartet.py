"""doc later"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from understudy.core.host import GATEWAY
from understudy.sim.exchange_process import Down
from understudy.sim.quartet import GONE, Quartet, State
from understudy.sim.search import Explored, Move, search

#: A kind of step, where in the state it happens, and which of several.
Choice = tuple[str, int, object]


@dataclass(frozen=True, slots=True)
class QuartetBounds:
    """How small the world is and what may fail in it."""

    buckets: int = 1
    kills: int = 1
    #: The nodes that may be killed; none named means all.
    victims: frozenset[str] = frozenset()
    group_buckets_max: int = 2
    #: Whether quiet steps go first.
    reduced: bool = True
    #: Whether to try quiet steps in both orders with every other step; only without reduction.
    prove_quiet: bool = False
    #: Give up with what was seen so far after this many states; 0 means never.
    states_max: int = 0


class QuartetSpace:
    """A quartet as a space to search."""

    def __init__(self, bounds: QuartetBounds) -> None:
        self.bounds = bounds
        self.quartet = Quartet(bounds.buckets, max(bounds.kills, 1), bounds.group_buckets_max)
        self.gateway = self.quartet.at[GATEWAY]
        self.inner = [link for link, ends in self.quartet.ends.items() if self.gateway not in ends]
        self.outer = [link for link, ends in self.quartet.ends.items() if self.gateway in ends]

    def mark(self, state: State) -> int:
        return hash(state)

    def moves(self, state: State) -> list[Choice]:
        quartet = self.quartet
        found: list[Choice] = []
        for link in self.inner:
            if queue := state[link]:
                found.append(("link", link, None))
                if state[quartet.ends[link][0]] == GONE and len(quartet.queued[queue]) > 1:
                    found.append(("lose", link, None))
        newest = len(quartet.decided[state[quartet.control_at]].views)
        for at in range(len(quartet.names)):
            held = quartet.held[state[at]]
            if held is None:
                continue
            found += [("work", at, copy) for copy in held.at_work]
            found += [("view", at, epoch) for epoch in range(held.view_epoch + 1, newest + 1)]
            if held.seals:
                found.append(("seal", at, None))
        if found and state[quartet.kills_at]:
            victims = self.bounds.victims
            found += [
                ("kill", at, None)
                for at in quartet.expendable(state[quartet.control_at])
                if not victims or quartet.names[at] in victims
            ]
        return found

    def after(self, state: State, move: Choice, path: list[Choice]) -> State:
        path.append(move)
        state = self._step(state, move)
        while (forced := self._forced(state)) is not None:
            path.append(forced)
            state = self._step(state, forced)
        return state

    def _step(self, state: State, move: Choice) -> State:
        quartet = self.quartet
        match move:
            case "link", link, _:
                return quartet.received(state, link)
            case "work", at, copy:
                return quartet.worked(state, at, copy)  # type: ignore[arg-type]
            case "view", at, epoch:
                return quartet.saw(state, at, epoch)  # type: ignore[arg-type]
            case "lose", link, _:
                return quartet.lost(state, link)
            case "kill", at, _:
                return quartet.killed(state, at)
        return quartet.sealed(state)

    def _forced(self, state: State) -> Choice | None:
        """A step that is no choice, if there is one."""
        for link in self.outer:
            if state[link]:
                return "link", link, None
        held = self.quartet.held[state[self.gateway]]
        assert held is not None
        for copy in held.at_work:
            return "work", self.gateway, copy
        return None

    def seen(self, state: State, moves: Sequence[Choice]) -> int:
        if not moves:
            self.quartet.check_converged(state)
        return 0

    def told(self, move: Choice) -> Move:
        kind, at, which = move
        quartet = self.quartet
        if at in quartet.ends:
            return kind, " -> ".join(quartet.names[end] for end in quartet.ends[at])
        return kind, quartet.names[at], *([] if which is None else [str(which)])


def explore_quartet(
    bounds: QuartetBounds, *, progress: Callable[[Explored], None] | None = None
) -> Explored:
    """Visit every reachable state. Raises `Violation` with the path that led to it."""
    space = QuartetSpace(bounds)
    first = space.quartet.first(bounds.kills)
    return search(space, first, states_max=bounds.states_max, progress=progress)
