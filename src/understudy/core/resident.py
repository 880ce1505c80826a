"""A copy on its host: its machine, and the edges that it has open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from understudy.core.errors import BrokenInvariant, require
from understudy.core.f_cons import FCons
from understudy.core.f_prod import FProd
from understudy.core.inlet import Inlet
from understudy.core.outlet import Outlet
from understudy.core.parcels import Attach
from understudy.core.partition import Copy, Partition
from understudy.core.partition_replica import PartitionReplica


@dataclass(frozen=True, slots=True)
class Opened:
    """An edge that stands: the attempt that opened it, and the process at its other end."""

    serial: int
    node: str


@dataclass(eq=False)
class Resident:
    """A copy that is hosted here. `edges` are open, `tried` have been asked for and not answered yet."""

    copy: Copy
    epoch: int
    machine: PartitionReplica | FProd | FCons
    begun: bool = False
    edges: dict[Copy, Opened] = field(default_factory=dict)
    tried: dict[Copy, Opened] = field(default_factory=dict)

    @property
    def ends(self) -> dict[Partition, Inlet | Outlet]:
        """This copy's end towards every neighbour."""
        match self.machine:
            case FProd(outlets=outlets):
                return dict(outlets)
            case FCons(inlets=inlets):
                return dict(inlets)
            case PartitionReplica(below=below, above=above):
                return {**below.inlets, **above.outlets}

    @property
    def producers(self) -> Iterator[Copy]:
        inlets = {} if isinstance(self.machine, FProd) else self._below.inlets
        return (Copy(partition, slot) for partition, inlet in inlets.items() for slot in inlet.status)

    @property
    def _below(self) -> FCons:
        require(not isinstance(self.machine, FProd), f"{self.copy} takes no input")
        return self.machine if isinstance(self.machine, FCons) else self.machine.below  # type: ignore[union-attr]

    @property
    def produced_version(self) -> int:
        """The version of the last checkpoint that consumers were told of."""
        match self.machine:
            case FProd() as above:
                return above.version
            case PartitionReplica(above=above):
                return above.version
        raise BrokenInvariant(f"{self.copy} puts out nothing")

    def attach(self, to: Copy, to_epoch: int, serial: int) -> Attach:
        below = self._below
        stand = (serial, below.inlets[to.partition].taken, below.version, below.checkpoint)
        return Attach(self.copy, self.epoch, to, to_epoch, *stand)
