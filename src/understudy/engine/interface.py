"""What the rest of the system knows of an engine: buckets in, buckets out, snapshots.

An engine runs one fragment. It counts progress in buckets and promises two things. What it puts into an
output bucket depends on the sealed input buckets alone, not on how many of them one `advance` brought. And
`through` is honest: no row of a bucket at or below it will ever come again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from understudy.core.bucket import BucketId


@dataclass(frozen=True)
class Advanced:
    """What one step brought out. `rows` has only buckets that are not empty and that are now complete."""

    rows: Mapping[BucketId, pa.Table]
    through: BucketId
    """Output is complete through here. It never falls."""


@dataclass(frozen=True)
class Snapshot:
    """A state on disk. The directory is self-contained and may be moved to another host."""

    directory: Path
    digest: str
    """Of all files: equal digests mean the same state."""
    through: BucketId
    """The last input bucket that the state holds."""
    output_through: BucketId
    """The last output bucket that was complete then."""
    size_bytes: int


class Engine(Protocol):
    """One fragment. Not to be called by two threads at once. Every method may raise EnvironmentFailed."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the fragment's output."""

    @property
    def through(self) -> BucketId:
        """The last input bucket taken in; NOTHING at first."""

    @property
    def output_through(self) -> BucketId:
        """The last output bucket that is complete; NOTHING at first."""

    @property
    def unbounded(self) -> str | None:
        """The operator whose state has no bound, if there is one. Then `horizon` is NOTHING."""

    def start(self, snapshot: Snapshot | None = None) -> None:
        """Begin, from nothing or from a snapshot. Called once, before anything else."""

    def advance(self, inputs: Mapping[str, pa.Table], through: BucketId) -> Advanced:
        """Take in the sealed buckets after the engine's `through` up to `through`, of every input at once.

        `inputs` maps the name of every input to its rows, in bucket order; a missing or empty table means
        that all those buckets are empty. Blocks until the rows are processed and committed. Raises FlowError
        with Spark's own words when the fragment fails, ContractViolation when a row comes out for a bucket
        already sealed. After an exception only `restore` and `close` may be called.
        """

    def snapshot(self, into: Path) -> Snapshot:
        """Write the state between two advances to the directory `into`, which must not exist.

        Hard-links files where it can: `into` should be on the file system of the engine's own directory.
        """

    def restore(self, snapshot: Snapshot) -> None:
        """Throw the present state away and go on from `snapshot`. The snapshot itself is left as it is."""

    def horizon(self) -> BucketId:
        """The oldest input bucket that the present state may still depend on."""

    def close(self) -> None:
        """End the fragment and remove its working files. May be called at any time, and more than once."""
