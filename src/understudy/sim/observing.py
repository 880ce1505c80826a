"""The events that a simulated world shows to its observers: checkers, measurements, writers of histories.

An observer sees every event that a process would put on record. It must not change the world.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from understudy.core.bucket import Bucket, BucketId
from understudy.core.replica.events import CopyState
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.view import View
from understudy.sim.engine import Snapshot


class Observer(Protocol):
    """`by` is the process that it happened in."""

    def sealed(self, by: str, source: str, bucket: Bucket) -> None:
        """A source's log holds this bucket, on disk."""

    def handed(self, by: str, copy: Copy, after: BucketId, buckets: Sequence[Bucket]) -> None:
        """The copy's engine, which holds everything through `after`, was given a group."""

    def produced(self, by: str, copy: Copy, to: Partition, buckets: Sequence[Bucket]) -> None:
        """The copy's engine put out a run of buckets for a consumer."""

    def delivered(self, by: str, sink: Copy, after: BucketId, buckets: Sequence[Bucket]) -> None:
        """A sink that held everything through `after` holds these, on disk."""

    def snapshot(self, by: str, copy: Copy, state: CopyState, engine: Snapshot) -> None:
        """The copy keeps its state for a standby."""

    def installed(self, by: str, copy: Copy, state: CopyState, engine: Snapshot) -> None:
        """The copy's engine has started from the state of another."""

    def decided(self, view: View) -> None:
        """The store holds this view."""

    def fault(self, what: str, target: str) -> None:
        """The schedule let something fail."""


class Watcher:
    """An observer that looks at nothing. Subclasses look at what they care for."""

    def sealed(self, by: str, source: str, bucket: Bucket) -> None:
        pass

    def handed(self, by: str, copy: Copy, after: BucketId, buckets: Sequence[Bucket]) -> None:
        pass

    def produced(self, by: str, copy: Copy, to: Partition, buckets: Sequence[Bucket]) -> None:
        pass

    def delivered(self, by: str, sink: Copy, after: BucketId, buckets: Sequence[Bucket]) -> None:
        pass

    def snapshot(self, by: str, copy: Copy, state: CopyState, engine: Snapshot) -> None:
        pass

    def installed(self, by: str, copy: Copy, state: CopyState, engine: Snapshot) -> None:
        pass

    def decided(self, view: View) -> None:
        pass

    def fault(self, what: str, target: str) -> None:
        pass
