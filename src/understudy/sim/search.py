"""Depth-first search through everything that can happen, each state once.

What a state is, which moves are possible in it and where they lead is the business of a `Space`. A state is
known again by its mark, a hash of all that decides what will happen; two states with one mark count as one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from understudy.core.errors import BrokenInvariant, PeerError
from understudy.sim.checkers import Violation

#: What happened, in words.
Move = tuple[str, ...]
S = TypeVar("S")
M = TypeVar("M", bound=Hashable)
_TOLD_EVERY_STATES = 1_000


@dataclass(slots=True)
class Explored:
    """What an exploration saw. It is not `whole` if it gave up."""

    states: int = 0
    steps: int = 0
    ends: int = 0
    commuted: int = 0
    seconds: float = 0.0
    whole: bool = True


class Space(Protocol[S, M]):
    """A world to search. Every method may raise what a checker or a machine has to complain of."""

    def mark(self, state: S) -> int: ...

    def moves(self, state: S) -> Sequence[M]:
        """All choices in this state; none if it is an end."""
        ...

    def after(self, state: S, move: M, path: list[M]) -> S:
        """The state after a move and all that is forced by it. `path` is given what happened, even if that
        fails.
        """
        ...

    def seen(self, state: S, moves: Sequence[M]) -> int:
        """A state that was not seen before: check what must hold in it. How many pairs of moves commuted."""
        ...

    def told(self, move: M) -> Move:
        """The move in words."""
        ...


@dataclass(slots=True)
class _Frame(Generic[S, M]):
    state: S
    path: list[M]
    moves: Iterator[M]


def search(
    space: Space[S, M],
    first: S,
    *,
    states_max: int = 0,
    progress: Callable[[Explored], None] | None = None,
) -> Explored:
    """Visit every reachable state. Raises `Violation` with the path that led to it."""
    explored = Explored()
    began = perf_counter()
    seen = {space.mark(first)}
    stack = [_Frame(first, [], iter(space.moves(first)))]
    while stack:
        move = next(stack[-1].moves, None)
        if move is None:
            stack.pop()
            continue
        explored.steps += 1
        path: list[M] = []
        try:
            after = space.after(stack[-1].state, move, path)
            mark = space.mark(after)
            if mark in seen:
                continue
            seen.add(mark)
            moves = space.moves(after)
            explored.ends += not moves
            explored.commuted += space.seen(after, moves)
        except (Violation, PeerError, BrokenInvariant) as error:
            whole = [space.told(step) for frame in stack for step in frame.path]
            raise _explained(error, [("begin",), *whole, *map(space.told, path)]) from error
        stack.append(_Frame(after, path, iter(moves)))
        explored.states = len(seen)
        if explored.states % _TOLD_EVERY_STATES == 0:
            explored.seconds = perf_counter() - began
            if progress is not None:
                progress(explored)
        if states_max and explored.states >= states_max:
            explored.whole = False
            break
    explored.states = len(seen)
    explored.seconds = perf_counter() - began
    return explored


def _explained(error: Exception, path: list[Move]) -> Violation:
    invariant = error.invariant if isinstance(error, Violation) else "sound"
    steps = "\n".join(f"  {number:>4} {' '.join(move)}" for number, move in enumerate(path))
    return Violation(invariant, f"{error}\nthe path:\n{steps}")
