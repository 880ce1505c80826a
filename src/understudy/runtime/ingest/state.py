"""What ingress knows at one moment, and the one way it changes: by a log record.

Live and after a crash the same records go through the same `apply`, so the same buckets come out. Everything
that depends on a clock or on a choice is decided before, by the owner, and is in the record: an idle source's
boundary is a SEAL record, not a timer.

A STATE record holds the whole of it: positions and clients in its head, rows of open buckets and of buckets
that wait for another source in its body. Buckets that went out are not in it; their segment is kept until
they are trimmed.
"""

from __future__ import annotations

from typing import Any

from understudy.core.bucket import NOTHING
from understudy.core.errors import require
from understudy.flow.errors import FlowError
from understudy.flow.flow import Flow
from understudy.flow.model import Source
from understudy.runtime.ingest.aligner import Aligned, Aligner
from understudy.runtime.ingest.buckets import canonical, split, times_us
from understudy.runtime.ingest.clients import Clients
from understudy.runtime.ingest.frames import Record, RecordKind
from understudy.runtime.ingest.stamper import Judged, Stamper
from understudy.runtime.payload import decode, encode


class IngestState:
    """The stampers, the aligner and the clients of one flow."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self.stampers = {name: Stamper(source, flow.bucket_us) for name, source in flow.sources.items()}
        self.aligner = Aligner(flow.sources)
        self.clients = Clients()
        self.trimmed = NOTHING

    def apply(self, record: Record) -> list[Aligned]:
        """Change by one record. Returns the flow's buckets that it sealed."""
        head = record.head
        match record.kind:
            case RecordKind.PUSH:
                table = decode(record.body)[head["source"]]
                return self.take_in(head, self.stampers[head["source"]].judge(table))
            case RecordKind.SEAL:
                return self._seal(head)
            case RecordKind.TRIM:
                self.trimmed = max(self.trimmed, head["through"])
                return []
            case RecordKind.STATE:
                self._restore(record)
                return []

    def take_in(self, head: dict[str, Any], judged: Judged) -> list[Aligned]:
        """Change by a PUSH record whose rows were judged already."""
        source = head["source"]
        stamper = self.stampers[source]
        sealed = stamper.push(judged, head["arrival_us"])
        self.clients.record(source, head["client"], head["sequence"], head["note"])
        return self.aligner.add(source, sealed, stamper.through)

    def _seal(self, head: dict[str, Any]) -> list[Aligned]:
        out: list[Aligned] = []
        for name, through in head.get("through", {}).items():
            stamper = self.stampers[name]
            out += self.aligner.add(name, stamper.seal_through(through), stamper.through)
        if "flush" in head:
            out += self.aligner.flush(head["flush"])
        return out

    def record(self) -> Record:
        """All of it, as the record that opens a segment."""
        tables = {f"open {name}": stamper.open_rows for name, stamper in self.stampers.items()}
        for name in self.stampers:
            held = self.aligner.held_rows(name)
            if held is not None:
                tables[f"held {name}"] = held
        return Record(RecordKind.STATE, self.head(), encode(tables))

    def head(self) -> dict[str, Any]:
        return {
            "flow": _identity(self._flow),
            "sources": {
                name: [stamper.through, stamper.newest_us, stamper.arrival_us, stamper.late]
                for name, stamper in self.stampers.items()
            },
            "clients": self.clients.state(),
            "emitted": self.aligner.emitted,
            "sealed": self.aligner.sealed,
            "trimmed": self.trimmed,
        }

    def _restore(self, record: Record) -> None:
        _require_same_flow(self._flow, record.head["flow"])
        tables = decode(record.body)
        require(set(record.head["sources"]) == set(self.stampers), "a state lacks a source of its flow")
        self.aligner.emitted, self.aligner.sealed = record.head["emitted"], record.head["sealed"]
        for name, stamper in self.stampers.items():
            stamper.through, stamper.newest_us, stamper.arrival_us, stamper.late = record.head["sources"][
                name
            ]
            stamper.hold(tables[f"open {name}"])
            held = tables.get(f"held {name}")
            time = self._flow.sources[name].time
            cut = [] if held is None else split(held, times_us(held, time), self._flow.bucket_us)
            sealed = [(number, canonical([rows], time)) for number, rows in cut]
            self.aligner.hold(name, sealed, stamper.through)
        self.clients.restore(record.head["clients"])
        self.trimmed = record.head["trimmed"]


def _identity(flow: Flow) -> dict[str, Any]:
    """What must not change under a log: it decides which bucket a logged row belongs to."""
    return {
        "bucket_us": flow.bucket_us,
        "sources": {name: _source_identity(source) for name, source in flow.sources.items()},
    }


def _source_identity(source: Source) -> list[Any]:
    return [str(source.arrow_schema), source.time, source.late, source.lateness_us]


def _require_same_flow(flow: Flow, logged: dict[str, Any]) -> None:
    now = _identity(flow)
    if now == logged:
        return
    if now["bucket_us"] != logged["bucket_us"]:
        changed = "its bucket width"
    elif set(now["sources"]) != set(logged["sources"]):
        changed = "its sources"
    else:
        name = next(name for name in now["sources"] if now["sources"][name] != logged["sources"][name])
        changed = f"the schema, time or lateness of its source {name!r}"
    raise FlowError(
        f"flow {flow.name!r} is not the one whose run this is: {changed} changed since it began. Undo that "
        "change, or start a new run in a new folder."
    )
