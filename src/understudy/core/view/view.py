"""The view: which node sits in which seat, as the controller last decided it.

A partition has as many **seats** as the policy asks for replicas; a copy sits in each, on some node. The
controller alone changes the seating. Every decision makes one `View` of the whole flow, one epoch higher than
the last. Views are totally ordered. Every process sees them in that order, though not every one of them.

A seat carries the epoch at which its node took it. Copy, node and that epoch together are the **fencing
token**: `View.holds` tells whether its bearer may still speak. It is the epoch that fences, not the name: a
node that lost a seat may sit in it again later, under a later epoch, with nothing of the state it had before.

An operator's wishes are part of the view, so that a new leader goes on with them:

    drained    nodes that are to be empty: nothing is seated there, and every copy there moves away
    wanted     copies that are to sit on a certain node, until they are active there
"""

from __future__ import annotations

import enum
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from understudy.core.errors import PeerError, require
from understudy.core.shape.partition import Copy, Partition


class Status(enum.Enum):
    ACTIVE = "ACTIVE"
    DEAD = "DEAD"
    STDBY = "STDBY"
    #: Holds a snapshot of the active copy, and does not work (`core.replica.backing`).
    BACKUP = "BACKUP"

    @property
    def has_state(self) -> bool:
        return self in (Status.ACTIVE, Status.BACKUP)


@dataclass(frozen=True, slots=True)
class Seat:
    """A node in the seat of one copy. `epoch` is the view's epoch at which it took the seat."""

    node: str
    epoch: int
    status: Status

    def __post_init__(self) -> None:
        require(bool(self.node), "a seat names its node")
        require(self.epoch >= 1, f"seat epochs begin at 1, not {self.epoch}")

    @property
    def alive(self) -> bool:
        return self.status is not Status.DEAD


@dataclass(frozen=True, slots=True)
class Seats:
    """The seats of one partition, by replica, since the view of this epoch.

    `lost` says in a sentence why no copy has the partition's state, if none has. `restored` is the epoch of
    the view with which the partition last went on from its saved state after such a loss.
    """

    epoch: int
    seats: tuple[Seat, ...]
    lost: str | None = None
    restored: int = 0

    def __post_init__(self) -> None:
        require(bool(self.seats), "a partition has at least one seat")
        require(
            all(seat.epoch <= self.epoch for seat in self.seats), f"a seat is newer than its view: {self!r}"
        )
        alive = [seat.node for seat in self.seats if seat.alive]
        require(len(set(alive)) == len(alive), f"one node sits in two seats: {alive}")
        standbys = sum(seat.status is Status.STDBY for seat in self.seats)
        require(standbys <= 1, "two standbys of one partition wait for each other")
        require(
            (not alive) == bool(self.lost), f"a partition is lost exactly when every seat is dead: {self!r}"
        )

    def with_seat(self, replica: int, seat: Seat, epoch: int, lost: str | None = None) -> Seats:
        seats = (*self.seats[:replica], seat, *self.seats[replica + 1 :])
        return Seats(epoch, seats, lost, self.restored)

    @property
    def whole(self) -> bool:
        """Whether every seat has the state."""
        return all(seat.status.has_state for seat in self.seats)


