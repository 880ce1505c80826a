"""Interpreter: what a copy's machine asks for, in the terms of its host, and the timers that copies have.

A machine speaks of copies, and knows neither processes nor seats. The interpreter adds what the newest view
says: the epoch of its own seat, the process that another copy lives on, and which active copies can be
reached. It has no state of its own.

*Timers.* A key names what is due, the copy, and the epoch of its seat, so a timer that was set for a former
occupant of the seat does nothing.

    key      set when                                          what is due
    save     the copy has begun, and again and again           a snapshot for the store
    ship     the copy has begun, and again and again           a snapshot for its backups
    stuck    a newcomer is seated, and again and again         it must have got further since
    ask      a newcomer has asked for its state                it asks again, unless its state is on its way
    try      a producer is `Lacking` what the copy needs       it tries to attach to that producer again
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from understudy.core.bucket import BucketId
from understudy.core.errors import BrokenInvariant, require
from understudy.core.host.connections import Connections
from understudy.core.host.edges import Edges
from understudy.core.host.limits import Timing
from understudy.core.host.parcels import (
    FetchState,
    HoldState,
    HostInstruction,
    Lend,
    Offering,
    ReadAgain,
    Request,
    Save,
    SinkRests,
    Snap,
    StartHeld,
    Tell,
    Unlend,
    Work,
)
from understudy.core.host.places import Places
from understudy.core.host.resident import Resident
from understudy.core.replica.events import (
    Ask,
    AskAgainLater,
    CaughtUp,
    CopyInstruction,
    DropSnapshot,
    Fetch,
    Hold,
    KeepSnapshot,
    MoveFailed,
    Offer,
    Process,
    ReadLog,
    Rests,
    Resume,
    SaveDue,
    SaveSnapshot,
    SendTo,
    ShipDue,
    TakeSnapshot,
)
from understudy.core.shape.partition import Copy
from understudy.core.timers import SetTimer
from understudy.core.view.events import CopyCaughtUp, CopyMoveFailed

#: What the timers of copies are set for, the first part of their keys.
DUE = frozenset({"save", "ship", "stuck", "ask", "try"})


class Interpreter:
    """Each method is about one copy of the host."""

    def __init__(self, places: Places, connections: Connections, edges: Edges, timing: Timing) -> None:
        self.places = places
        self.connections = connections
        self.edges = edges
        self.timing = timing

    def handle(self, resident: Resident, event: object) -> list[HostInstruction]:
        """Give the copy's machine an event."""
        return self.carry_out(resident, resident.machine.handle(event))

    def fired(self, resident: Resident, key: Hashable) -> list[HostInstruction]:
        """A timer that was set for this copy, in this seat, has fired."""
        match key:
            case ("save", *_):
                return [SetTimer(key, self.timing.save_ms), *self.handle(resident, SaveDue())]
            case ("ship", *_):
                return [SetTimer(key, self.timing.ship_ms), *self.handle(resident, ShipDue())]
            case ("stuck", *_):
                done = resident.machine.stuck(self.timing.stuck_ms)
                if done is None:
                    return []
                return [SetTimer(key, self.timing.stuck_ms), *self.carry_out(resident, done)]
            case ("ask", *_):
                return self.carry_out(resident, resident.machine.ask_again())
            case ("try", _, _, Copy() as producer):
                return [*self.edges.producer_here(resident, producer)]
        raise BrokenInvariant(f"no timer {key} was set")

    def carry_out(self, resident: Resident, instructions: Iterable[CopyInstruction]) -> list[HostInstruction]:
        done: list[HostInstruction] = []
        for instruction in instructions:
            done += self._carry_out(resident, instruction)
        return done

    def _carry_out(self, resident: Resident, instruction: CopyInstruction) -> Iterable[HostInstruction]:
        copy, epoch = resident.copy, resident.epoch
        match instruction:
            case SendTo(to, message):
                return self.edges.send(resident, to, message)
            case Process(buckets):
                return [Work(copy, epoch, buckets)]
            case TakeSnapshot(version):
                return [Snap(copy, epoch, version)]
            case KeepSnapshot(state):
                return [Lend(copy, epoch, state)]
            case DropSnapshot(version):
                return [Unlend(copy, epoch, version)]
            case SaveSnapshot(version):
                return [Save(copy, epoch, version)]
            case ReadLog(consumer, after, bytes_max):
                return [ReadAgain(copy, consumer, after, bytes_max)]
            case Offer(standby, to_epoch, attempt, version):
                node = self.places.node_of(standby)
                offering = Offering(copy, epoch, standby, to_epoch, attempt, version)
                return self.connections.dispatch(node, offering) if node is not None else []
            case Ask(attempt, holds):
                return self._ask(resident, attempt, holds)
            case Hold(attempt):
                return [HoldState(copy, epoch, attempt)]
            case Resume():
                return [StartHeld(copy, epoch)]
            case AskAgainLater():
                return [SetTimer(("ask", copy, epoch), self.timing.ask_ms)]
            case Fetch(lender, attempt, version, hold):
                node = self.places.node_of(lender)
                require(node is not None, f"{lender} offered its state and has no seat")
                assert node is not None
                return [FetchState(copy, epoch, node, lender, attempt, version, hold)]
            case Rests(through):
                return [SinkRests(copy, through)]
            case CaughtUp():
                return [Tell(CopyCaughtUp(copy, epoch))]
            case MoveFailed(why, holds_state):
                return [Tell(CopyMoveFailed(copy, epoch, why, holds_state))]

    def _ask(self, resident: Resident, attempt: int, holds: BucketId | None) -> Iterable[HostInstruction]:
        """Ask an active copy for its state: another one with every attempt."""
        lenders = self.places.lenders(resident.copy.partition)
        if not lenders:
            return self.carry_out(resident, resident.machine.give_up("no copy holds the state any more"))
        reached = [copy for copy, node in lenders.items() if self.connections.stands(node)]
        if not reached:
            return []
        to = reached[(attempt - 1) % len(reached)]
        request = Request(resident.copy, resident.epoch, to, attempt, holds)
        return self.connections.dispatch(lenders[to], request)
