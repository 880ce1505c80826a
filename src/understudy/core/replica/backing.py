"""Backing up: the part of a copy that holds snapshots of another and does not work (passive standby, section
4.1 of Hwang et al., *A Comparison of Stream-Oriented High-Availability Algorithms*, 2003).

A backup is a borrower that never has enough. It asks the active copy for its state, holds what it gets, and
asks for the next one; the active copy answers every so often, between two groups, if it has more than the
backup holds. Only what the backup lacks is moved: files of a snapshot never change. A request is repeated
when a connection comes up, when a copy of the partition says that it has its state (`Here`), and when a view
says that another copy has taken over: whichever comes last makes the request that is answered.

    active copy                     backup                       producers
    Offer(attempt 1, v)   ─────▶    holds v, through S   ─────▶  Ack(S): its floor
                          ◀─────    Request(attempt 2, holds S)
    (ship_ms later, with more than S)
    Offer(attempt 2, w)   ─────▶    holds w, through T   ─────▶  Ack(T)

**What upstream keeps.** A backup attaches to its producers like any copy, with the number that its snapshot
holds, and asks for no data. So a producer keeps every bucket until a shipped snapshot of each backup holds
it: the invariant *Kept* of docs/catch-up.md, unchanged.

**A backup that gets nothing.** A fetch that fails or hangs is begun anew: what the backup holds is still
good. After `FETCHES_MAX` of them in a row the backup says so, and the controller gives its seat to another
node, or to the same one anew, as long as the active copy lives. Otherwise one full disk would stop the flow:
producers keep what the backup lacks, and wait when they are full. A backup that is only slow makes them wait,
too, and is not given up: its successor would have to fetch all of the state.

**Take-over.** When the controller calls a backup active, it starts its engine from the snapshot that it
holds, goes on from that number, and asks its producers for what follows, which they have kept. Its consumers
take nothing twice: numbers rise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from understudy.core.bucket import BucketId
from understudy.core.replica.events import (
    Ask,
    AskAgainLater,
    CopyInstruction,
    FetchFailed,
    MoveFailed,
    Received,
)
from understudy.core.replica.movement import FETCHES_MAX, Borrowing


@dataclass(slots=True)
class Backing(Borrowing):
    """`through` is what the snapshot holds that is here; None as long as there is none."""

    holds: ClassVar[bool] = True

    through: BucketId | None = None
    #: How many fetches in a row brought nothing.
    failures: int = 0

    def ask(self) -> list[CopyInstruction]:
        if self.over or self.fetching:
            return []
        # An active copy remembers a request until it has more to give, which may take long.
        later = [AskAgainLater()] if self.through is None else []
        return [Ask(self.attempt, self.through), *later]

    def received(self, event: Received) -> bool:
        """A snapshot is here. False if it is not wanted any more: the backup has taken over."""
        if not self.expects(event.attempt):
            return False
        self.fetching = False
        self.attempt += 1
        self.failures = 0
        self.through = event.through
        return True

    def failed(self, event: FetchFailed) -> list[CopyInstruction]:
        if not self.expects(event.attempt):
            return []
        # What it holds is still good, and the next snapshot is another chance.
        return [*self._brought_nothing(event.why), AskAgainLater()]

    def stalled(self, why: str) -> list[CopyInstruction]:
        """Nothing has come for long: a fetch that hangs is begun anew, or its producers would keep all."""
        if not self.fetching:
            return []
        return [*self._brought_nothing(why), *self.ask()]

    def _brought_nothing(self, why: str) -> list[CopyInstruction]:
        self.fetching = False
        self.attempt += 1
        self.failures += 1
        if self.failures < FETCHES_MAX:
            return []
        # The controller may leave it in its seat, as the last that holds the state: then it goes on trying.
        self.failures = 0
        return self.give_up(why) if self.through is None else [MoveFailed(why, holds_state=True)]

    def give_up(self, why: str) -> list[CopyInstruction]:
        if self.over or self.through is not None:
            return []
        self.over = True
        return [MoveFailed(why)]
