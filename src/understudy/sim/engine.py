"""A small engine over buckets: what Spark is to a real node, in plain Python.

What output bucket m holds is a pure function of the input buckets through m, whatever groups they came in.
The dataflow has one operator of each kind that treats state differently:

    rows (key, value) -> filter -> map -+-> running sum per key           state for ever
                                        +-> sum per key and window        state that a boundary closes
                                        +-> join with the bucket before   state that a boundary drops
                                        +-> union

Like an engine with watermarks it lags: having consumed input through k, its output is complete through
k - lag. The rest is state, and moves with a snapshot.

A dense engine puts out every number. A sparse one leaves out empty buckets, and ends each group with the
last complete number, empty or not; so two sparse replicas cut stretches of emptiness differently.
"""

from __future__ import annotations

from collections.abc import Iterable

from understudy.core.bucket import NOTHING, Bucket, BucketId

Row = tuple[int, ...]
Rows = tuple[Row, ...]
Snapshot = tuple[object, ...]

WINDOW_BUCKETS = 4


class SimEngine:
    """Consumes sealed buckets in order; says which output buckets became complete."""

    def __init__(self, *, lag_buckets: int = 1, dense: bool = False) -> None:
        self.lag_buckets = lag_buckets
        self.dense = dense
        self.position: BucketId = NOTHING
        self._sums: dict[int, int] = {}
        self._window: dict[int, int] = {}
        self._before: Rows = ()
        self._lagging: tuple[tuple[BucketId, Rows], ...] = ()

    def advance(self, buckets: Iterable[Bucket]) -> list[Bucket]:
        """Consume a group of input buckets; return the output buckets that it completed."""
        complete: list[tuple[BucketId, Rows]] = []
        for bucket in buckets:
            first = bucket.number if self.position == NOTHING else self.position + 1
            for number in range(first, bucket.number + 1):
                rows = _rows(bucket.payload) if number == bucket.number else ()
                self._lagging += ((number, self._one(number, rows)),)
            self.position = bucket.number
        while len(self._lagging) > self.lag_buckets:
            complete.append(self._lagging[0])
            self._lagging = self._lagging[1:]
        last = complete[-1][0] if complete else None
        return [
            Bucket(number, rows or None, len(rows))
            for number, rows in complete
            if rows or self.dense or number == last
        ]

    def _one(self, number: BucketId, rows: Rows) -> Rows:
        mapped = tuple((key, value * 3 + 1) for key, value in rows if value % 5)
        out: list[Row] = []
        for key, value in mapped:
            self._sums[key] = self._sums.get(key, 0) + value
            self._window[key] = self._window.get(key, 0) + value
        out += [(0, key, self._sums[key]) for key in sorted({key for key, _ in mapped})]
        out += [
            (1, key, value, old) for key, value in mapped for before, old in self._before if before == key
        ]
        self._before = mapped
        if number % WINDOW_BUCKETS == WINDOW_BUCKETS - 1:
            out += [(2, key, total) for key, total in sorted(self._window.items())]
            self._window = {}
        return tuple(sorted(out))

    def snapshot(self) -> Snapshot:
        return (
            self.position,
            tuple(sorted(self._sums.items())),
            tuple(sorted(self._window.items())),
            self._before,
            self._lagging,
        )

    def restore(self, snapshot: Snapshot) -> None:
        position, sums, window, before, lagging = snapshot
        self.position = position  # type: ignore[assignment]
        self._sums = dict(sums)  # type: ignore[call-overload]
        self._window = dict(window)  # type: ignore[call-overload]
        self._before = before  # type: ignore[assignment]
        self._lagging = lagging  # type: ignore[assignment]


def _rows(payload: object | None) -> Rows:
    return payload if isinstance(payload, tuple) else ()
