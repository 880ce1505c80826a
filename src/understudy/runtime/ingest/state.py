"""The state of the ingest at one moment. It changes in one way only: by a log record.

Live and after a crash the same records go through the same `apply`, so the same buckets come out. Everything
that depends on a clock or on a choice is decided before, by the owner, and is in the record: an idle source's
boundary is a SEAL record, not a timer.

A STATE record holds all of the state: positions and clients in its head, the rows of open buckets in its
body. Sealed buckets with rows are not in it; their segment is kept until they are forgotten. So its head also
says which segments there are before it, and how far the rows of each of them go. The last bucket of a source
that has no rows is made again from its position.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.errors import require
from understudy.flow.errors import EnvironmentFailed, FlowError
from understudy.flow.flow import Flow
from understudy.flow.model import Source
from understudy.runtime.ingest.buckets import SealedBucket
from understudy.runtime.ingest.clients import Clients
from understudy.runtime.ingest.frames import Record, RecordKind
from understudy.runtime.ingest.rows import read_stream
from understudy.runtime.ingest.stamper import Judged, Stamper
from understudy.runtime.payload import decode, encode

#: What the records of a log look like; a log of another format cannot be read.
_FORMAT = 4


class IngestState:
    """The stampers and the clients of one flow, and how far each source is trimmed and forgotten.

    Every live copy has what is trimmed; no saved snapshot needs what is forgotten, either.
    """

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self.stampers = {name: Stamper(source, flow.bucket_us) for name, source in flow.sources.items()}
        self.clients = Clients()
        self.trimmed: dict[str, BucketId] = dict.fromkeys(flow.sources, NOTHING)
        self.forgotten: dict[str, BucketId] = dict.fromkeys(flow.sources, NOTHING)

    @property
    def through(self) -> dict[str, BucketId]:
        """The last sealed bucket of each source."""
        return {name: stamper.through for name, stamper in self.stampers.items()}

    @property
    def last_rows(self) -> dict[str, BucketId]:
        """The last sealed bucket with rows of each source."""
        return {name: stamper.last_rows for name, stamper in self.stampers.items()}

    def apply(self, record: Record) -> list[SealedBucket]:
        """Change by one record. Returns the buckets that it sealed; of a STATE record, the boundaries."""
        head = record.head
        match record.kind:
            case RecordKind.PUSH:
                table = read_stream(self._flow.sources[head["source"]], record.body)
                judged = self.stampers[head["source"]].judge(table, head["arrival_us"])
                return self.take_in(head, judged)
            case RecordKind.SEAL:
                return self._seal(head["through"])
            case RecordKind.TRIM:
                self.trimmed[head["source"]] = max(self.trimmed[head["source"]], head["through"])
                return []
            case RecordKind.FORGET:
                self.forgotten[head["source"]] = max(self.forgotten[head["source"]], head["through"])
                return []
            case RecordKind.STATE:
                self._restore(record)
                return [bucket for stamper in self.stampers.values() for bucket in stamper.boundary]

    def take_in(self, head: dict[str, Any], judged: Judged) -> list[SealedBucket]:
        """Change by a PUSH record whose rows were judged already."""
        source = head["source"]
        self.clients.record(source, head["client"], head["sequence"], head["note"])
        return self.stampers[source].push(judged)

    def _seal(self, through: dict[str, BucketId]) -> list[SealedBucket]:
        return [
            bucket for name, number in through.items() for bucket in self.stampers[name].seal_through(number)
        ]

    def record(self, segments: list[Any]) -> Record:
        """All of it, as the record that opens a segment; `segments` describes those before it."""
        tables = {name: stamper.open_rows for name, stamper in self.stampers.items()}
        return Record(RecordKind.STATE, self.head(segments), encode(tables))

    def head(self, segments: list[Any]) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "flow": _identity(self._flow),
            "sources": {
                name: {
                    "through": stamper.through,
                    "last_rows": stamper.last_rows,
                    "newest_us": stamper.newest_us,
                    "late": stamper.late,
                    "trimmed": self.trimmed[name],
                    "forgotten": self.forgotten[name],
                }
                for name, stamper in self.stampers.items()
            },
            "segments": segments,
            "clients": self.clients.state(),
        }

    def _restore(self, record: Record) -> None:
        require_readable(self._flow, record.head)
        tables = decode(record.body)
        require(set(record.head["sources"]) == set(self.stampers), "a state lacks a source of its flow")
        for name, stamper in self.stampers.items():
            facts = record.head["sources"][name]
            restore_stamper(stamper, facts, tables[name])
            self.trimmed[name], self.forgotten[name] = facts["trimmed"], facts["forgotten"]
        self.clients.restore(record.head["clients"])


def restore_stamper(stamper: Stamper, facts: dict[str, Any], open_rows: pa.Table) -> None:
    """Give a new stamper what a STATE record says of its source."""
    stamper.through, stamper.last_rows = facts["through"], facts["last_rows"]
    stamper.newest_us, stamper.late = facts["newest_us"], facts["late"]
    stamper.hold(open_rows)


def require_readable(flow: Flow, head: dict[str, Any]) -> None:
    """Refuse the head of a STATE record that this version cannot read, or that is of another flow."""
    if head.get("format") != _FORMAT:
        raise EnvironmentFailed(
            "The run's log was written by another version of Understudy, which has another format. "
            "Finish the run with that version, or start a new run in a new folder."
        )
    _require_same_flow(flow, head["flow"])


def _identity(flow: Flow) -> dict[str, Any]:
    """What must not change under a log: it decides which bucket a logged row belongs to."""
    return {
        "bucket_us": flow.bucket_us,
        "sources": {name: _source_identity(source) for name, source in flow.sources.items()},
    }


def _source_identity(source: Source) -> list[Any]:
    return [str(source.arrow_schema), source.time, source.late, source.lateness_us, source.ahead_us]


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
