"""A copy's engine in its seat, in a simulated process, and the snapshots that it keeps for standbys."""

from __future__ import annotations

from dataclasses import dataclass, field

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.host.parcels import FetchState
from understudy.core.replica.events import CopyState
from understudy.core.shape.partition import Copy
from understudy.sim.engine import SimEngine, Snapshot


@dataclass(frozen=True, slots=True)
class Kept:
    """A snapshot that is kept for a standby."""

    state: CopyState
    engine: Snapshot


@dataclass(eq=False, slots=True)
class SimWorker:
    """A copy's engine in its seat, or a sink's writer, and what it has to do."""

    copy: Copy
    epoch: int
    engine: SimEngine | None = None
    starting: bool = False
    group: tuple[Bucket, ...] = ()
    produced: bool = False
    #: Everything through this number was given to the engine, and acknowledged by the copy.
    given: BucketId = NOTHING
    acked: BucketId = NOTHING
    snapping: int | None = None
    taken: dict[int, Snapshot] = field(default_factory=dict)
    lent: dict[int, Kept] = field(default_factory=dict)
    fetching: FetchState | None = None
    fetched: Kept | None = None
    #: The fetch makes no progress and never will.
    hangs: bool = False
    #: A backup's snapshot; and whether its engine is to start from it.
    held: Kept | None = None
    resuming: bool = False
    #: What the saved state held that it began with, if it did.
    restored: BucketId | None = None
    #: The version that is on its way into the vault.
    saving: int | None = None
