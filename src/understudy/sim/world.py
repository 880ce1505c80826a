"""One simulated world, for every policy: processes, connections between them, a store with its leader.

Every event that could happen next is a *choice*, and `take` lets it happen. The world neither draws random
numbers nor counts time: a random schedule, an exploration and a clock differ only in which choice they take.

    ("deliver", serial, to)      what a connection brings to one of its ends: up, a parcel, down
    ("lose", serial, to)         the rest of a broken connection is lost, its end is noticed
    ("call", caller, callee)     a connection that is needed is made, or made again
    ("hang up", caller, callee)  one that is needed no longer is closed
    ("start" | "resume" | "produce" | "finish" | "snap" | "save" | "fetch" | "install", node, copy)
                                 the next step of an engine, a sink or a movement of state
    ("reread", source, consumer, after)
                                 a source's log is read again for a consumer
    ("feed", source)             the next bucket of a source
    ("view", node, epoch)        a view reaches a process, from the store
    ("tell", node)               a process's report reaches the store
    ("member", node), ("report", node), ("publish",)
                                 what the leader does
    ("expire", node)             the session of a dead process ends
    ("restart",)                 the gateway starts again
    ("timer", node, key), ("grace", key)
                                 a timer of a process, or of the leader, fires
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable

from understudy.core.bucket import BucketId
from understudy.core.host.parcels import ParcelFrom, PeerDown, PeerUp, ViewSeen
from understudy.core.host.places import GATEWAY
from understudy.core.shape.partition import Copy
from understudy.core.view.events import CopyLacks
from understudy.core.view.view import Status, View
from understudy.sim.checkers import Violation
from understudy.sim.connections import Connection, Down, Up, calls
from understudy.sim.disk import Disk
from understudy.sim.fleet import Fleet
from understudy.sim.invariants import check_kept, check_view
from understudy.sim.observing import Observer
from understudy.sim.ports import CutOff, DeliveredThrough, Effect, Reported, RestsThrough, Sent
from understudy.sim.process import Action, Process
from understudy.sim.setup import Setup
from understudy.sim.store import Store
from understudy.sim.vault import begins_with, floor_of, with_saved
from understudy.sim.worker import Kept

Choice = tuple[Hashable, ...]
STORY_CHOICES = 60


class World(Fleet):
    """Every process starts when it is added; otherwise only `take` changes the world."""

    def __init__(
        self,
        setup: Setup,
        observers: Iterable[Observer] = (),
        *,
        keep: Callable[[int], int] = lambda n: n,
        disk: Disk | None = None,
    ) -> None:
        #: How many buckets of each source may come for now; None: all.
        self.feed_max: int | None = None
        self.faults: Counter[str] = Counter()
        #: What saved states led to.
        self.happened: Counter[str] = Counter()
        #: How often each timer has fired while nothing else could happen.
        self.fired: Counter[Choice] = Counter()
        self.steps = 0
        self.caught_up = 0
        self.story: deque[str] = deque(maxlen=STORY_CHOICES)
        super().__init__(setup, observers, keep=keep, disk=disk)

    # --- choices -----------------------------------------------------------------------------------------

    def choices(self) -> list[Choice]:
        found: list[Choice] = []
        for connection in self.connections.values():
            for end in (connection.caller, connection.callee):
                if connection.queue(end) and end not in self.stalled:
                    found.append(("deliver", connection.serial, end))
        for name in self.processes:
            if name not in self.stalled:
                found += self.process_choices(name)
        if GATEWAY not in self.processes and self.gateway_may_start:
            found.append(("restart",))
        found += [("expire", node) for node in self.store.members if node not in self.processes]
        if not self.leaderless:
            found += self.store_choices()
        return found

    def process_choices(self, name: str) -> list[Choice]:
        process = self.processes[name]
        found = list(self._work(process))
        if name not in self.away:
            if process.view_epoch < len(self.store.views):
                found.append(("view", name, len(self.store.views)))
            if self.reports.get(name):
                found.append(("tell", name))
        needed = self.needed(name)
        for other in sorted(needed):
            able = other in self.processes and other not in self.refusing
            if (name, other) not in self.calls and able and calls(name, other):
                found.append(("call", name, other))
        for (caller, callee), serial in self.calls.items():
            if caller == name and callee not in needed and self.connections[serial].open:
                found.append(("hang up", name, callee))
        if name == GATEWAY:
            found += [("feed", source) for source in self.disk.sealed if self._may_feed(process, source)]
        return found

    def _may_feed(self, gateway: Process, source: str) -> bool:
        held_back = self.feed_max is not None and gateway.put[source] >= self.feed_max
        return not held_back and gateway.feedable(source)

    def _work(self, process: Process) -> list[Choice]:
        """What the engines and sinks of a process, and the states that move there, can do next."""
        name, found = process.name, list[Choice]()
        for copy, worker in process.workers.items():
            if worker.starting:
                found.append(("start", name, copy))
            if worker.group:
                found.append(("finish" if worker.produced else "produce", name, copy))
            if worker.snapping is not None:
                found.append(("snap", name, copy))
            if worker.saving is not None:
                found.append(("save", name, copy))
            if worker.resuming:
                found.append(("resume", name, copy))
            if worker.fetched is not None:
                found.append(("install", name, copy))
            elif worker.fetching is not None and not worker.hangs:
                # A lender that sleeps does not answer.
                found += [("fetch", name, copy)] if worker.fetching.node not in self.stalled else []
        found += [("reread", *wanted) for wanted in process.rereading]
        return found

    def store_choices(self) -> list[Choice]:
        store = self.store
        if store.leader.publishing:
            return [("publish",)]
        found: list[Choice] = [("member", node) for node in store.news()]
        found += [("report", by) for by in store.waiting()]
        return found

    def timers(self) -> list[Choice]:
        """The timers that are set, each with its delay, in ms, last."""
        found: list[Choice] = [
            ("timer", name, key, delay_ms)
            for name, process in self.processes.items()
            if name not in self.stalled
            for key, delay_ms in process.timers.items()
        ]
        if not self.leaderless:
            found += [("grace", key, delay_ms) for key, delay_ms in self.store.leader.timers.items()]
        return found

    # --- one step ----------------------------------------------------------------------------------------

    def take(self, choice: Choice) -> None:
        """Let one choice happen. Raises `Violation` if it shows that an invariant does not hold."""
        self.steps += 1
        self.note(" ".join(str(each) for each in choice))
        try:
            self._take(choice)
        except Violation as violation:
            raise Violation(violation.invariant, self.with_choices(violation.what)) from violation

    def _take(self, choice: Choice) -> None:
        match choice:
            case "deliver", int(serial), str(to):
                self._deliver(serial, to)
            case "lose", int(serial), str(to):
                connection = self.connections[serial]
                self.connections[serial] = connection.with_queue(to, connection.queue(to)[-1:])
                self._deliver(serial, to)
            case "call", str(caller), str(callee):
                serial = self._next_serial(caller, callee)
                self.calls[caller, callee] = serial
                connection = self.connections[serial] = Connection(serial, caller, callee)
                self._queued(connection, caller)
                self._queued(connection, callee)
            case "hang up", str(caller), str(callee):
                self._close(self.calls[caller, callee])
            case "start", str(name), Copy() as copy, *rest:
                # The newest may be damaged; then the one before it is used.
                kept = begins_with(self.vault, copy.partition, damaged=len(rest))
                self.happened["restores"] += kept is not None
                self.happened["older states"] += len(rest)
                self._act(name, ("start", copy, kept))
            case ("produce" | "finish" | "resume") as what, str(name), Copy() as copy:
                self._act(name, (what, copy))
            case "save", str(name), Copy() as copy, *rest:
                self._save(name, copy, ok=not rest)
            case "reread", Copy() as source, Copy() as consumer, int(after):
                self.happened["rereads"] += 1
                self._act(GATEWAY, ("reread", source, consumer, after))
            case ("snap" | "install") as what, str(name), Copy() as copy, *rest:
                self._act(name, (what, copy, not rest))
            case "fetch", str(name), Copy() as copy, *rest:
                self._act(name, ("fetched", copy, None if rest else self._kept_for(name, copy)))
            case "hang", str(name), Copy() as copy:
                self._act(name, ("hang", copy))
            case "feed", str(source):
                self._act(GATEWAY, ("feed", source))
            case "view", str(name), int(epoch):
                self._act(name, ("event", ViewSeen(self.store.views[epoch - 1])))
            case "timer", str(name), key, *_:
                self._act(name, ("timer", key))
            case ("restart",):
                self.start_gateway()
            case _:
                self._take_in_store(choice)

    def _take_in_store(self, choice: Choice) -> None:
        store = self._store_to_change()
        match choice:
            case "tell", str(name):
                store.put_report(name, self.reports[name][0])
                self.reports[name] = self.reports[name][1:]
            case "member", str(node):
                store.tell_member(node)
            case "report", str(by):
                store.act_on(by)
            case "grace", key, *_:
                store.fire(key)
            case "expire", str(node):
                store.expire(node)
            case ("publish",):
                before = store.view
                view = store.publish()
                check_view(self, before, view)
                self.caught_up += _activated(before, view)
                for observer in self.observers:
                    observer.decided(view)
                self._published(view)
            case _:
                raise TypeError(f"the world does not know {choice}")

    def _deliver(self, serial: int, to: str) -> None:
        connection = self.connections[serial]
        queue, other = connection.queue(to), connection.other(to)
        self._put_connection(connection.with_queue(to, queue[1:]))
        match queue[0]:
            case Up():
                self._act(to, ("event", PeerUp(other, serial)))
            case Down():
                if self.calls.get((to, other)) == serial:
                    del self.calls[to, other]
                self._act(to, ("event", PeerDown(other, serial)))
            case parcel:
                self._act(to, ("event", ParcelFrom(other, serial, parcel)))

    def _save(self, name: str, copy: Copy, *, ok: bool) -> None:
        worker = self.processes[name].workers[copy]
        assert worker.saving is not None
        if ok:
            self.happened["saves"] += 1
            self.vault = with_saved(self.vault, copy.partition, worker.lent[worker.saving])
            self.check_kept()
        self._act(name, ("saved", copy, floor_of(self.vault, copy.partition) if ok else None))

    def _kept_for(self, name: str, copy: Copy) -> Kept | None:
        """The snapshot that a standby's process finds when it fetches it."""
        wanted = self.processes[name].workers[copy].fetching
        assert wanted is not None
        lender = self.processes.get(wanted.node)
        worker = lender.workers.get(wanted.lender) if lender is not None else None
        return worker.lent.get(wanted.version) if worker is not None else None

    def _act(self, name: str, action: Action) -> None:
        process = self.to_change(name)
        kept_before, gaps_before = process.dropped, process.gaps
        self._carry_out(name, process.act(action))
        self.happened["gaps"] += len(process.gaps - gaps_before)
        if process.dropped != kept_before:
            self.check_kept()

    def _carry_out(self, name: str, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Sent(node, serial, parcel):
                    connection = self.connections.get(serial)
                    if connection is not None and connection.open:
                        queue = connection.queue(node)
                        connection = connection.with_queue(node, (*queue, parcel))
                        self.connections[serial] = connection
                        self._queued(connection, node)
                case CutOff(_, serial):
                    if serial in self.connections:
                        self._close(serial)
                case Reported(report):
                    self.happened["lacking"] += isinstance(report, CopyLacks)
                    self.reports[name] = (*self.reports.get(name, ()), report)
                case RestsThrough(sink, through):
                    self._rests(sink, through)
                case DeliveredThrough(sink, through):
                    self._delivered(sink, through)

    def check_kept(self) -> None:
        try:
            check_kept(self)
        except Violation as violation:
            raise Violation(violation.invariant, self.with_choices(violation.what)) from violation

    def note(self, line: str) -> None:
        """Keep in mind what happened, in case that something is wrong."""
        self.story.append(line)

    def with_choices(self, what: str) -> str:
        """The error, with the last choices that led to it."""
        if "the last choices:" in what:
            return what
        return "\n".join([what, "the last choices:", *(f"  {line}" for line in self.story)])

    # --- for subclasses that copy a world, let time pass in it, or have another one beside it -------------

    @property
    def gateway_may_start(self) -> bool:
        return True

    def to_change(self, name: str) -> Process:
        return self.processes[name]

    def _store_to_change(self) -> Store:
        return self.store

    def _published(self, view: View) -> None:
        """The store has a new view."""

    def _rests(self, sink: Copy, through: BucketId) -> None:
        """A sink rests, and has delivered everything through this number."""

    def _delivered(self, sink: Copy, through: BucketId) -> None:
        """A sink holds everything through this number."""


def _activated(before: View | None, after: View) -> int:
    """How many standbys have caught up in this view, and work or hold snapshots since."""
    old = before.seats if before is not None else {}
    return sum(
        seat.status.has_state and old[copy].status is Status.STDBY
        for copy, seat in after.seats.items()
        if copy in old
    )
