"""Writes a process's part of the run's history."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from typing import Any, cast

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.messages import Installed
from understudy.core.view import View
from understudy.engine.interface import Snapshot
from understudy.runtime.gateway.delivery import DeliveredRange
from understudy.runtime.payload import decode, digest
from understudy.runtime.settings import RunSettings


class Recorder:
    def __init__(self, settings: RunSettings, flow: str, process: str) -> None:
        self._process = process
        self._lock = threading.Lock()
        file = settings.history_file(process)
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file.open("a")
        self._handed_through = NOTHING

    def _write(self, kind: str, **facts: Any) -> None:
        line = json.dumps({"at_us": time.time_ns() // 1000, "by": self._process, "kind": kind, **facts})
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()

    def begun(self) -> None:
        self._write("begun")

    def ended(self, *, finished: bool) -> None:
        self._write("ended", finished=finished)

    def note(self, what: str, **facts: Any) -> None:
        if "view" in facts:
            facts["view"] = json.loads(cast(View, facts["view"]).to_json())
        if "bucket" in facts:
            bucket = facts.pop("bucket")
            facts.update(_summary(bucket))
        self._write(what, **facts)

    def reported(self, kind: str, facts: dict[str, Any]) -> None:
        self._write("report", what=kind, **facts)

    def delivered(self, done: DeliveredRange) -> None:
        self._write("delivered", after=done.after, through=done.through, buckets=done.buckets)

    def handed(self, buckets: Sequence[Bucket]) -> None:
        after, self._handed_through = self._handed_through, buckets[-1].number
        self._write(
            "handed",
            after=after,
            through=buckets[-1].number,
            numbers=[b.number for b in buckets if b.payload],
        )

    def produced(self, buckets: Sequence[Bucket]) -> None:
        for bucket in buckets:
            if bucket.payload is not None:
                self._write("produced", **_summary(bucket))

    def snapshot(self, version: int, snapshot: Snapshot, pause_us: int) -> None:
        self._write(
            "snapshot",
            version=version,
            through=snapshot.through,
            pause_us=pause_us,
            bytes=snapshot.size_bytes,
        )

    def installed(self, state: Installed) -> None:
        self._handed_through = state.through
        self._write("installed", version=state.version, through=state.through)


def _summary(bucket: Bucket) -> dict[str, Any]:
    if bucket.payload is None:
        return {"number": bucket.number, "rows": 0, "digest": ""}
    payload = bytes(memoryview(cast(bytes, bucket.payload)))
    rows = sum(table.num_rows for table in decode(payload).values())
    return {"number": bucket.number, "rows": rows, "digest": digest(payload)}
