"""A log with its oracles: every bucket that came out, what a reading of the whole log gives, what is kept."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import understudy as us
from understudy.runtime.ingest.buckets import SealedBucket
from understudy.runtime.ingest.frames import RecordKind, read_frames
from understudy.runtime.ingest.ingest import Ingest
from understudy.runtime.ingest.rereading import LogReader
from understudy.runtime.ingest.rows import to_table
from understudy.runtime.ingest.state import IngestState
from understudy.runtime.payload import encode

WIDTH_US = 100_000


def make_flow(*names: str) -> us.Flow:
    flow = us.Flow("f", bucket="100 ms")
    for name in names or ("s",):
        flow.source(name, us.Push("id int, ts timestamp"), time="ts")
    return flow


def rows(flow: us.Flow, *buckets: int, source: str = "s") -> pa.Table:
    return to_table(flow.sources[source], [{"id": n, "ts": n * WIDTH_US} for n in buckets])


def opened(flow: us.Flow, folder: Path, segment_bytes: int = 64 << 20) -> Ingest:
    ingest = Ingest(flow, folder, sync=False, segment_bytes=segment_bytes)
    ingest.recover()
    return ingest


def commit_and_roll(ingest: Ingest) -> None:
    """Commit, and begin a new segment however little this one holds."""
    ingest._roll_at_bytes = 0
    ingest.commit()


def shown(buckets: list[SealedBucket]) -> list[tuple[str, int, bytes | None]]:
    """Buckets as bytes, in the order they came."""
    return [
        (each.source, each.number, None if each.table is None else encode({each.source: each.table}))
        for each in buckets
    ]


def with_rows(buckets: Iterable[SealedBucket]) -> list[tuple[str, int, bytes | None]]:
    """Those with rows, as bytes: a log gives them again as they were."""
    return shown([each for each in buckets if each.table is not None])


def sealed_by(buckets: Iterable[SealedBucket]) -> dict[str, int]:
    """The last number of each source. Of the buckets without rows before it a log may leave some out."""
    return {each.source: each.number for each in buckets}


def positions(buckets: Iterable[SealedBucket]) -> set[tuple[str, int]]:
    return {(each.source, each.number) for each in buckets}


def of(source: str, buckets: list[SealedBucket], after: int) -> list[SealedBucket]:
    return [each for each in buckets if each.source == source and each.number > after]


def read_all(reader: LogReader, bytes_max: int = 1 << 20) -> list[SealedBucket]:
    """Everything up to the end of what is on disk."""
    out: list[SealedBucket] = []
    while more := reader.read(bytes_max):
        out += more
    return out


def segments(folder: Path) -> list[int]:
    return sorted(int(file.stem) for file in folder.glob("*.wal"))


class Whole(NamedTuple):
    #: Those that are not trimmed.
    buckets: list[SealedBucket]
    #: What is known in the end.
    head: dict[str, Any]
    records: int


def read_whole(flow: us.Flow, folder: Path) -> Whole:
    """The log as every segment from the first one on tells it."""
    state, sealed, records = IngestState(flow), list[SealedBucket](), 0
    for at, number in enumerate(segments(folder)):
        for record in read_frames(folder / f"{number:08d}.wal").records:
            records += 1
            if not at or record.kind is not RecordKind.STATE:
                sealed += state.apply(record)
    kept = [each for each in sealed if each.number > state.trimmed[each.source]]
    return Whole(kept, state.head([]), records)
