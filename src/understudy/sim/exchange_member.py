"""Who takes part in a simulated exchange, and what is on its way between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from understudy.core.exchange import SlotEvent
from understudy.core.f_cons import FCons
from understudy.core.f_prod import FProd
from understudy.core.messages import Attached, PartitionState
from understudy.core.partition import Copy
from understudy.core.partition_replica import PartitionReplica
from understudy.core.view import Status
from understudy.sim.exchange_flow import Sums


@dataclass(frozen=True)
class Envelope:
    """A message on its way, with the view that its sender acts on."""

    sender: Copy
    seat_epoch: int
    serial: int
    epoch: int
    event: SlotEvent


@dataclass(eq=False)
class Member:
    """One participant: a copy of a partition, or one of the two ends of the flow."""

    copy: Copy
    node: str
    machine: PartitionReplica | FCons | FProd
    epoch: int = 0
    view_epoch: int = 0
    engine: Sums = field(default_factory=Sums)
    snapshot: Sums | None = None
    #: The epoch of the standby whose mover was met, and of the one that the last snapshot is for.
    met: int = 0
    moving_to: int = 0
    work: deque[object] = field(default_factory=deque)
    #: The connection to each neighbour that this one knows of, by its serial.
    known: dict[Copy, int] = field(default_factory=dict)

    @property
    def has_state(self) -> bool:
        return not isinstance(self.machine, PartitionReplica) or self.machine.status is not Status.STDBY

    def stands(self) -> Attached:
        """What this one says of itself when a connection is made."""
        match self.machine:
            case PartitionReplica(below=below) | (FCons() as below):
                return Attached(self.copy.slot, below.handed, below.version, below.checkpoint)
            case _:
                return Attached(self.copy.slot)

    def says(self, serial: int, event: SlotEvent) -> Envelope:
        return Envelope(self.copy, self.epoch, serial, self.view_epoch, event)


@dataclass(frozen=True)
class Shipment:
    """A state on its way to the standby that sits in the other seat since this epoch."""

    state: PartitionState
    sums: Mapping[int, int]
    to_epoch: int
