"""Movement: how a copy's state gets to a standby of its partition, and which standby gets which snapshot.

The **lender** is an active copy, the **borrower** a standby. The controller seats at most one standby of a
partition at a time, so a lender has at most one borrower.

    borrower                     lender
    Ask(attempt 1)   ─────────▶  waits until its engine stands still, takes a snapshot (version v), goes on
    Fetch(v)         ◀─────────  Offer(attempt 1, v): the snapshot is kept until the borrower is done
    Installed or FetchFailed

The borrower repeats its request until it is answered: the lender may not have its own state yet, and a
connection may break. A lender that keeps a snapshot for that very request offers it again. Messages of an
earlier attempt are ignored: an offer that comes late, a fetch that ends after it was given up. A lender that
is asked for a later attempt, or by the next borrower, drops the snapshot it kept and takes another.

The borrower retries a fetch that failed, from another lender if there is one, at most `FETCHES_MAX` times: a
full disk or a damaged file does not get better by itself, and each attempt costs the lender a snapshot. Then
the borrower gives up, which costs its seat and nothing else on its node.
"""

from __future__ import annotations

from dataclasses import dataclass

from understudy.core.errors import require
from understudy.core.replica.events import (
    Ask,
    AskAgainLater,
    Asked,
    CopyInstruction,
    CopyState,
    DropSnapshot,
    Fetch,
    FetchFailed,
    KeepSnapshot,
    MoveFailed,
    Offer,
    Offered,
    SnapshotFailed,
    SnapshotTaken,
    TakeSnapshot,
)

FETCHES_MAX = 3


@dataclass(slots=True)
class Lending:
    """An active copy's part. `wanted` waits for the engine to stand still, `taking` for its snapshot, and
    `lent` can be fetched.
    """

    version: int = 0
    wanted: Asked | None = None
    taking: Asked | None = None
    lent: Asked | None = None
    #: The standby that a snapshot is being taken for is gone.
    unwanted: bool = False

    @property
    def paused(self) -> bool:
        """Whether the engine must stand still for its snapshot."""
        return self.taking is not None

    def asked(self, request: Asked) -> list[CopyInstruction]:
        if request == self.lent:
            return [self._offer(request)]
        latest = max((_order(each) for each in (self.wanted, self.taking, self.lent) if each), default=(0, 0))
        if _order(request) <= latest:
            return []
        self.wanted = request
        return self._drop()

    def stands_still(self) -> list[CopyInstruction]:
        """The engine stands still: take the snapshot that is wanted, if one is."""
        if self.wanted is None:
            return []
        require(self.taking is None, "two snapshots were taken at once")
        self.taking, self.wanted = self.wanted, None
        self.unwanted = False
        self.version += 1
        return [TakeSnapshot(self.version)]

    def taken(self, event: SnapshotTaken | SnapshotFailed, state: CopyState) -> list[CopyInstruction]:
        request = self.taking
        require(request is not None and event.version == self.version, f"{event} was not asked for")
        assert request is not None
        self.taking = None
        if isinstance(event, SnapshotFailed):
            # The borrower repeats its request.
            return []
        if self.wanted is not None or self.unwanted:
            # Another request came meanwhile and gets a snapshot of its own, or no standby waits any more.
            return [DropSnapshot(event.version)]
        self.lent = request
        return [KeepSnapshot(state), self._offer(request)]

    def standby_gone(self) -> list[CopyInstruction]:
        """The borrower caught up or is dead."""
        self.wanted = None
        self.unwanted = True
        return self._drop()

    def _offer(self, request: Asked) -> Offer:
        return Offer(request.standby, request.epoch, request.attempt, self.version)

    def _drop(self) -> list[CopyInstruction]:
        lent, self.lent = self.lent, None
        return [] if lent is None else [DropSnapshot(self.version)]


def _order(request: Asked) -> tuple[int, int]:
    return request.epoch, request.attempt


@dataclass(slots=True)
class Borrowing:
    """A standby's part, from its seating until its state is installed or given up."""

    attempt: int = 1
    fetching: bool = False
    over: bool = False
    #: Whether anything has happened since this was last asked.
    progressed: bool = False

    def ask(self) -> list[CopyInstruction]:
        """Ask for the state, or ask again, unless it is on its way."""
        return [] if self.over or self.fetching else [Ask(self.attempt), AskAgainLater()]

    def offered(self, event: Offered) -> list[CopyInstruction]:
        if self.over or self.fetching or event.attempt != self.attempt:
            return []
        self.fetching = self.progressed = True
        return [Fetch(event.lender, event.attempt, event.version)]

    def failed(self, event: FetchFailed) -> list[CopyInstruction]:
        if not self.expects(event.attempt):
            return []
        if self.attempt >= FETCHES_MAX:
            return self.give_up(event.why)
        self.fetching = False
        self.attempt += 1
        return [AskAgainLater()]

    def give_up(self, why: str) -> list[CopyInstruction]:
        if self.over:
            return []
        self.over = True
        return [MoveFailed(why)]

    def fetches(self, attempt: int) -> bool:
        """Whether a fetch of this attempt was begun and has not failed, wanted or given up."""
        return self.fetching and attempt == self.attempt

    def expects(self, attempt: int) -> bool:
        """Whether a state of this attempt is still wanted."""
        return not self.over and self.fetches(attempt)
