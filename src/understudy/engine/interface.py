"""The interface of an engine to the rest of the system: buckets in, buckets out, snapshots.

An engine runs one copy of one partition of a segment. It counts progress in buckets and makes two promises.
What it puts into an output bucket depends on the sealed input buckets alone, not on how many of them one
`advance` brought. And `through` is honest: no row of a bucket at or below it will ever come again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from understudy.core.bucket import BucketId
from understudy.core.shape.partition import Partition


@dataclass(frozen=True)
class Output:
    """What has become complete for some consumers of a copy."""

    shares: Mapping[Partition, Mapping[BucketId, pa.Table]]
    """Rows by consumer and bucket, in bucket order. No table is empty; several sinks share one table."""
    consumers: tuple[Partition, ...]
    """Those for which output is now complete through `through`, also if nothing is in their shares."""
    through: BucketId


#: Takes what has become complete.
Emit = Callable[[Output], None]


@dataclass(frozen=True)
class Snapshot:
    """A state on disk. The directory is self-contained and may be moved to another host."""

    directory: Path
    digest: str
    """Of all files and facts: equal digests mean the same state."""
    through: BucketId
    """The last input bucket that the state holds."""
    output_through: BucketId
    """The last output bucket that was complete then, for every consumer."""
    size_bytes: int


class CopyEngine(Protocol):
    """The engine of one copy. Every method may raise EnvironmentFailed.

    Only `close` may be called while another thread is in a method, and only `close` may be called after one
    has raised: a copy that goes on from an earlier state is another engine.
    """

    @property
    def through(self) -> BucketId:
        """The last input bucket taken in; NOTHING at first."""

    @property
    def rounding(self) -> Mapping[str, tuple[str, ...]]:
        """Fragments whose sums of floats depend on the grouping in their last digits, and those sums.

        With any, digests are compared without floating-point columns.
        """

    @property
    def unbounded(self) -> str | None:
        """The operator whose state has no bound, if there is one. Then `horizon` is NOTHING."""

    @property
    def stepwise(self) -> bool:
        """Whether each bucket takes it as long as a group does elsewhere: long groups then take long."""

    @property
    def steps(self) -> int:
        """How many micro-batches it has finished; rises while it works on a long group. For any thread."""

    def start(self, snapshot: Snapshot | None = None) -> None:
        """Begin, from nothing or from a snapshot. Called once, before anything else.

        Raises EnvironmentFailed if the snapshot is damaged or that of another segment, partition or run, and
        FlowError if its fragments have changed since in a way that their states do not fit (see `fitting`).
        """

    def advance(self, inputs: Mapping[str, pa.Table], through: BucketId, emit: Emit) -> None:
        """Take in the sealed buckets after the engine's `through` up to `through`, of every input at once.

        `inputs` maps streams (sources, or fragments of other segments) to their rows, in bucket order; a
        missing or empty table means that all those buckets are empty. Rows of one bucket that several
        producers sent come in an order that all copies of the partition agree on.

        Blocks until all rows are processed and committed. Meanwhile calls `emit`, in this thread, as soon as
        output has become complete for some consumers. Consumers whose output came no further are not named.

        Raises FlowError with Spark's own words when a fragment fails, ContractViolation when a row comes out
        for a bucket already sealed.
        """

    def snapshot(self, into: Path) -> Snapshot:
        """Write the state between two advances to the directory `into`, which must not exist.

        Hard-links files where it can: `into` should be on the file system of the engine's own directory.
        """

    def horizon(self) -> BucketId:
        """The oldest input bucket from which a replay builds the present state and all output to come."""

    def close(self) -> None:
        """End the queries and remove their working files. May be called at any time, and more than once."""
