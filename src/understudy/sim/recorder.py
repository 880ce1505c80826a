"""Writes what a simulated world observes as a history, the same that real processes write."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from understudy.core.bucket import Bucket
from understudy.core.view import View
from understudy.history.records import (
    AttachedRecord,
    DeliveredRecord,
    DetachedRecord,
    FaultRecord,
    FencedRecord,
    HandedRecord,
    InstalledRecord,
    ProducedRecord,
    Record,
    SealedRecord,
    SenderRecord,
    Shown,
    SnapshotRecord,
    SuspectedRecord,
    ViewRecord,
)
from understudy.history.writing import HistoryWriter


def digest(bucket: Bucket) -> str:
    return hashlib.blake2b(repr(bucket.payload).encode(), digest_size=8).hexdigest()


def _shown(bucket: Bucket) -> Shown:
    return bucket.number, bucket.size_bytes, digest(bucket)


class Recorder:
    """Called in place of `World.observe`."""

    def __init__(self, writer: HistoryWriter, now_us: Callable[[], int]) -> None:
        self._writer = writer
        self._now_us = now_us

    def __call__(self, by: str, record: str, /, **facts: Any) -> None:
        self._writer.write(self._record(self._now_us(), by, record, facts))

    def _record(self, at_us: int, by: str, record: str, facts: dict[str, Any]) -> Record:
        match record:
            case "sealed":
                return SealedRecord(at_us, by, *_shown(facts["bucket"]))
            case "produced":
                return ProducedRecord(at_us, by, *_shown(facts["bucket"]))
            case "handed":
                buckets: Sequence[Bucket] = facts["buckets"]
                numbers = tuple(bucket.number for bucket in buckets if not bucket.empty)
                return HandedRecord(at_us, by, facts["after"], buckets[-1].number, numbers)
            case "delivered":
                shown = tuple(_shown(bucket) for bucket in facts["buckets"])
                return DeliveredRecord(at_us, by, facts["after"], shown[-1][0], shown)
            case "view":
                view: View = facts["view"]
                seats = tuple((s.value, x.node, x.epoch, x.status.value) for s, x in view.seats.items())
                return ViewRecord(at_us, by, view.epoch, seats)
            case "suspected":
                return SuspectedRecord(at_us, by, facts["node"])
            case "fenced":
                return FencedRecord(at_us, by)
            case "attached":
                return AttachedRecord(at_us, by, facts["slot"].value, facts["end"])
            case "detached":
                return DetachedRecord(at_us, by, facts["slot"].value, facts["end"])
            case "sender":
                return SenderRecord(at_us, by, facts["slot"].value, facts["through"])
            case "snapshot":
                return SnapshotRecord(at_us, by, facts["version"], facts["through"], 0, 0)
            case "installed":
                return InstalledRecord(at_us, by, facts["version"], facts["through"])
            case "fault":
                return FaultRecord(at_us, by, facts["what"], facts["target"])
        raise TypeError(f"no record is called {record}")
