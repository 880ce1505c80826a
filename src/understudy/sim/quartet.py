"""One quartet as a world of values: a producer pair, a consumer pair, and what is between them.

Four nodes hold one copy each, spares hold nothing, the gateway holds both ends:

    ingress -> f0 PRIM on n1, f0 SEC on n2 -> f1 PRIM on n3, f1 SEC on n4 -> egress

The processes are those of `ExchangeWorld`, with the real hosts, and what happens in a step is carried out by
its code. But a step changes one process (two, when a state moves) and adds to what it sends, and both
depend on nothing but that process and the event. So every state that a process, a connection's
queue or the controller was ever in gets a number, and every local step is carried out and checked
once; met again, it is looked up. A state of the whole world is a tuple of such numbers, and stepping it
costs microseconds, however large the machines are.

A node that is killed is gone at once. What it had sent is not: any first part of it may arrive, and only then
do the others notice (`lose`). What is sent to it is dropped.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from understudy.core.bucket import Bucket, BucketId
from understudy.core.controller import MemberLeft
from understudy.core.flux_controller import FluxController, FluxEvent, FluxView
from understudy.core.host import GATEWAY
from understudy.core.parcels import Relay
from understudy.core.partition import Copy, Partition
from understudy.core.view import Slot
from understudy.sim.exchange import ExchangeWorld
from understudy.sim.exchange_flow import Shape
from understudy.sim.exchange_process import Down, Fetch, Process, Shipment, Transfer
from understudy.sim.exchange_schedules import check_converged
from understudy.sim.state import clone, freeze

#: Numbers of: each process (0 if it is gone), each queue (0 if it is empty), the controller; then kills left.
State = tuple[int, ...]
NOTHING_QUEUED = 0
GONE = 0

LAYOUT = {
    Copy(Partition(fragment), slot): node
    for (fragment, slot), node in zip(
        ((fragment, slot) for fragment in ("f0", "f1") for slot in Slot),
        ("n1", "n2", "n3", "n4"),
        strict=True,
    )
}


class QuartetWorld(ExchangeWorld):
    """The world in which local steps are carried out."""

    def __init__(self, buckets: int, spares: int, group_buckets_max: int) -> None:
        self.reports: list[FluxEvent] | None = None
        shape = Shape((1, 1), 4, spares, buckets, 0, group_buckets_max, output_buckets_max=max(buckets, 2))
        super().__init__(0, shape)
        while waiting := [choice for choice in self.choices() if choice[0] != "seal"]:
            self._judged(lambda choice=waiting[0]: self._take(*choice))

    def _inputs(self) -> list[Bucket]:
        return [Bucket(10 + k, ((1, k + 1),), 1) for k in range(self.shape.buckets)]

    def _begin(self) -> None:
        self.controller = FluxController(self.topology, self.shape.nodes, layout=LAYOUT)
        super()._begin()

    def _epoch_for(self, process: Process) -> int:
        return len(self.views)

    def _decide(self, event: FluxEvent) -> None:
        if self.reports is None:
            super()._decide(event)
        else:
            self.reports.append(event)


@dataclass(frozen=True, slots=True)
class _Held:
    """A process as it stands, what the gateway has behind it, and what can happen to it by itself."""

    process: Process
    sealed: int
    trimmed: BucketId
    delivered: BucketId
    view_epoch: int
    at_work: tuple[Copy, ...]
    seals: bool


@dataclass(frozen=True, slots=True)
class _Decided:
    controller: FluxController
    views: tuple[FluxView, ...]


@dataclass(frozen=True, slots=True)
class _Effect:
    """What a local step comes to: processes that changed, what they sent, and reports to the controller."""

    processes: tuple[tuple[int, int], ...]
    sent: tuple[tuple[int, tuple[int, ...]], ...]
    reports: tuple[FluxEvent, ...]


class Quartet:
    """All values met so far, and steps between them."""

    def __init__(self, buckets: int, spares: int, group_buckets_max: int) -> None:
        self.bench = QuartetWorld(buckets, spares, group_buckets_max)
        self.names = tuple(self.bench.processes)
        self.links = tuple(self.bench.links)
        #: Where in a state a process, a queue, the controller and the kills left are.
        self.at = {name: at for at, name in enumerate(self.names)}
        self.link_at = {link: len(self.names) + at for at, link in enumerate(self.links)}
        self.ends = {self.link_at[a, b]: (self.at[a], self.at[b]) for a, b in self.links}
        self.queues_from = len(self.names)
        self.control_at = self.queues_from + len(self.links)
        self.kills_at = self.control_at + 1
        self.held: list[_Held | None] = [None]
        self.queued: list[tuple[int, ...]] = [()]
        self.items: list[Transfer] = []
        self.decided: list[_Decided] = []
        self._numbers: dict[Hashable, int] = {("queue", ()): NOTHING_QUEUED}
        self._effects: dict[Hashable, _Effect] = {}
        self.append = cache(self._append)
        self.without_old_views = cache(self._without_old_views)
        self.as_told = cache(self._as_told)
        self.rest = cache(self._rest)
        self.control_after = cache(self._control_after)
        self.expendable = cache(self._expendable)

    def first(self, kills: int) -> State:
        """Everybody is attached and has seen the first view, and no input has come."""
        bench = self.bench
        processes = [self._number_of(process) for process in bench.processes.values()]
        control = self._number_of_control(bench.controller, tuple(bench.views))
        first = [*processes, *(NOTHING_QUEUED for _ in self.links), control, kills]
        return self._normal(first, range(self.queues_from), self.ends)

    # --- values and their numbers ------------------------------------------------------------------------

    def _number(self, key: Hashable, table: list, value: object) -> int:  # type: ignore[type-arg]
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(table)
            table.append(value)
        return number

    def _number_of(self, process: Process) -> int:
        bench = self.bench
        ends = (bench.sealed, bench.trimmed, bench.delivered) if process.name == GATEWAY else (0, 0, 0)
        ingress = process.host.ingress
        held = _Held(
            process,
            *ends,
            process.view_epoch,
            tuple(worker.copy for worker in process.workers.values() if worker.work),
            ingress is not None and bench.sealed < len(bench.inputs) and not ingress.full,
        )
        return self._number((process.name, freeze(process), ends), self.held, held)

    def _number_of_control(self, controller: FluxController, views: tuple[FluxView, ...]) -> int:
        return self._number(("control", freeze(controller), views), self.decided, _Decided(controller, views))

    def _append(self, queue: int, items: tuple[int, ...]) -> int:
        """The queue with these behind it."""
        whole = self.queued[queue] + items
        return self._number(("queue", whole), self.queued, whole)

    def _rest(self, queue: int) -> int:
        """The queue without its first."""
        whole = self.queued[queue][1:]
        return self._number(("queue", whole), self.queued, whole)

    def item(self, transfer: Transfer) -> int:
        return self._number(("item", transfer), self.items, transfer)

    def head(self, queue: int) -> Transfer:
        return self.items[self.queued[queue][0]]

    def process(self, state: State, at: int) -> _Held:
        held = self.held[state[at]]
        assert held is not None
        return held

    # --- local steps -------------------------------------------------------------------------------------

    def received(self, state: State, link: int) -> State:
        """The head of a queue arrives."""
        sender, receiver = self.ends[link]
        item = self.queued[state[link]][0]
        key = ("link", link, state[receiver], item)
        effect = self._effects.get(key)
        if effect is None:
            ends = self.names[sender], self.names[receiver]
            take = self._carried_out(state, (receiver,), ("link", ends), {ends: deque([self.items[item]])})
            effect = self._effects[key] = take
        after = list(state)
        after[link] = self.rest(state[link])
        return self._applied(after, effect)

    def worked(self, state: State, at: int, copy: Copy) -> State:
        """The engine or the mover of a copy does what is first in turn."""
        worker = self.process(state, at).process.workers[copy]
        views = self.decided[state[self.control_at]].views
        touched: tuple[int, ...] = (at,)
        key: Hashable = ("work", copy, state[at])
        if isinstance(worker.work[0], Fetch | Shipment):
            other = self.at[views[-1].seat(copy.other).node]
            touched = (at, other) if state[other] != GONE else (at,)
            key = (key, views[-1].epoch, *(state[each] for each in touched))
        effect = self._effects.get(key)
        if effect is None:
            effect = self._effects[key] = self._carried_out(state, touched, ("work", copy), {})
        return self._applied(list(state), effect)

    def saw(self, state: State, at: int, epoch: int) -> State:
        """The controller's view of this epoch reaches a process. Some are never seen."""
        key = ("view", state[at], self.decided[state[self.control_at]].views[epoch - 1])
        effect = self._effects.get(key)
        if effect is None:
            effect = self._effects[key] = self._carried_out(state, (at,), ("view", epoch), {})
        return self._applied(list(state), effect)

    def sealed(self, state: State) -> State:
        """The next bucket comes in."""
        at = self.at[GATEWAY]
        key = ("seal", state[at])
        effect = self._effects.get(key)
        if effect is None:
            effect = self._effects[key] = self._carried_out(state, (at,), ("seal", None), {})
        return self._applied(list(state), effect)

    def _carried_out(
        self,
        state: State,
        touched: Sequence[int],
        choice: tuple[str, object],
        arriving: dict[tuple[str, str], deque[Transfer]],
    ) -> _Effect:
        """Let `ExchangeWorld` do it to copies of the processes that it touches."""
        bench = self._laid_out(state, touched)
        bench.reports = []
        bench.links = defaultdict(deque, arriving)
        what, which = choice
        if what == "work":
            process = bench.processes[self.names[touched[0]]]
            assert isinstance(which, Copy)
            which = process.workers[which]
        elif what == "view":
            assert isinstance(which, int)
            bench.views = bench.views[:which]
            which = bench.processes[self.names[touched[0]]]
        bench._judged(lambda: bench._take(what, which))
        reports, bench.reports = tuple(bench.reports), None
        sent = tuple(
            (self.link_at[link], tuple(self.item(each) for each in queue))
            for link, queue in bench.links.items()
            if queue
        )
        numbers = tuple((at, self._number_of(bench.processes[self.names[at]])) for at in touched)
        return _Effect(numbers, sent, reports)

    def _laid_out(self, state: State, touched: Sequence[int]) -> QuartetWorld:
        bench, gateway = self.bench, self.process(state, self.at[GATEWAY])
        bench.processes = {self.names[at]: clone(self.process(state, at).process) for at in touched}
        bench.views = list(self.decided[state[self.control_at]].views)
        bench.sealed, bench.trimmed, bench.delivered = gateway.sealed, gateway.trimmed, gateway.delivered
        bench._touched.clear()
        bench.story.clear()
        return bench

    def _applied(self, after: list[int], effect: _Effect) -> State:
        held = self.held
        moved_on = False
        for at, number in effect.processes:
            moved_on |= held[after[at]].view_epoch != held[number].view_epoch  # type: ignore[union-attr]
            after[at] = number
        for link, items in effect.sent:
            if after[self.ends[link][1]] != GONE:
                after[link] = self.append(after[link], items)
        for report in effect.reports:
            after[self.control_at] = self.control_after(after[self.control_at], report)
        if moved_on:
            return self._normal(after, range(self.queues_from), self.ends)
        return self._normal(after, (at for at, _ in effect.processes), (link for link, _ in effect.sent))

    # --- views that say nothing new ----------------------------------------------------------------------

    def _normal(self, after: list[int], processes: Iterable[int], links: Iterable[int]) -> State:
        """The state without views on their way to those who have seen them. Nor does it matter then who was
        told of them.
        """
        held = self.held
        epochs = tuple([held[n].view_epoch if n else 0 for n in after[: self.queues_from]])  # type: ignore[union-attr]
        for link in links:
            if queue := after[link]:
                after[link] = self.without_old_views(queue, epochs[self.ends[link][1]])
        for at in processes:
            if after[at] != GONE:
                after[at] = self.as_told(after[at], epochs)
        return tuple(after)

    def _without_old_views(self, queue: int, epoch: int) -> int:
        kept = tuple(
            item
            for item in self.queued[queue]
            if not isinstance(relay := self.items[item].what, Relay) or relay.view.epoch > epoch
        )
        return self._number(("queue", kept), self.queued, kept)

    def _as_told(self, number: int, epochs: tuple[int, ...]) -> int:
        held = self.held[number]
        assert held is not None
        own = held.view_epoch
        told = {
            name: own
            for at, name in enumerate(self.names)
            if name != held.process.name and (epochs[at] >= own or epochs[at] == 0)
        }
        if held.process.host._told.items() >= told.items():
            return number
        process = clone(held.process)
        process.host._told.update(told)
        ends = held.sealed, held.trimmed, held.delivered
        return self._number((process.name, freeze(process), ends), self.held, replace(held, process=process))

    def _control_after(self, control: int, event: FluxEvent) -> int:
        before, bench = self.decided[control], self.bench
        bench.controller, bench.views = clone(before.controller), list(before.views)
        ExchangeWorld._decide(bench, event)
        return self._number_of_control(bench.controller, tuple(bench.views))

    # --- a death -----------------------------------------------------------------------------------------

    def _expendable(self, control: int) -> tuple[int, ...]:
        """The seated nodes without which every partition still has a copy that holds its whole state."""
        self.bench.views = list(self.decided[control].views)
        seated = self.bench.views[-1].nodes_alive
        return tuple(self.at[node] for node in seated if self.bench.may_kill(node))

    def killed(self, state: State, at: int) -> State:
        after = list(state)
        after[at] = GONE
        after[self.kills_at] -= 1
        name = self.names[at]
        for link, (sender, receiver) in self.ends.items():
            if at == receiver:
                after[link] = NOTHING_QUEUED
            elif at == sender and state[receiver] != GONE:
                other = self.names[receiver]
                connection = self.bench.up[min(name, other), max(name, other)]
                after[link] = self.append(state[link], (self.item(Transfer(connection, Down())),))
        after[self.control_at] = self.control_after(state[self.control_at], MemberLeft(name))
        return self._normal(after, range(self.queues_from), self.ends)

    def lost(self, state: State, link: int) -> State:
        """Of what a dead node had sent nothing more arrives; the receiver notices."""
        after = list(state)
        after[link] = self.append(NOTHING_QUEUED, self.queued[state[link]][-1:])
        return self.received(tuple(after), link)

    # --- the end -----------------------------------------------------------------------------------------

    def check_converged(self, state: State) -> None:
        """At rest: all delivered, all seats active, all buffers empty."""
        alive = [at for at in range(len(self.names)) if state[at] != GONE]
        world = self._laid_out(state, alive)
        world.controller = self.decided[state[self.control_at]].controller
        check_converged(world)
