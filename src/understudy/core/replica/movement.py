"""Movement: how a copy's state gets to a standby of its partition, and which standby gets which snapshot.

The **lender** is an active copy, the **borrower** a standby. A snapshot that is made while several borrowers
wait serves all of them.

The **store** gets snapshots, too, from time to time, one after the other: with them a partition goes on after
all of its copies are lost. It asks for nothing: the host's clock does that in its name.

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

from dataclasses import dataclass, field
from typing import ClassVar

from understudy.core.bucket import NOTHING, BucketId
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
    SaveSnapshot,
    SnapshotFailed,
    SnapshotTaken,
    TakeSnapshot,
)
from understudy.core.shape.partition import Copy

FETCHES_MAX = 3


@dataclass(slots=True)
class Lending:
    """An active copy's part. A standby's request is `wanted` until the engine stands still, `taking` while
    its snapshot is made, and then `lent`, with the snapshot's version. A snapshot that is made serves all
    that want one at that moment, the store included.
    """

    version: int = 0
    wanted: dict[Copy, Asked] = field(default_factory=dict)
    taking: dict[Copy, Asked] = field(default_factory=dict)
    lent: dict[Copy, tuple[Asked, int]] = field(default_factory=dict)
    #: Whether the engine must stand still for its snapshot.
    paused: bool = False
    #: Whether backups are served only every so often, and whether their time has come.
    paced: bool = False
    ship_due: bool = True
    #: The store wants a snapshot; one is being taken for it; the version that is on its way there.
    save_wanted: bool = False
    taking_to_save: bool = False
    saving: int | None = None

    def asked(self, request: Asked) -> list[CopyInstruction]:
        lent, version = self.lent.get(request.standby, (None, 0))
        if request == lent:
            return [_offer(request, version)]
        known = (self.wanted.get(request.standby), self.taking.get(request.standby), lent)
        if _order(request) <= max((_order(each) for each in known if each), default=(0, 0)):
            return []
        self.wanted[request.standby] = request
        return self._drop(request.standby)

    def save(self) -> None:
        """The store wants the next snapshot, unless one is on its way there."""
        self.save_wanted = self.saving is None and not self.taking_to_save

    def stands_still(self, handed: BucketId = NOTHING) -> list[CopyInstruction]:
        """The engine stands still with this much input: take the snapshot that is wanted, if one is."""
        # A backup that holds as much waits for more.
        served = {s: r for s, r in self.wanted.items() if r.holds is None or r.holds < handed}
        if not self.save_wanted and not (served and self.ship_due):
            return []
        require(not self.paused, "two snapshots were taken at once")
        self.taking = served
        self.wanted = {s: request for s, request in self.wanted.items() if s not in served}
        self.taking_to_save, self.save_wanted = self.save_wanted, False
        self.ship_due = not self.paced
        self.paused = True
        self.version += 1
        return [TakeSnapshot(self.version)]

    def taken(
        self, event: SnapshotTaken | SnapshotFailed, state: CopyState, *, fit_to_save: bool = True
    ) -> list[CopyInstruction]:
        """A snapshot that is not `fit_to_save` may still be lent."""
        require(self.paused and event.version == self.version, f"{event} was not asked for")
        self.paused = False
        taking, self.taking = self.taking, {}
        to_save, self.taking_to_save = self.taking_to_save and fit_to_save, False
        if isinstance(event, SnapshotFailed):
            # Standbys repeat their requests, the store's time comes again, and a backup's as well.
            self.wanted = {**{s: r for s, r in taking.items() if r.holds is not None}, **self.wanted}
            return []
        # Whoever has asked again meanwhile gets a snapshot of its own.
        served = [request for standby, request in taking.items() if standby not in self.wanted]
        if not served and not to_save:
            return [DropSnapshot(event.version)]
        for request in served:
            self.lent[request.standby] = request, event.version
        done: list[CopyInstruction] = [KeepSnapshot(state)]
        if to_save:
            self.saving = event.version
            done.append(SaveSnapshot(event.version))
        return [*done, *(_offer(request, event.version) for request in served)]

    def saved(self, version: int) -> list[CopyInstruction]:
        """The store is done with this snapshot, one way or the other."""
        require(version == self.saving, f"version {version} was not to be saved")
        self.saving = None
        return self._drop_unused(version)

    def standby_gone(self, standby: Copy) -> list[CopyInstruction]:
        """The borrower caught up or is dead."""
        self.wanted.pop(standby, None)
        self.taking.pop(standby, None)
        return self._drop(standby)

    def _drop(self, standby: Copy) -> list[CopyInstruction]:
        """This standby will not fetch the snapshot that was kept for it."""
        if standby not in self.lent:
            return []
        _, version = self.lent.pop(standby)
        return self._drop_unused(version)

    def _drop_unused(self, version: int) -> list[CopyInstruction]:
        used = version == self.saving or any(version == kept for _, kept in self.lent.values())
        return [] if used else [DropSnapshot(version)]


def _offer(request: Asked, version: int) -> Offer:
    return Offer(request.standby, request.epoch, request.attempt, version)


def _order(request: Asked) -> tuple[int, int]:
    return request.epoch, request.attempt


@dataclass(slots=True)
class Borrowing:
    """A standby's part, from its seating until its state is installed or given up."""

    #: Whether the state is only held, and no engine starts from it.
    holds: ClassVar[bool] = False

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
        return [Fetch(event.lender, event.attempt, event.version, hold=self.holds)]

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
