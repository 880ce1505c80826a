"""A process's part of the run's history (`history.recorder`): where it goes, and how buckets look in it.

The digest of a bucket covers its rows in canonical order: their number, and every column but the
floating-point ones. How additions are grouped shows in the last digits of those, and two replicas may group
differently without disagreeing (docs/engine.md). The history says which columns those are.

A bucket that came from several partitions is shown part by part, each with the digest that its producer noted
down, so that the judge needs no rows to compare them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import cast

import pyarrow as pa

from understudy.core.bucket import Bucket, BucketId
from understudy.engine.digest import float_columns
from understudy.history.recorder import Recorder
from understudy.history.records import Shown, parts_text
from understudy.runtime.payload import Part, decode, rows_and_digest
from understudy.runtime.settings import RunSettings


class RunRecorder(Recorder):
    """What one process of a run notes down. It does nothing if the run keeps no history.

    A process that works for another version of the flow than the first says so, and names the flow's sources
    and sinks as the topology does (`history.recorder`).
    """

    def __init__(
        self,
        settings: RunSettings,
        flow: str,
        process: str,
        *,
        version: int = 1,
        ends: Collection[str] = (),
    ) -> None:
        super().__init__(
            settings.history_file(process) if settings.history else None,
            flow,
            process,
            PayloadLook(),
            version=version,
            ends=ends,
            part_bytes=settings.history_part_bytes,
            total_bytes=settings.history_bytes_max,
        )


class PayloadLook:
    """Looks into payloads as `payload.encode` makes them, and remembers which streams it has seen."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._news: dict[str, tuple[str, ...]] = {}

    def shown(self, bucket: Bucket) -> Shown:
        return shown(bucket, self)

    def rows(self, bucket: Bucket) -> int:
        return rows_in(cast(bytes, bucket.payload))

    def left_out(self) -> Mapping[str, tuple[str, ...]]:
        news, self._news = self._news, {}
        return news

    def saw(self, stream: str, table: pa.Table) -> None:
        if stream not in self._seen:
            self._seen.add(stream)
            if columns := float_columns(table.schema):
                self._news[stream] = columns


def shown(bucket: Bucket, look: PayloadLook | None = None) -> tuple[BucketId, int, str]:
    """A bucket as histories show it: number, rows, digest. Of a bucket made of parts, those with rows."""
    if bucket.payload is None:
        return bucket.number, 0, ""
    if not isinstance(bucket.payload, tuple):
        return bucket.number, *_looked_into(cast(bytes, bucket.payload), look)
    total, digests = 0, {}
    for partition, payload in sorted(cast(tuple[Part, ...], bucket.payload), key=lambda part: part[0]):
        rows, digest = _looked_into(payload, look)
        if rows:
            total += rows
            digests[str(partition)] = digest
    return bucket.number, total, parts_text(digests)


def rows_in(payload: bytes) -> int:
    return sum(table.num_rows for table in decode(payload).values())


def _looked_into(payload: bytes, look: PayloadLook | None) -> tuple[int, str]:
    tables = decode(payload)
    if look is not None:
        for name, table in tables.items():
            look.saw(name, table)
    return rows_and_digest(tables)
