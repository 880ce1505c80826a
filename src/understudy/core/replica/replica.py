"""A copy of a partition: consumer below, producer above, and between them an engine that only the driver
sees. A source has no consumer, a sink no producer.

A checkpoint is the engine's state, the number that the consumer stands at, and the producer's outlets, all of
one moment: the engine stands still from the snapshot's beginning to its end.

A newcomer has caught up when it is connected to every active copy of every neighbour, and when its engine
holds the output that the producers had put out when they were connected, as far as the slowest producer had
come: what a faster one has ahead waits in the merge. For the rest a connection is enough: a producer that has
let a newcomer in keeps everything after the number that the newcomer named. Neighbours come and go meanwhile,
so the copy checks this again whenever something changes.
"""

from __future__ import annotations

from collections.abc import Mapping

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.edge.inlet import Inlet
from understudy.core.edge.messages import Attached
from understudy.core.edge.outlet import Outlet
from understudy.core.errors import BrokenInvariant, PeerError, require
from understudy.core.replica.backing import Backing
from understudy.core.replica.consumer import Consumer
from understudy.core.replica.events import (
    Asked,
    AtEdge,
    CaughtUp,
    CopyInstruction,
    CopyState,
    FetchFailed,
    Hold,
    Installed,
    LimitGroups,
    LogRead,
    MoveFailed,
    Offered,
    Passed,
    Processed,
    Produced,
    Progress,
    Received,
    Rest,
    Resume,
    Saved,
    SaveDue,
    SaveFailed,
    ShipDue,
    SnapshotFailed,
    SnapshotTaken,
    StandbyGone,
    Wake,
)
from understudy.core.replica.movement import Borrowing, Lending
from understudy.core.replica.producer import Producer
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.view import Status


