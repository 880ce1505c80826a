"""A small engine over buckets: what Spark is to a real node, in plain Python.

The contents of output bucket m are a pure function of the input buckets through m, however those were
grouped. The engine has one operator of each kind that treats state differently:

    rows (key, value) -+-> running sum per key       state for ever
                       +-> sum per key and window    state that a boundary closes

Every sum goes into the rows that leave, keys included, so a bucket that is lost, repeated or out of order
anywhere changes all that comes after it. Like an engine with watermarks it lags: having consumed input
through k, its output is complete through k - lag. The rest is state, and moves with a snapshot.

Each consumer segment gets every row, at the partition that the row's key belongs to. Empty buckets are left
out, and each group ends with the last complete number, empty or not; so two replicas cut stretches of
emptiness differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.shape.partition import Partition

Row = tuple[int, int]
Rows = tuple[Row, ...]
Shares = tuple[tuple[Partition, tuple[Bucket, ...]], ...]
#: Position, sums, the open window with its sums, and the output that lags.
Snapshot = tuple[BucketId, tuple[Row, ...], int | None, tuple[Row, ...], tuple[tuple[BucketId, Rows], ...]]

WINDOW_BUCKETS = 4


class Dealing:
    """Which of its consumers' partitions gets a row."""

    def __init__(self, consumers: Iterable[Partition]) -> None:
        self._segments = [tuple(each) for _, each in groupby(sorted(consumers), key=lambda p: p.name)]

    def deal(self, rows: Rows) -> dict[Partition, Rows]:
        dealt: dict[Partition, list[Row]] = {}
        for partitions in self._segments:
            for row in rows:
                dealt.setdefault(partitions[row[0] % len(partitions)], []).append(row)
        return {partition: tuple(own) for partition, own in dealt.items()}

    def shares(self, buckets: Iterable[tuple[BucketId, Rows]], through: BucketId) -> Shares:
        """Every consumer's run of buckets: those with rows for it, then through this number."""
        runs: dict[Partition, list[Bucket]] = {p: [] for each in self._segments for p in each}
        for number, rows in buckets:
            for partition, own in self.deal(rows).items():
                runs[partition].append(Bucket(number, own, len(own)))
        for run in runs.values():
            if not run or run[-1].number < through:
                run.append(Bucket(through))
        return tuple((partition, tuple(run)) for partition, run in runs.items())


class SimEngine:
    """Consumes sealed buckets in order; puts out what became complete."""

    def __init__(self, dealing: Dealing, lag_buckets: int) -> None:
        self.dealing = dealing
        self.lag_buckets = lag_buckets
        self.position: BucketId = NOTHING
        self._sums: dict[int, int] = {}
        self._window: int | None = None
        self._window_sums: dict[int, int] = {}
        self._lagging: tuple[tuple[BucketId, Rows], ...] = ()

    @property
    def complete(self) -> BucketId:
        """Output is complete through this number."""
        return self.position - self.lag_buckets if self.position > NOTHING else NOTHING

    def advance(self, buckets: Iterable[Bucket]) -> Shares:
        """Consume a group of merged input buckets; return the output that it completed."""
        before, made = self.complete, list(self._lagging)
        for bucket in buckets:
            made += self._one(bucket.number, merged(bucket))
            self.position = bucket.number
        cut = sum(number <= self.complete for number, _ in made)
        self._lagging = tuple(made[cut:])
        return self.dealing.shares(made[:cut], self.complete) if self.complete > before else ()

    def _one(self, number: BucketId, rows: Rows) -> Iterator[tuple[BucketId, Rows]]:
        if self._window is not None and _end_of(self._window) < number:
            yield _end_of(self._window), self._closed()
        out: list[Row] = []
        for key, value in rows:
            self._window = number // WINDOW_BUCKETS
            self._sums[key] = total = self._sums.get(key, 0) + value
            self._window_sums[key] = self._window_sums.get(key, 0) + value
            out.append(((key * 7 + total) % 11, total % 101))
        if self._window is not None and _end_of(self._window) == number:
            out += self._closed()
        if out:
            yield number, tuple(sorted(out))

    def _closed(self) -> Rows:
        rows = tuple(sorted((key, total % 101 + 200) for key, total in self._window_sums.items()))
        self._window, self._window_sums = None, {}
        return rows

    def snapshot(self) -> Snapshot:
        sums, window = sorted(self._sums.items()), sorted(self._window_sums.items())
        return self.position, tuple(sums), self._window, tuple(window), self._lagging

    def restore(self, snapshot: Snapshot) -> None:
        self.position, sums, self._window, window, self._lagging = snapshot
        self._sums, self._window_sums = dict(sums), dict(window)


def merged(bucket: Bucket) -> Rows:
    """The rows of a bucket as a consumer's merge hands it on, in canonical order."""
    parts = bucket.payload if isinstance(bucket.payload, tuple) else ()
    return tuple(sorted(row for _, rows in parts for row in rows))


def _end_of(window: int) -> BucketId:
    """The last number of a window."""
    return (window + 1) * WINDOW_BUCKETS - 1
