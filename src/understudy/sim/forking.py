"""A world that an exploration can copy at every step, and the memory of all states that were met.

A step changes one process and what it sends, and both depend on nothing but that process and the action. So
every state that a process was ever in gets a number, and every action in such a state is carried out and
checked once; met again, it is looked up. A state of the world is known again by its mark, a hash of all that
decides what will happen: 64 bits, so that among a million states two share one with a chance of 1 in 30
million.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TypeVar

from understudy.core.host.parcels import ParcelFrom, ViewSeen
from understudy.core.host.places import GATEWAY
from understudy.core.view.view import View
from understudy.sim.checkers import checkers
from understudy.sim.ports import Effect, Sent
from understudy.sim.process import Action, Process
from understudy.sim.setup import Setup
from understudy.sim.state import clone, freeze
from understudy.sim.store import Store
from understudy.sim.vault import Vault
from understudy.sim.world import Choice, World

T = TypeVar("T")

#: The most connections that two processes ever make.
SERIALS_MAX = 1_000


class Known:
    """All states of processes that were ever met, and what each action led to."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._processes: list[Process] = []
        self._steps: dict[Hashable, tuple[Process, tuple[Effect, ...]]] = {}
        self._same: dict[object, object] = {}
        #: What each process, by its number, can do by itself.
        self.work: dict[int, list[Choice]] = {}

    def same(self, value: T) -> T:
        """The one object that stands for all that are equal to this one."""
        return self._same.setdefault(value, value)  # type: ignore[return-value]

    def number(self, value: Hashable) -> int:
        return self._numbers.setdefault(value, len(self._numbers) + 1)

    def met(self, process: Process) -> Process:
        """The first process that was in this state."""
        number = self.number((process.name, state_of(process)))
        while number >= len(self._processes):
            self._processes.append(process)
        if self._processes[number].number != number:
            self._processes[number] = process
            process.number = number
        return self._processes[number]

    def step(self, process: Process, action: Action) -> tuple[Process, tuple[Effect, ...]]:
        key = (process.number, _key(action))
        found = self._steps.get(key)
        if found is None:
            after = clone(process)
            after.number = 0
            effects = tuple(map(self._same_parcel, after.act(action)))
            found = self._steps[key] = (self.met(after), effects)
        return found

    def _same_parcel(self, effect: Effect) -> Effect:
        return replace(effect, parcel=self.same(effect.parcel)) if isinstance(effect, Sent) else effect


def _key(action: Action) -> Hashable:
    """Parcels and views are long to hash, and known by the one object that stands for them."""
    match action:
        case "event", ParcelFrom(node, serial, parcel):
            return "parcel", node, serial, id(parcel)
        case "event", ViewSeen(view):
            return "view", id(view)
    return action


def state_of(process: Process) -> Hashable:
    asks = frozenset(key for key in process.timers if isinstance(key, tuple) and key[0] in ("ask", "try"))
    connections = process.host.connections
    timers, process.timers = process.timers, {}
    awaited, connections.awaited = connections.awaited, set()
    try:
        return freeze(process), asks
    finally:
        process.timers, connections.awaited = timers, awaited


class ForkingWorld(World):
    """A world that can be copied at every step: processes are shared until one of them changes."""

    def __init__(self, setup: Setup, known: Known) -> None:
        super().__init__(setup, checkers(setup.flow.reference))
        self.known = known
        self.kills_left = self.crashes_left = self.severs_left = self.saves_left = self.powers_left = 0
        self._store_number = 0
        self._numbered: tuple[Vault, int] = (self.vault, 0)
        #: How many connections were made between two processes so far.
        self.made: dict[tuple[str, str], int] = {}

    def fork(self) -> ForkingWorld:
        copy = object.__new__(ForkingWorld)
        copy.__dict__.update(self.__dict__)
        copy.processes = dict(self.processes)
        copy.connections = dict(self.connections)
        copy.calls = dict(self.calls)
        copy.reports = dict(self.reports)
        copy._needed = self._needed
        copy.story = self.story
        return copy

    def make(self, move: Choice) -> None:
        """Let a choice or a fault happen. The search keeps the path to it, so this world does not."""
        match move:
            case "kill", str(name):
                if name == GATEWAY:
                    self.crashes_left -= 1
                else:
                    self.kills_left -= 1
                self.kill(name)
            case "sever", int(serial):
                self.severs_left -= 1
                self.sever(serial)
            case ("power",):
                self.powers_left -= 1
                self.lose_power()
            case "timer", _, ("save", *_), *_:
                self.saves_left -= 1
                self._take(move)
            case _:
                self._take(move)

    def mark(self) -> int:
        connections = tuple(
            (c.serial, c.open, tuple(map(id, c.to_caller)), tuple(map(id, c.to_callee)))
            for _, c in sorted(self.connections.items())
        )
        if not self._store_number:
            self._store_number = self.known.number(("store", freeze(self.store)))
        return hash(
            (
                tuple(sorted((name, process.number) for name, process in self.processes.items())),
                connections,
                tuple(sorted(self.calls.items())),
                tuple(sorted((name, queue) for name, queue in self.reports.items() if queue)),
                self._store_number,
                (self.kills_left, self.crashes_left, self.severs_left, self.saves_left, self.powers_left),
                freeze(self._disk) if GATEWAY not in self.processes else 0,
                self._vault_number(),
            )
        )

    def _vault_number(self) -> int:
        """Vaults are never changed in place, so each is looked at once."""
        if self._numbered[0] is not self.vault:
            self._numbered = self.vault, self.known.number(("vault", freeze(self.vault)))
        return self._numbered[1]

    def lose_power(self) -> None:
        super().lose_power()
        self._store_number = 0

    def _act(self, name: str, action: Action) -> None:
        before = self.processes[name]
        if not before.number:
            before = self.known.met(before)
        process, effects = self.known.step(before, action)
        self.processes[name] = process
        self._carry_out(name, effects)
        if process.dropped != before.dropped:
            self.check_kept()

    def start_gateway(self) -> None:
        if GATEWAY not in self.processes and self.steps:
            self._disk = clone(self._disk)
        super().start_gateway()

    def needed(self, name: str) -> frozenset[str]:
        host = self.processes[name].host
        key = f"{name}/{id(host.view)}"
        known = self._needed.get(key)
        if known is None:
            known = self._needed[key] = (host.view, frozenset(host.needed))
        return known[1]

    def _work(self, process: Process) -> list[Choice]:
        found = self.known.work.get(process.number) if process.number else None
        if found is None:
            found = super()._work(process)
            if process.number:
                self.known.work[process.number] = found
        return found

    def _store_to_change(self) -> Store:
        self.store, self._store_number = clone(self.store), 0
        return self.store

    def _published(self, view: View) -> None:
        self.store.views[-1] = self.known.same(view)

    def _next_serial(self, caller: str, callee: str) -> int:
        """The same for the same connection, whichever others were made before it."""
        self.made = {**self.made, (caller, callee): self.made.get((caller, callee), 0) + 1}
        return self.known.number(("pair", caller, callee)) * SERIALS_MAX + self.made[caller, callee]
