"""What travels in a world's channels, and how a world is set up. All of it is immutable and hashable."""

from __future__ import annotations

from dataclasses import dataclass

from understudy.core.bucket import Bucket, BucketId
from understudy.core.buffer import Acks
from understudy.core.controller import Event
from understudy.core.messages import Installed, Message
from understudy.core.view import Slot, View
from understudy.sim.engine import Snapshot

#: A channel is named by its pace, the process that takes what comes out of it, and what tells it from others.
Channel = tuple[str, ...]

#: The two connections that a node has to the gateway.
BELOW, ABOVE = "ingress", "egress"
ENDS = (BELOW, ABOVE)

GATEWAY, CONTROLLER = "gateway", "controller"


@dataclass(frozen=True, slots=True)
class Setup:
    """The fixed facts of one world. Limits are small, so that they are met often."""

    slots: tuple[Slot, ...] = (Slot.PRIM, Slot.SEC)
    acks: Acks = Acks.CUMULATIVE
    nodes: int = 2
    lag_buckets: int = 1
    group_buckets_max: int = 3
    ingress_buckets_max: int = 8
    output_buckets_max: int = 8
    #: Whether a gateway says `Detached` of an old connection when a new one replaces it.
    detach_replaced: bool = True
    #: Whether the gateway suspects a node that does not reconnect. Without, only membership tells.
    suspicion: bool = True
    #: Whether a view reaches the gateway also through those who act on it, before what they say next.
    views_travel: bool = True
    #: Whether messages from a seat that the view does not hold are refused.
    fencing: bool = True

    @property
    def held_max(self) -> int:
        """How many buckets a full output buffer may hold: one group is always let in."""
        return self.output_buckets_max + 16 * self.group_buckets_max + self.lag_buckets


@dataclass(frozen=True, slots=True)
class Conn:
    """One connection of a node to the gateway; a new one has a new serial."""

    node: str
    end: str
    serial: int

    @property
    def name(self) -> str:
        return f"{self.node}/{self.end}/{self.serial}"


@dataclass(frozen=True, slots=True)
class Token:
    """The fencing token: who sits where since which epoch."""

    slot: Slot
    node: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Hello:
    """The first word on a connection."""

    conn: Conn
    token: Token
    view: View
    through: BucketId
    version: int
    checkpoint: BucketId


@dataclass(frozen=True, slots=True)
class Up:
    """A replica's message to the gateway."""

    conn: Conn
    token: Token
    message: Message


@dataclass(frozen=True, slots=True)
class Acting:
    """A replica tells the gateway which view it acts on from here on."""

    conn: Conn
    token: Token
    view: View


@dataclass(frozen=True, slots=True)
class Down:
    """The gateway's message to a replica."""

    conn: Conn
    message: Message


@dataclass(frozen=True, slots=True)
class Lost:
    """This end notices that the connection is gone."""

    conn: Conn


@dataclass(frozen=True, slots=True)
class Connect:
    """It is time to connect (again)."""

    end: str


@dataclass(frozen=True, slots=True)
class NewView:
    view: View


@dataclass(frozen=True, slots=True)
class Report:
    """What somebody tells the controller."""

    event: Event


@dataclass(frozen=True, slots=True)
class Computed:
    """The engine has finished this group."""

    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class SnapshotLinked:
    """The engine's snapshot is taken."""


@dataclass(frozen=True, slots=True)
class WantState:
    """A standby's mover calls at the active replica's."""

    node: str
    epoch: int


@dataclass(frozen=True, slots=True)
class MoverMet:
    """The movers of this replica and of the standby in the seat of this epoch have met."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Moved:
    """The state has arrived whole at the standby."""

    snapshot: Snapshot
    state: Installed


@dataclass(frozen=True, slots=True)
class MoveBroken:
    """The standby's mover lost its peer."""


@dataclass(frozen=True, slots=True)
class Seal:
    """The source has the next bucket ready."""


@dataclass(frozen=True, slots=True)
class Write:
    """The sink is asked to hold this bucket."""

    bucket: Bucket


@dataclass(frozen=True, slots=True)
class SuspectNow:
    """A connection has been gone for too long."""

    token: Token
    end: str


@dataclass(frozen=True, slots=True)
class Restart:
    """A crashed gateway is started again."""


Item = (
    Hello
    | Up
    | Acting
    | Down
    | Lost
    | Connect
    | NewView
    | Report
    | Computed
    | SnapshotLinked
    | WantState
    | MoverMet
    | Moved
    | MoveBroken
    | Seal
    | Write
    | SuspectNow
    | Restart
)
