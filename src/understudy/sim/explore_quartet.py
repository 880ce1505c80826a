"""Every interleaving of one quartet, with a death at every point and the catch-up after it (Flux paper,
sections 5.1-5.3).

The quartet is the paper's inductive step: two copies of a producer, two copies of a consumer, the four
edges between them. `sim.quartet` says what its world is. Exploration begins where everybody is attached and
no input has come. Whatever could happen next is tried, in every state:

* what a connection between two nodes brings, in its order; of what a dead node sent, also its loss
* the next thing that an engine or a mover does: a group, the meeting of two movers, a snapshot, its
  shipment
* a view that reaches a node, if there are several unseen, any of them
* the next bucket of the input, and the death of any node that the flow survives

In every state the machines' own checks have passed, no host has rejected anything, and what was delivered
is what one engine would have put out. In every state where nothing can happen any more, all is delivered,
all seats are active and all buffers are empty.

*What is no choice.* Three things take no time here:

* What goes between the gateway and a node, and the gateway's own work. An inlet shares nothing with the
  other inlets and outlets of its copy but the engine, and that has its own moments. So what is lost is only
  that an engine's input, or the room that an acknowledgement makes, comes late. The input's moments are
  choices, and output is never short of room here. The outer edges follow the same rules as the inner ones.
* The opening of an edge: `Here`, `Attach`, `Welcome`. What the two ends say over it afterwards takes its
  time, and so does the view without which it is not opened.
* A view goes with the message that it precedes (`Relay`). To arrive alone, a view needs no messenger.

The gateway hears of views from those who speak to it; from the controller itself, only when nothing else is
left to happen. A view that it learned earlier it could only pass on, to nodes which may see it at any time
anyway.

*What makes no difference.* A view on its way to somebody who has seen it is left out, and with it the
memory of who was told of it: on arrival it would be ignored.

*Quiet steps* go first once no fault can follow, as for a pair (`sim.explore`): acknowledgements at a copy
that will take no snapshot, `Folded` and `Paused`, the end of a connection that carries no edge, the first
view of somebody who sits nowhere, and the view in which all are active again, for everybody at once. With
`prove_quiet`, that they commute with every other step is tried in every state. A shipment does not: whom
the newcomer speaks to first depends on who has heard of it by then. Nor do `CSync`, `PSync`, `Reverse`
and `Pause`.

With one producer there is nothing to merge, so a mistake in the merge cannot show here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from understudy.core.host import GATEWAY
from understudy.core.messages import Ack, Folded, Paused
from understudy.core.parcels import Attach, Here, Relay, Say, Welcome
from understudy.core.view import Status
from understudy.sim.checkers import Violation
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
    #: Nodes that wait; none said means one for each kill.
    spares: int | None = None
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
        spares = max(bounds.kills, 1) if bounds.spares is None else bounds.spares
        self.quartet = Quartet(bounds.buckets, spares, bounds.group_buckets_max)
        self.gateway = self.quartet.at[GATEWAY]
        self.inner = [link for link, ends in self.quartet.ends.items() if self.gateway not in ends]
        self.sets_up = cache(self._sets_up)
        self.unnoticed = cache(self._unnoticed)
        self.standing = cache(self._standing)
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
        for at, number in enumerate(state[: quartet.queues_from]):
            held = quartet.held[number]
            if held is None or at == self.gateway:
                continue
            found += [("work", at, copy) for copy in held.at_work]
            # To somebody without a copy only the newest view matters.
            first = held.view_epoch + 1 if held.process.workers else newest
            found += [("view", at, epoch) for epoch in range(first, newest + 1) if epoch > held.view_epoch]
        ends = quartet.process(state, self.gateway)
        if ends.seals:
            found.append(("seal", self.gateway, None))
        if not found and ends.view_epoch < newest:
            found.append(("view", self.gateway, newest))
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
                relayed = isinstance(quartet.head(state[link]).what, Relay)
                after = quartet.received(state, link)
                # Alone, it would be no more than a view that is seen.
                return quartet.received(after, link) if relayed and after[link] else after
            case "work", at, copy:
                return quartet.worked(state, at, copy)  # type: ignore[arg-type]
            case "view", at, epoch:
                return quartet.saw(state, at, epoch)  # type: ignore[arg-type]
            case "views", _, newest:
                for at in range(quartet.queues_from):
                    if state[at] != GONE and quartet.process(state, at).view_epoch < newest:  # type: ignore[operator]
                        state = quartet.saw(state, at, newest)  # type: ignore[arg-type]
                return state
            case "lose", link, _:
                return quartet.lost(state, link)
            case "kill", at, _:
                return quartet.killed(state, at)
        return quartet.sealed(state)

    def _forced(self, state: State) -> Choice | None:
        """A step that is no choice, if there is one."""
        quartet = self.quartet
        for link in self.outer:
            if state[link]:
                return "link", link, None
        for copy in quartet.process(state, self.gateway).at_work:
            return "work", self.gateway, copy
        for link in self.inner:
            if (queue := state[link]) and self.sets_up(queue):
                return "link", link, None
        return next(self._quiet(state), None) if self.bounds.reduced else None

    def _sets_up(self, queue: int) -> bool:
        return isinstance(self.quartet.head(queue).what, Here | Attach | Welcome)

    # --- quiet steps -------------------------------------------------------------------------------------

    def _quiet(self, state: State) -> Iterator[Choice]:
        """The steps of which no other step can tell when they are taken."""
        quartet = self.quartet
        if state[quartet.kills_at]:
            return
        control = state[quartet.control_at]
        for link in self.inner:
            if queue := state[link]:
                sender, receiver = quartet.ends[link]
                if self.unnoticed(queue, control, state[sender] == GONE, state[receiver]):
                    yield "link", link, None
        newest, whole = self.standing(control)
        for at, number in enumerate(state[: quartet.queues_from]):
            held = quartet.held[number]
            if held is None:
                continue
            if held.view_epoch < newest:
                if whole:
                    yield "views", self.gateway, newest
                    return
                if at != self.gateway and not held.process.workers:
                    yield "view", at, newest

    def _standing(self, control: int) -> tuple[int, bool]:
        """The newest view's epoch, and whether all are active in it."""
        views = self.quartet.decided[control].views
        return len(views), all(seat.status is Status.ACTIVE for seat in views[-1].seats.values())

    def _unnoticed(self, queue: int, control: int, from_the_dead: bool, receiver: int) -> bool:
        """Whether it makes no difference when the head of a queue arrives."""
        transfer = self.quartet.head(queue)
        held = self.quartet.held[receiver]
        assert held is not None
        match transfer.what:
            case Down():
                known = held.process.connections.items()
                gone = {node for node, connection in known if connection == transfer.connection}
                return not any(
                    edge.node in gone
                    for resident in held.process.host.residents.values()
                    for edge in (*resident.edges.values(), *resident.tried.values())
                )
            case Say(_, to, _, messages) if not from_the_dead:
                view = self.quartet.decided[control].views[-1]
                pair = [view.seat(copy).status for copy in (to, to.other)]
                kinds = (Folded, Paused) if pair[0] is Status.ACTIVE is not pair[1] else (Ack, Folded, Paused)
                return all(isinstance(message, kinds) for message in messages)
        return False

    def _prove_quiet(self, state: State, moves: Sequence[Choice]) -> int:
        """Try every quiet step in both orders with every other one. Raises unless all commute."""
        commuted = 0
        for quiet in self._quiet(state):
            first = self.after(state, quiet, [])
            for other in moves:
                if other == quiet:
                    continue
                then = self.after(state, other, [])
                # What the other step leaves nothing of need not be taken; nor the other way round.
                one = self.after(first, other, []) if other in self.moves(first) else first
                two = self.after(then, quiet, []) if quiet in self._quiet(then) else then
                if one != two:
                    told = [" ".join(self.told(move)) for move in (quiet, other)]
                    raise Violation("quiet", f"{told[0]} does not commute with {told[1]}")
                commuted += 1
        return commuted

    def seen(self, state: State, moves: Sequence[Choice]) -> int:
        if not moves:
            self.quartet.check_converged(state)
        return self._prove_quiet(state, moves) if self.bounds.prove_quiet else 0

    def told(self, move: Choice) -> Move:
        kind, at, which = move
        quartet = self.quartet
        if at in quartet.ends:
            return kind, " -> ".join(quartet.names[end] for end in quartet.ends[at])
        return kind, quartet.names[at], *([] if which is None else [str(which)])


def explore_quartet(bounds: QuartetBounds, *, progress: Callable[[Explored], None] | None = None) -> Explored:
    """Visit every reachable state. Raises `Violation` with the path that led to it."""
    space = QuartetSpace(bounds)
    first = space.quartet.first(bounds.kills)
    return search(space, first, states_max=bounds.states_max, progress=progress)