class Replica:
    """One copy. `begun` says whether it has its state; `begin` starts one that borrows from no other."""

    def __init__(
        self, copy: Copy, below: Consumer | None, above: Producer | None, *, save_bytes_max: int = 0
    ) -> None:
        require(below is not None or above is not None, f"{copy} has no neighbours")
        shared = set(below.inlets if below else ()) & set(above.outlets if above else ())
        require(not shared, f"{copy} has one neighbour both below and above: {shared}")
        self.copy = copy
        self.below = below
        self.above = above
        self.begun = False
        self.lending = Lending()
        self.borrowing: Borrowing | None = None
        #: A newcomer that has its state and is not active yet: it must catch up, and say so once.
        self.catching_up = False
        #: How far each producer was when it was connected.
        self._goals: dict[Partition, BucketId] = {}
        self._stuck_at: BucketId | None = None
        #: Whether the engine was seen to work since a newcomer's limit was last looked at.
        self._worked = False
        #: Of the active copies of a partition one saves its state in the store.
        self.saves = False
        #: It does so at the latest after so much input, or its producers would have to keep too much; 0: by
        #: the clock alone.
        self.save_bytes_max = save_bytes_max
        self._saved_at_bytes = 0
        #: What the oldest snapshot holds that the store keeps, as far as this copy knows.
        self._stored = NOTHING

    @property
    def holds(self) -> bool:
        """Whether the state is here: in the engine, or as a backup's snapshot."""
        return self.begun or self.backs_up

    @property
    def backs_up(self) -> bool:
        """Whether this copy holds a snapshot and does not work."""
        return not self.begun and isinstance(self.borrowing, Backing) and self.borrowing.through is not None

    @property
    def ends(self) -> Mapping[Partition, Inlet | Outlet]:
        """This copy's end towards every neighbour."""
        found: dict[Partition, Inlet | Outlet] = {}
        found.update(self.below.inlets if self.below else {})
        found.update(self.above.outlets if self.above else {})
        return found

    def end_towards(self, partition: Partition) -> Inlet | Outlet | None:
        if self.below is not None and partition in self.below.inlets:
            return self.below.inlets[partition]
        return self.above.outlets.get(partition) if self.above is not None else None

    # --- the one way in ----------------------------------------------------------------------------------

    def begin(self, saved: CopyState | None = None) -> list[CopyInstruction]:
        """The engine stands ready, with nothing in it or with the state that was saved last."""
        require(not self.begun, f"{self.copy} began twice")
        if isinstance(self.borrowing, Backing):
            return self._resume(self.borrowing, saved)
        require(self.borrowing is None, f"{self.copy} waits for its state and cannot begin without it")
        if saved is not None:
            self._take_over(saved, saved=True)
        self.begun = True
        return self._go_on()

    def _resume(self, backing: Backing, held: CopyState | None) -> list[CopyInstruction]:
        """A backup's engine has started from the snapshot that it holds."""
        through = None if held is None else held.through
        require(
            backing.over and held is not None and backing.through == through, f"{self.copy} resumed {through}"
        )
        assert held is not None
        self._above.install(held.outlets, saved=True)
        self.lending.version = held.version
        self.begun = True
        return [*self._below.take_over(), *self._go_on()]

    def _take_over(self, state: CopyState, *, saved: bool) -> None:
        self._above.install(state.outlets, saved=saved)
        self._below.install(state.through)
        # Versions go on rising, whichever copy lends next.
        self.lending.version = state.version

    def borrow(self, *, to_hold: bool = False) -> list[CopyInstruction]:
        """This copy sits as a standby and needs the state of another; as a backup it only holds it."""
        require(not self.begun and self.borrowing is None, f"{self.copy} cannot borrow a state")
        self.borrowing = Backing() if to_hold else Borrowing()
        return self.borrowing.ask()

    def ask_again(self) -> list[CopyInstruction]:
        """The time to repeat a request has come."""
        return self.borrowing.ask() if self.borrowing is not None else []

    def give_up(self, why: str) -> list[CopyInstruction]:
        """No copy can lend its state any more."""
        return self.borrowing.give_up(why) if self.borrowing is not None and not self.begun else []

    def stuck(self, limit_ms: int) -> list[CopyInstruction] | None:
        """A newcomer's limit without progress has passed. None: nothing is left to watch."""
        if self.borrowing is not None and not self.borrowing.over:
            if not self.borrowing.progressed:
                why = f"its state made no progress for {limit_ms / 1000:g} s"
                if isinstance(self.borrowing, Backing) and self.backs_up:
                    return self.borrowing.stalled(why)
                return self.borrowing.give_up(why)
            self.borrowing.progressed = False
            return []
        if not self.catching_up:
            return None
        below, before = self._below, self._stuck_at
        worked, self._worked = self._worked, False
        self._stuck_at = below.processed
        if below.busy and before == below.processed and not worked:
            why = f"its engine has done nothing for {limit_ms / 1000:g} s"
            return [MoveFailed(why, holds_state=True)]
        return []

    def activated(self) -> list[CopyInstruction]:
        """The controller calls this copy active."""
        self.catching_up = False
        if not self.backs_up or self.borrowing is None:
            return []
        self.borrowing.over = True
        return [Resume()]

    def handle(self, event: object) -> list[CopyInstruction]:
        match event:
            case AtEdge():
                done = self._at_edge(event)
            case Produced():
                done = list(self._above.produced(event))
            case Processed():
                done = list(self._below.done())
            case Asked() if self.begun:
                done = self.lending.asked(event)
            case SnapshotTaken() | SnapshotFailed():
                done = self._snapshot(event)
            case StandbyGone(standby):
                done = self.lending.standby_gone(standby)
            case SaveDue():
                self._want_to_save()
                done = []
            case Saved(version, floor):
                done = self.lending.saved(version)
                self._stored = floor
                done += self._below.held(floor)
            case SaveFailed(version):
                done = self.lending.saved(version)
            case LogRead():
                done = list(self._above.log_read(event))
            case Offered() if self.borrowing is not None:
                done = self.borrowing.offered(event)
            case FetchFailed() if self.borrowing is not None:
                done = self.borrowing.failed(event)
            case Installed():
                done = self._install(event)
            case Received() if isinstance(self.borrowing, Backing):
                done = self._receive(self.borrowing, event)
            case ShipDue():
                self.lending.ship_due = True
                done = []
            case Progress():
                self._worked = True
                if self.borrowing is not None:
                    self.borrowing.progressed = True
                done = []
            case LimitGroups():
                self._below.manages = event
                done = []
            case Rest() | Passed() | Wake() if self.above is None:
                done = self._below.told(event)
            case Asked():
                # Nothing to lend yet.
                done = []
            case _:
                raise PeerError(f"{self.copy} does not take {event}")
        return [*done, *self._go_on()]

    def _at_edge(self, event: AtEdge) -> list[CopyInstruction]:
        if self.above is not None and event.partition in self.above.outlets:
            return list(self.above.at_edge(event))
        done: list[CopyInstruction] = [*self._below.at_edge(event)]
        if isinstance(event.event, Attached):
            goal = self._goals.get(event.partition, NOTHING)
            self._goals[event.partition] = max(goal, event.event.through)
        return done

    def _snapshot(self, event: SnapshotTaken | SnapshotFailed) -> list[CopyInstruction]:
        state = CopyState(event.version, self._below.handed, self._above.state())
        # With a state that lacks output, a consumer's older snapshot could not go on.
        return self.lending.taken(event, state, fit_to_save=not self._above.gap)

    def _install(self, event: Installed) -> list[CopyInstruction]:
        borrowing = self.borrowing
        if borrowing is None or self.begun or not borrowing.fetches(event.attempt):
            raise BrokenInvariant(f"{self.copy} did not want a state of attempt {event.attempt}")
        if borrowing.over:
            # It was given up meanwhile: the seat is lost, and nothing else on this node.
            return []
        self._take_over(event.state, saved=False)
        borrowing.over = True
        self.begun = self.catching_up = True
        return []

    def _receive(self, backing: Backing, event: Received) -> list[CopyInstruction]:
        first = backing.through is None
        if not backing.received(event):
            return []
        self.catching_up = self.catching_up or first
        return [Hold(event.attempt), *self._below.hold(event.through), *backing.ask()]

    @property
    def worth_saving(self) -> bool:
        """Whether this copy is the one to save, and has more than the oldest snapshot that the store keeps.
        So a copy at rest saves its state until all that are kept are equal, and its producers let go of the
        rest.
        """
        return self.saves and self.begun and self._below.handed > self._stored

    def _want_to_save(self) -> None:
        if self.worth_saving:
            self._saved_at_bytes = self._below.handed_bytes
            self.lending.save()

    def _go_on(self) -> list[CopyInstruction]:
        done: list[CopyInstruction] = []
        handed_bytes = self.below.handed_bytes if self.below is not None else 0
        if 0 < self.save_bytes_max < handed_bytes - self._saved_at_bytes:
            self._want_to_save()
        if self.above is None:
            done += self._below.turn()
        if self.begun and self.below is not None and not self.below.busy and not self.lending.paused:
            done += self.lending.stands_still(self.below.handed)
            if not self.lending.paused and not (self.above is not None and self.above.full):
                done += self.below.hand_out()
        return [*done, *self._caught_up()]

    def _caught_up(self) -> list[CopyInstruction]:
        if not self.catching_up:
            return []
        if not self.backs_up and self._below.processed < min(self._goals.values(), default=NOTHING):
            return []
        # A backup is nothing to its consumers yet.
        for end in self._below.inlets.values() if self.backs_up else self.ends.values():
            if any(s is Status.ACTIVE and r not in end.attached for r, s in end.status.items()):
                return []
        self.catching_up = False
        return [CaughtUp()]

    @property
    def _below(self) -> Consumer:
        require(self.below is not None, f"{self.copy} takes no input")
        assert self.below is not None
        return self.below

    @property
    def _above(self) -> Producer:
        require(self.above is not None, f"{self.copy} puts out nothing")
        assert self.above is not None
        return self.above

    def check(self) -> None:
        if self.below is not None:
            self.below.check()
            require(
                not (self.lending.paused and self.below.busy), "a snapshot is taken while the engine works"
            )
            require(self.begun or not self.below.busy, "a copy without its engine has work")
        if self.above is not None:
            self.above.check()
        attached = any(end.attached for end in self.ends.values())
        require(self.holds or not attached, f"{self.copy} is attached and has no state")
