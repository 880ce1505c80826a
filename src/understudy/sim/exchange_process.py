"""A simulated process of a partitioned flow: a host, an engine for each copy on it, and work that waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from understudy.core.bucket import Bucket
from understudy.core.host import Host
from understudy.core.messages import PartitionState
from understudy.core.parcels import Parcel
from understudy.core.partition import Copy
from understudy.sim.exchange_flow import Sums


@dataclass(frozen=True)
class Up:
    """On a connection's way: it stands."""


@dataclass(frozen=True)
class Down:
    """On a connection's way: it is gone."""


@dataclass(frozen=True)
class Transfer:
    """Something on its way between two processes, over the connection of this number."""

    connection: int
    what: Up | Down | Parcel


@dataclass(frozen=True)
class Start:
    """Make an empty engine ready."""


@dataclass(frozen=True)
class Fetch:
    """Ask the other copy for its state."""


@dataclass(frozen=True)
class Group:
    """Buckets for the engine."""

    buckets: tuple[Bucket, ...]


@dataclass(frozen=True)
class Snap:
    """Snapshot the engine, for the standby that sits in the other seat since this epoch."""


@dataclass(frozen=True)
class Shipment:
    """A state on its way to the standby that sits in the other seat since this epoch."""

    state: PartitionState
    sums: tuple[tuple[int, int], ...]
    to_epoch: int


Work = Start | Fetch | Group | Snap | Shipment


@dataclass(eq=False)
class Worker:
    """A copy's engine in its seat, and what waits for it."""

    copy: Copy
    epoch: int
    engine: Sums = field(default_factory=Sums)
    work: deque[Work] = field(default_factory=deque)
    snapshot: Mapping[int, int] | None = None
    #: The epoch of the standby whose mover was met, and of the one that the last snapshot is for.
    met: int = 0
    moving_to: int = 0


@dataclass(eq=False)
class Process:
    """A node, or the gateway."""

    host: Host
    workers: dict[Copy, Worker] = field(default_factory=dict)
    #: The connection to each other process that this one knows of, by its number.
    connections: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def view_epoch(self) -> int:
        return self.host.view.epoch if self.host.view is not None else 0