@dataclass(frozen=True)
class View:
    """One decision. Partitions, copies and names are kept in order, so that equal views read alike."""

    epoch: int
    partitions: Mapping[Partition, Seats]
    drained: frozenset[str] = frozenset()
    wanted: Mapping[Copy, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        partitions = dict(sorted(self.partitions.items()))
        wanted = dict(sorted(self.wanted.items()))
        object.__setattr__(self, "partitions", MappingProxyType(partitions))
        object.__setattr__(self, "wanted", MappingProxyType(wanted))
        newest = max((seats.epoch for seats in partitions.values()), default=0)
        require(
            newest <= self.epoch, f"a partition's seats of {newest} are newer than the view, {self.epoch}"
        )
        for copy, node in wanted.items():
            require(copy.partition in partitions, f"{copy} is wanted on {node} and is no copy of this flow")
            require(node not in self.drained, f"{copy} is wanted on {node}, which is to be empty")

    def __hash__(self) -> int:
        return hash((self.epoch, tuple(self.partitions.items()), self.drained, tuple(self.wanted.items())))

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only mapping can be neither copied nor pickled by itself.
        return View, (self.epoch, dict(self.partitions), self.drained, dict(self.wanted))

    @property
    def lost(self) -> str | None:
        return next((f"{p}: {seats.lost}" for p, seats in self.partitions.items() if seats.lost), None)

    @property
    def seats(self) -> dict[Copy, Seat]:
        """Every seat, lowest partition first."""
        return {
            Copy(partition, replica): seat
            for partition, seats in self.partitions.items()
            for replica, seat in enumerate(seats.seats)
        }

    @cached_property
    def load(self) -> Mapping[str, int]:
        """How many copies live on each node that has any."""
        seats = (seat for each in self.partitions.values() for seat in each.seats)
        return MappingProxyType(Counter(seat.node for seat in seats if seat.alive))

    @property
    def nodes_named(self) -> frozenset[str]:
        """The nodes whose coming and going matters: those with a living seat, and those in wishes."""
        return frozenset({*self.load, *self.drained, *self.wanted.values()})

    def seat(self, copy: Copy) -> Seat:
        return self.partitions[copy.partition].seats[copy.replica]

    def holds(self, copy: Copy, node: str, epoch: int) -> bool:
        """Whether `node` sits, alive, in this copy's seat since `epoch`: the fencing check."""
        seats = self.partitions.get(copy.partition)
        if seats is None or copy.replica >= len(seats.seats):
            return False
        seat = seats.seats[copy.replica]
        return seat.alive and (seat.node, seat.epoch) == (node, epoch)

    def copies_on(self, node: str) -> list[Copy]:
        """The copies that live on a node, lowest partition first."""
        return [copy for copy, seat in self.seats.items() if seat.alive and seat.node == node]

    def copy_on_fuller_node(self, partition: Partition) -> Copy:
        """The copy of a partition that had better move away: it lives on the node with most copies."""
        copies = [Copy(partition, replica) for replica in range(len(self.partitions[partition].seats))]
        for copy in reversed(copies):
            if not self.seat(copy).status.has_state:
                # The others may hold the only state, and must stay.
                return copy
        return max(reversed(copies), key=lambda copy: self.load[self.seat(copy).node])

    # --- as text -----------------------------------------------------------------------------------------

    def to_json(self, since: View | None = None) -> str:
        """The view as text; or only the changes since an earlier view that the reader knows."""
        partitions = [
            [
                p.name,
                p.index,
                seats.epoch,
                [[s.node, s.epoch, s.status.value] for s in seats.seats],
                seats.lost,
                seats.restored,
            ]
            for p, seats in self.partitions.items()
            if since is None or since.partitions.get(p) != seats
        ]
        fields = {
            "epoch": self.epoch,
            "partitions": partitions,
            "drained": sorted(self.drained),
            "wanted": [[str(copy), node] for copy, node in self.wanted.items()],
            **({} if since is None else {"since": since.epoch}),
        }
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes, known: Mapping[int, View] = MappingProxyType({})) -> View:
        """The view that `to_json` wrote; if only changes, since one of the `known`. Anything else raises
        `PeerError`.
        """
        try:
            return _parsed(json.loads(text), known)
        except Exception as error:
            raise PeerError(f"this is not a view: {text[:200]!r} ({error})") from error


def _parsed(fields: Any, known: Mapping[int, View]) -> View:
    if set(_typed(fields, dict)) - {"since"} != {"epoch", "partitions", "drained", "wanted"}:
        raise ValueError(f"fields are {sorted(fields)}")
    partitions: dict[Partition, Seats] = {}
    if "since" in fields:
        if fields["since"] not in known:
            raise ValueError(f"it holds the changes since {fields['since']}, which is not known here")
        partitions.update(known[fields["since"]].partitions)
    for name, index, epoch, seats, lost, restored in _typed(fields["partitions"], list):
        read = tuple(
            Seat(_typed(node, str), _typed(since, int), Status(status)) for node, since, status in seats
        )
        reason = None if lost is None else _typed(lost, str)
        partition = Partition(_typed(name, str), _typed(index, int))
        partitions[partition] = Seats(_typed(epoch, int), read, reason, _typed(restored, int))
    drained = frozenset(_typed(node, str) for node in _typed(fields["drained"], list))
    wanted = {Copy.of(copy): _typed(node, str) for copy, node in _typed(fields["wanted"], list)}
    return View(_typed(fields["epoch"], int), partitions, drained, wanted)


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value
