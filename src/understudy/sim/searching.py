"""A search of every reachable state of a small world, depth first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from understudy.core.errors import BrokenInvariant, PeerError
from understudy.sim.checkers import Violation
from understudy.sim.world import Choice

_TOLD_EVERY_STATES = 1_000


class Marked(Protocol):
    def mark(self) -> int:
        """A hash of all that decides what will happen."""
        ...


W = TypeVar("W", bound=Marked)


class Space(Protocol[W]):
    """What is searched. A world in it is never changed: `after` makes another one."""

    def first(self) -> W: ...

    def moves(self, world: W) -> list[Choice]: ...

    def after(self, world: W, move: Choice, path: list[Choice]) -> W:
        """The world after a move, and after all that follows from it without a choice; `path` gets both."""
        ...

    def check(self, world: W, moves: list[Choice]) -> int:
        """What must hold in a state that was not seen before. How many pairs of moves commuted."""
        ...


@dataclass(slots=True)
class Explored:
    """What an exploration saw. It is not `whole` if it gave up."""

    states: int = 0
    steps: int = 0
    ends: int = 0
    commuted: int = 0
    seconds: float = 0.0
    whole: bool = True


@dataclass(slots=True)
class _Frame(Generic[W]):
    world: W
    path: list[Choice]
    moves: Iterator[Choice]


def search(
    space: Space[W],
    *,
    states_max: int = 0,
    seed: int | None = None,
    progress: Callable[[Explored], None] | None = None,
) -> Explored:
    """Visit every reachable state, depth first. Raises `Violation` with the path that led to it.

    `states_max` gives up with what was seen so far after so many states, if it is not 0. A `seed` tries moves
    in an order of its own, so that several searches that give up see different parts of the space.
    """
    explored, began = Explored(), perf_counter()
    random = Random(seed) if seed is not None else None

    def mixed(moves: list[Choice]) -> Iterator[Choice]:
        if random is not None:
            random.shuffle(moves)
        return iter(moves)

    first = space.first()
    seen = {first.mark()}
    stack = [_Frame(first, [("begin",)], mixed(space.moves(first)))]
    while stack:
        move = next(stack[-1].moves, None)
        if move is None:
            stack.pop()
            continue
        explored.steps += 1
        path: list[Choice] = []
        try:
            after = space.after(stack[-1].world, move, path)
            mark = after.mark()
            if mark in seen:
                continue
            seen.add(mark)
            moves = space.moves(after)
            explored.ends += not moves
            explored.commuted += space.check(after, moves)
        except (Violation, PeerError, BrokenInvariant) as error:
            raise _explained(error, [step for frame in stack for step in frame.path] + path) from error
        stack.append(_Frame(after, path, mixed(moves)))
        explored.states = len(seen)
        explored.seconds = perf_counter() - began
        if progress is not None and explored.states % _TOLD_EVERY_STATES == 0:
            progress(explored)
        if states_max and explored.states >= states_max:
            explored.whole = False
            break
    explored.seconds = perf_counter() - began
    return explored


def _explained(error: Exception, path: list[Choice]) -> Violation:
    invariant = error.invariant if isinstance(error, Violation) else "sound"
    steps = "\n".join(f"  {n:>4} {' '.join(str(each) for each in step)}" for n, step in enumerate(path))
    what = error.what if isinstance(error, Violation) else str(error)
    return Violation(invariant, f"{what}\nthe path:\n{steps}")
