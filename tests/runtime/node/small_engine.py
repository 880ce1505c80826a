"""A small engine with a real folder: it hands every row on, with the count of rows that it has seen so far.

So its output depends on its state, and two copies agree only if all of a state was moved. Its snapshots are
real ones: files and a manifest with their digests, which are checked when an engine starts from them.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.shape.partition import Partition
from understudy.engine.interface import Emit, Output, Snapshot
from understudy.engine.storing import Digests, seal_snapshot, verify_snapshot
from understudy.runtime.ingest.buckets import split, times_us
from understudy.runtime.payload import encode

WIDTH_US = 100_000
#: So that a snapshot is moved in several chunks.
BALLAST_BYTES = 2_500_000


def rows_at(number: BucketId, *keys: int) -> pa.Table:
    """Rows of one bucket."""
    times = [number * WIDTH_US + at for at in range(len(keys))]
    return pa.table({"k": pa.array(keys, pa.int64()), "ts": pa.array(times, pa.timestamp("us", "UTC"))})


def bucket_of_rows(number: BucketId, *keys: int, stream: str = "rows") -> Bucket:
    """A bucket as the merge hands it out: one part."""
    if not keys:
        return Bucket(number)
    payload = encode({stream: rows_at(number, *keys)})
    return Bucket(number, ((Partition(stream), payload),), len(payload))


class SmallEngine:
    """`trouble` raises, by the name of the method, what a test wants to go wrong."""

    def __init__(self, folder: Path, consumers: tuple[Partition, ...]) -> None:
        self.folder = folder
        self.consumers = consumers
        self.trouble: dict[str, Callable[[], None]] = {}
        self.seen = 0
        self.through = NOTHING
        self.steps = 0
        self.stepwise = False
        self.closed = threading.Event()
        self.started_from: Snapshot | None = None
        self.advanced: list[tuple[dict[str, int], BucketId]] = []

    @property
    def rounding(self) -> Mapping[str, tuple[str, ...]]:
        return {}

    @property
    def unbounded(self) -> str | None:
        return None

    def horizon(self) -> BucketId:
        return NOTHING

    def start(self, snapshot: Snapshot | None = None) -> None:
        self._perhaps_fail("start")
        self.folder.mkdir(parents=True, exist_ok=True)
        if snapshot is not None:
            verify_snapshot(snapshot)
            self.seen = int((snapshot.directory / "state" / "seen").read_text())
            self.through = snapshot.through
            self.started_from = snapshot

    def advance(self, inputs: Mapping[str, pa.Table], through: BucketId, emit: Emit) -> None:
        self._perhaps_fail("advance")
        self.advanced.append(({name: table.num_rows for name, table in inputs.items()}, through))
        counted: dict[BucketId, pa.Table] = {}
        for _, table in sorted(inputs.items()):
            for number, rows in split(table, times_us(table, "ts"), WIDTH_US):
                plain = rows.select(["k", "ts"])
                seen = pa.array(np.arange(self.seen, self.seen + plain.num_rows))
                self.seen += plain.num_rows
                known = [counted[number]] if number in counted else []
                counted[number] = pa.concat_tables([*known, plain.append_column("seen", seen)])
        self.through = through
        self.steps += 1
        emit(Output(dict.fromkeys(self.consumers, counted), self.consumers, through))

    def snapshot(self, into: Path) -> Snapshot:
        self._perhaps_fail("snapshot")
        into.mkdir()
        (into / "state").mkdir()
        (into / "state" / "seen").write_text(str(self.seen))
        (into / "empty").touch()
        (into / "ballast").write_bytes(bytes(range(250)) * (BALLAST_BYTES // 250))
        return seal_snapshot(into, {"through": self.through, "output_through": self.through}, Digests())

    def close(self) -> None:
        self.closed.set()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._perhaps_fail("close")

    def _perhaps_fail(self, what: str) -> None:
        if what in self.trouble:
            self.trouble[what]()


def failing(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail
