"""The view of a partitioned flow: the view of every partition, and what an operator wishes, under one epoch.

Every decision makes one `FluxView`, one epoch higher than the last; a seat's epoch is that of the view which
gave it. Copy, node and seat epoch together are the fencing token. It is the epoch that fences, not the name:
a node that lost a seat may sit in it again later, under a later epoch, with nothing of what it had before. So
no name is ever buried here.

An operator's wishes are part of the view, so that a new leader goes on with them:

    drained    nodes that are to be empty: nothing is seated there, and what sits there moves away
    wanted     copies that are to sit on a certain node, until they are active there
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from understudy.core.errors import PeerError, require
from understudy.core.partition import Copy, Partition
from understudy.core.view import Seat, Slot, Status, View


@dataclass(frozen=True)
class FluxView:
    """One decision. Partitions, copies and names are kept in order, so that equal views read alike."""

    epoch: int
    partitions: Mapping[Partition, View]
    drained: frozenset[str] = frozenset()
    wanted: Mapping[Copy, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        partitions = dict(sorted(self.partitions.items()))
        wanted = dict(sorted(self.wanted.items(), key=lambda wish: _place(wish[0])))
        object.__setattr__(self, "partitions", MappingProxyType(partitions))
        object.__setattr__(self, "wanted", MappingProxyType(wanted))
        newest = max((view.epoch for view in partitions.values()), default=0)
        require(newest <= self.epoch, f"a partition's view {newest} is newer than the whole, {self.epoch}")
        for copy, node in wanted.items():
            require(copy.partition in partitions, f"{copy} is wanted on {node} and is no copy of this flow")
            require(node not in self.drained, f"{copy} is wanted on {node}, which is to be empty")

    def __hash__(self) -> int:
        wanted = tuple(self.wanted.items())
        return hash((self.epoch, tuple(self.partitions.items()), self.drained, wanted))

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only mapping can be neither copied nor pickled by itself.
        return FluxView, (self.epoch, dict(self.partitions), self.drained, dict(self.wanted))

    @property
    def lost(self) -> str | None:
        return next((f"{p}: {view.lost}" for p, view in self.partitions.items() if view.lost), None)

    @property
    def seats(self) -> dict[Copy, Seat]:
        """Every seat, lowest partition first."""
        return {
            Copy(partition, slot): seat
            for partition, view in self.partitions.items()
            for slot, seat in view.seats.items()
        }

    @cached_property
    def load(self) -> Mapping[str, int]:
        """How many copies live on each node that has any."""
        seats = (seat for view in self.partitions.values() for seat in view.seats.values())
        return MappingProxyType(Counter(seat.node for seat in seats if seat.alive))

    @property
    def nodes_alive(self) -> tuple[str, ...]:
        """The names with a living seat."""
        return tuple(sorted(self.load))

    @property
    def nodes_named(self) -> tuple[str, ...]:
        """Whose coming and going matters to this view: those with a living seat, and those in wishes."""
        return tuple(sorted({*self.nodes_alive, *self.drained, *self.wanted.values()}))

    def seat(self, copy: Copy) -> Seat:
        return self.partitions[copy.partition].seats[copy.slot]

    def holds(self, copy: Copy, node: str, epoch: int) -> bool:
        """Whether `node` sits, alive, in this copy's seat since `epoch`: the fencing check."""
        view = self.partitions.get(copy.partition)
        return view is not None and view.holds(copy.slot, node, epoch)

    def copies_on(self, node: str) -> list[Copy]:
        """The copies that live on a node, lowest partition first."""
        return [
            Copy(partition, slot)
            for partition, view in self.partitions.items()
            for slot, seat in view.seats.items()
            if seat.alive and seat.node == node
        ]

    def copy_on_fuller_node(self, partition: Partition) -> Copy:
        """The copy of a partition that had better move away: it lives on the node with more copies."""
        copies = [Copy(partition, slot) for slot in (Slot.SEC, Slot.PRIM)]
        for copy in copies:
            if self.seat(copy).status is not Status.ACTIVE:
                # The other one may hold the only state, and must stay.
                return copy
        return max(copies, key=lambda copy: self.load[self.seat(copy).node])

    def to_json(self, since: FluxView | None = None) -> str:
        """The view as text; or what has changed since an earlier one, for somebody who knows that."""
        views = [
            [partition.fragment, partition.index, json.loads(view.to_json())]
            for partition, view in self.partitions.items()
            if since is None or since.partitions.get(partition) != view
        ]
        wanted = [
            [copy.partition.fragment, copy.partition.index, copy.slot.value, node]
            for copy, node in self.wanted.items()
        ]
        whole = {
            "epoch": self.epoch,
            "partitions": views,
            "drained": sorted(self.drained),
            "wanted": wanted,
            **({} if since is None else {"since": since.epoch}),
        }
        return json.dumps(whole, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes, known: Mapping[int, FluxView] = MappingProxyType({})) -> FluxView:
        """The view that `to_json` wrote; if only changes, since one of the `known`. Anything else raises
        `PeerError`.
        """
        try:
            whole: Any = json.loads(text)
            views = dict(known[whole["since"]].partitions) if "since" in whole else {}
            views |= {
                Partition(fragment, index): View.from_json(json.dumps(view))
                for fragment, index, view in whole["partitions"]
            }
            wanted = {
                Copy(Partition(fragment, index), Slot(slot)): str(node)
                for fragment, index, slot, node in whole["wanted"]
            }
            drained = frozenset(str(node) for node in whole["drained"])
            return cls(whole["epoch"], views, drained, wanted)
        except Exception as error:
            raise PeerError(f"this is not a view: {text[:200]!r} ({error})") from error


def _place(copy: Copy) -> tuple[Partition, str]:
    return copy.partition, copy.slot.value
