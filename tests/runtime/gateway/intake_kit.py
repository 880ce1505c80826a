"""An intake behind a port, and rows for it."""

from __future__ import annotations

import queue
from pathlib import Path

import understudy as us
from understudy.core.bucket import BucketId
from understudy.runtime.gateway.intake import Intake
from understudy.runtime.ingest.buckets import SealedBucket
from understudy.runtime.ingest.rows import to_stream, to_table
from understudy.runtime.transport.endpoint import Endpoint
from understudy.runtime.transport.wire import Frame

WIDTH_US = 100_000
PATIENCE_S = 30.0


def make_flow(**options: str) -> us.Flow:
    flow = us.Flow("f", bucket="100 ms")
    for name in ("a", "b"):
        flow.source(name, us.Push("id int, ts timestamp"), time="ts", **options)
    return flow


class Gate:
    """An intake behind a port, and what it sealed."""

    def __init__(self, flow: us.Flow, folder: Path) -> None:
        self.failures: list[BaseException] = []
        self.sealed: queue.Queue[SealedBucket] = queue.Queue()
        self.intake = Intake(flow, folder, self._on_sealed, self.failures.append)
        self.recovered = self.intake.recover()
        self.endpoint = Endpoint()
        self.endpoint.handle("push", self.intake.admit)
        self.endpoint.ready()
        self.intake.start()

    def _on_sealed(self, buckets: list[SealedBucket]) -> None:
        for bucket in buckets:
            self.sealed.put(bucket)

    def client(self) -> us.Client:
        return us.Client(self.endpoint.address, timeout_s=PATIENCE_S)

    def next(self) -> tuple[str, BucketId]:
        bucket = self.sealed.get(timeout=PATIENCE_S)
        return bucket.source, bucket.number

    def end(self) -> None:
        self.intake.end()
        self.endpoint.end()
        assert self.failures == []


def rows(*buckets: int) -> list[dict[str, int]]:
    return [{"id": number, "ts": number * WIDTH_US} for number in buckets]


def push_of(number: int) -> Frame:
    """The first push of a client to source `a`: one row, of this bucket."""
    body = bytes(to_stream(to_table(make_flow().sources["a"], rows(number))))
    return Frame({"kind": "push", "source": "a", "sequence": 0}, (body,))


def close_of(source: str) -> Frame:
    return Frame({"kind": "close", "source": source})
