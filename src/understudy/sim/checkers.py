"""One checker per invariant that can be checked where it could break.

    loss-free        no bucket with rows is missing from what a sink holds
    dup-free         no bucket reaches a sink twice
    in-order         numbers at a sink rise
    contents         a sink holds the reference's rows
    input-loss-free  no engine misses a bucket with rows
    input-dup-free   no engine is given a bucket twice
    input-contents   an engine is given the reference's rows
    replicas-agree   every replica puts out the reference's rows
    state-exact      an engine's state is that of exactly the input that its copy has acknowledged, also after
                     it was moved
    bounded          buffers stay within their limits
    sound            every host's own `check` passes, and none rejects what another one sent

Invariants of the whole world are in `sim.invariants`.
"""

from __future__ import annotations

from collections.abc import Sequence

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.replica.events import CopyState
from understudy.core.shape.partition import Copy, Partition
from understudy.sim.engine import Snapshot, merged
from understudy.sim.flow import ExpectedRows, Reference
from understudy.sim.observing import Watcher


class Violation(AssertionError):
    """An invariant does not hold. `invariant` is its name; the message tells what showed it."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant
        self.what = what

    def __reduce__(self) -> tuple[type[Violation], tuple[str, str]]:
        """As an error of another process."""
        return Violation, (self.invariant, self.what)


def demand(condition: bool, invariant: str, what: str) -> None:
    if not condition:
        raise Violation(invariant, what)


class DeliveryChecker(Watcher):
    """What sinks hold: loss-free, dup-free, in-order, contents."""

    def __init__(self, reference: Reference) -> None:
        self._taken = reference.taken

    def delivered(self, by: str, sink: Copy, after: BucketId, buckets: Sequence[Bucket]) -> None:
        stream = self._taken[sink.partition]
        for bucket in buckets:
            what = f"{sink.partition} is given {bucket.number} after {after}"
            if bucket.number <= after:
                repeated = bucket.empty or bucket.number in stream.rows
                raise Violation("dup-free" if repeated else "in-order", what)
            _demand_none_skipped(stream, after, bucket.number, "loss-free", what)
            expected, rows = stream.rows.get(bucket.number, ()), merged(bucket)
            demand(rows == expected, "contents", f"bucket {bucket.number} holds {rows}, not {expected}")
            after = bucket.number


class InputChecker(Watcher):
    """What engines are given: input-loss-free, input-dup-free, input-contents."""

    def __init__(self, reference: Reference) -> None:
        self._taken = reference.taken

    def handed(self, by: str, copy: Copy, after: BucketId, buckets: Sequence[Bucket]) -> None:
        stream = self._taken[copy.partition]
        for bucket in buckets:
            what = f"{copy} on {by} is given {bucket.number} after {after}"
            demand(bucket.number > after, "input-dup-free", what)
            _demand_none_skipped(stream, after, bucket.number, "input-loss-free", what)
            expected, rows = stream.rows.get(bucket.number, ()), merged(bucket)
            demand(rows == expected, "input-contents", f"{what}: it holds {rows}, not {expected}")
            after = bucket.number


class OutputChecker(Watcher):
    """What engines put out: replicas-agree."""

    def __init__(self, reference: Reference) -> None:
        self._edges = reference.edges

    def produced(self, by: str, copy: Copy, to: Partition, buckets: Sequence[Bucket]) -> None:
        stream = self._edges[copy.partition, to]
        for bucket in buckets:
            rows, expected = bucket.payload or (), stream.rows.get(bucket.number, ())
            what = f"{copy} on {by} made {rows} of bucket {bucket.number} for {to}, not {expected}"
            demand(rows == expected, "replicas-agree", what)


class StateChecker(Watcher):
    """What states hold when they move: state-exact."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference

    def snapshot(self, by: str, copy: Copy, state: CopyState, engine: Snapshot) -> None:
        self._check(f"{copy} on {by} lends", copy, state, engine)

    def installed(self, by: str, copy: Copy, state: CopyState, engine: Snapshot) -> None:
        self._check(f"{copy} on {by} installed", copy, state, engine)

    def _check(self, what: str, copy: Copy, state: CopyState, engine: Snapshot) -> None:
        expected = self._reference.state_at(copy.partition, state.through)
        same = engine == expected
        demand(same, "state-exact", f"{what} {engine} as all input through {state.through}: {expected}")
        for consumer, outlet in state.outlets:
            stream = self._reference.edges[copy.partition, consumer]
            kept = {bucket.number for bucket in outlet.kept}
            needed = [n for n in stream.rows if outlet.gone_through < n <= outlet.produced_through]
            missing = [number for number in needed if number not in kept]
            demand(not missing, "state-exact", f"{what} a state without {missing} for {consumer}")


def _demand_none_skipped(
    stream: ExpectedRows, after: BucketId, number: BucketId, invariant: str, what: str
) -> None:
    missing = stream.next_after(after)
    skipped = missing is not None and missing < number
    demand(not skipped, invariant, f"bucket {missing} has rows and is skipped: {what}")


def checkers(reference: Reference) -> list[Watcher]:
    """All checkers that look at what happens."""
    return [
        DeliveryChecker(reference),
        InputChecker(reference),
        OutputChecker(reference),
        StateChecker(reference),
    ]


__all__ = ["NOTHING", "Violation", "checkers", "demand"]
