"""One checker per invariant. Each compares one step of the world with the reference.

The reference is one engine fed with the whole input in one go: nothing failed, nothing was cut. Inputs are
fixed before a run begins, so what every output bucket must hold is known in advance, and a checker needs no
memory of its own: the position of a sink, an engine or a buffer says what must come next.

    loss-free        no bucket with rows is missing from what the sink holds
    dup-free         no bucket reaches the sink twice
    in-order         numbers at the sink rise
    contents         the sink holds the reference's rows
    input-loss-free  no replica misses a bucket with rows
    input-dup-free   no replica is handed a bucket twice
    replicas-agree   every replica puts out the reference's rows
    bounded          buffers stay within their limits
    sound            every machine's own `check` passes, and none rejects what another one sent
    converged        after healing: all delivered, all slots active again, buffers drained
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.sim.engine import SimEngine


class Violation(AssertionError):
    """An invariant does not hold. `invariant` is its name; the message tells what showed it."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant
        self.what = what


class Reference:
    """What must be delivered, known in advance."""

    def __init__(self, inputs: Sequence[Bucket], *, lag_buckets: int = 1) -> None:
        self.inputs = tuple(inputs)
        engine = SimEngine(lag_buckets=lag_buckets, dense=True)
        outputs = engine.advance(self.inputs)
        self.output_through = outputs[-1].number if outputs else NOTHING
        self._input = {bucket.number: bucket.payload for bucket in self.inputs if not bucket.empty}
        self._output = {bucket.number: bucket.payload for bucket in outputs if not bucket.empty}
        self._input_numbers = sorted(self._input)
        self._output_numbers = sorted(self._output)

    def delivered(self, position: BucketId, bucket: Bucket) -> None:
        """Check the bucket that the sink is about to hold after everything through `position`."""
        if bucket.number == position:
            raise Violation("dup-free", f"bucket {bucket.number} is delivered a second time")
        if bucket.number < position:
            known = bucket.empty or bucket.number in self._output
            raise Violation(
                "dup-free" if known else "in-order", f"bucket {bucket.number} is delivered after {position}"
            )
        missing = _between(self._output_numbers, position, bucket.number)
        if missing is not None:
            raise Violation(
                "loss-free",
                f"bucket {missing} has rows but is skipped: {bucket.number} is delivered after {position}",
            )
        if bucket.payload != self._output.get(bucket.number):
            expected = self._output.get(bucket.number)
            raise Violation("contents", f"bucket {bucket.number} holds {bucket.payload}, not {expected}")

    def handed(self, by: str, position: BucketId, buckets: Iterable[Bucket]) -> None:
        """Check the group that a replica's engine is about to take after everything through `position`."""
        for bucket in buckets:
            if bucket.number <= position:
                raise Violation("input-dup-free", f"{by} is handed {bucket.number} after {position}")
            missing = _between(self._input_numbers, position, bucket.number)
            if missing is not None:
                raise Violation(
                    "input-loss-free", f"{by} never got bucket {missing}: {bucket.number} after {position}"
                )
            position = bucket.number

    def produced(self, by: str, bucket: Bucket) -> None:
        if bucket.payload != self._output.get(bucket.number):
            expected = self._output.get(bucket.number)
            raise Violation(
                "replicas-agree", f"{by} made {bucket.payload} of bucket {bucket.number}, not {expected}"
            )


def _between(numbers: Sequence[BucketId], after: BucketId, before: BucketId) -> BucketId | None:
    """The first of the numbers that lies strictly between the two."""
    at = bisect_right(numbers, after)
    return numbers[at] if at < len(numbers) and numbers[at] < before else None


def bounded(what: str, held: int, limit: int) -> None:
    if held > limit:
        raise Violation("bounded", f"{what} holds {held} buckets, at most {limit} are allowed")
