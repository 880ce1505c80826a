"""The history of a run: what happened, one JSON object a line. The simulator and real runs write the same.

The first line is a header with the format's version and the flow's name. Every other line is one record:
its kind, when (`at_us`, the writer's own clock), who (`by`), and what. One run may have several files, one
per process. Nobody trusts a clock to order records of different processes: what matters is ordered by
numbers and epochs that the records carry.

Where a process is one replica of the whole flow (policies `none` and `pair`), `by` says who did it. A process
of a partitioned flow holds copies of many partitions: there `of` names the copy, "sessions/0:PRIM", and `to`
the partition that output was made for, "stats/1". The ingress of such a flow is a producer like any other,
"<ingress>/0:PRIM", and what goes to the sinks was made for "<egress>/0". A delivered bucket is put together
from parts, and its digest tells them apart: "stats/0=<digest>,stats/2=<digest>" (`parts_text`).

A writer that is killed leaves at most its last line cut. `HistoryWriter` repairs that when it appends to an
existing file: a last line without its end is removed. `read` is strict about everything else: a line that is
not a record is named by number, with the reason.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TextIO

from understudy.core.bucket import BucketId

FORMAT_VERSION = 2

#: A bucket as a history shows it: number, rows, digest.
Shown = tuple[int, int, str]


class HistoryError(Exception):
    """A history cannot be read. The message names the line and the reason."""


@dataclass(frozen=True, slots=True)
class Header:
    kind: ClassVar[str] = "history"
    version: int
    flow: str


@dataclass(frozen=True, slots=True)
class _Record:
    kind: ClassVar[str]
    at_us: int
    by: str


@dataclass(frozen=True, slots=True)
class SealedRecord(_Record):
    """The gateway sealed an input bucket."""

    kind: ClassVar[str] = "sealed"
    number: BucketId
    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class HandedRecord(_Record):
    """A replica's engine took input; `numbers` are those of the buckets that have rows."""

    kind: ClassVar[str] = "handed"
    after: BucketId
    through: BucketId
    numbers: tuple[int, ...]
    of: str = ""


@dataclass(frozen=True, slots=True)
class ProducedRecord(_Record):
    """A replica's engine put out a bucket; in a partitioned flow, the share of it that one consumer takes."""

    kind: ClassVar[str] = "produced"
    number: BucketId
    rows: int
    digest: str
    of: str = ""
    to: str = ""


@dataclass(frozen=True, slots=True)
class ArrivedRecord(_Record):
    """Output of a partition reached egress: everything through this number, of which so many rows are new."""

    kind: ClassVar[str] = "arrived"
    partition: str
    through: BucketId
    rows: int


@dataclass(frozen=True, slots=True)
class DeliveredRecord(_Record):
    """The sink holds these buckets. It held everything through `after` before."""

    kind: ClassVar[str] = "delivered"
    after: BucketId
    through: BucketId
    buckets: tuple[Shown, ...]


@dataclass(frozen=True, slots=True)
class ViewRecord(_Record):
    """The controller's decision; a seat is slot (in a partitioned flow, copy), node, seat epoch, status."""

    kind: ClassVar[str] = "view"
    epoch: int
    seats: tuple[tuple[str, str, int, str], ...]


@dataclass(frozen=True, slots=True)
class SuspectedRecord(_Record):
    kind: ClassVar[str] = "suspected"
    node: str


@dataclass(frozen=True, slots=True)
class FencedRecord(_Record):
    """`by` found that it had been declared dead."""

    kind: ClassVar[str] = "fenced"


@dataclass(frozen=True, slots=True)
class AttachedRecord(_Record):
    kind: ClassVar[str] = "attached"
    slot: str
    end: str


@dataclass(frozen=True, slots=True)
class DetachedRecord(_Record):
    kind: ClassVar[str] = "detached"
    slot: str
    end: str


@dataclass(frozen=True, slots=True)
class SenderRecord(_Record):
    """Egress turned to this slot, having received everything through a number."""

    kind: ClassVar[str] = "sender"
    slot: str
    through: BucketId


@dataclass(frozen=True, slots=True)
class SnapshotRecord(_Record):
    kind: ClassVar[str] = "snapshot"
    version: int
    through: BucketId
    pause_us: int
    bytes: int
    of: str = ""


@dataclass(frozen=True, slots=True)
class InstalledRecord(_Record):
    kind: ClassVar[str] = "installed"
    version: int
    through: BucketId
    of: str = ""


@dataclass(frozen=True, slots=True)
class FaultRecord(_Record):
    """Something was made to fail on purpose."""

    kind: ClassVar[str] = "fault"
    what: str
    target: str


@dataclass(frozen=True, slots=True)
class BegunRecord(_Record):
    """A process began. A gateway that restarts begins again."""

    kind: ClassVar[str] = "begun"


@dataclass(frozen=True, slots=True)
class EndedRecord(_Record):
    """A process ended by its own will, with nothing left to do."""

    kind: ClassVar[str] = "ended"


Record = (
    SealedRecord
    | HandedRecord
    | ProducedRecord
    | ArrivedRecord
    | DeliveredRecord
    | ViewRecord
    | SuspectedRecord
    | FencedRecord
    | AttachedRecord
    | DetachedRecord
    | SenderRecord
    | SnapshotRecord
    | InstalledRecord
    | FaultRecord
    | BegunRecord
    | EndedRecord
)
_KINDS: dict[str, type[Any]] = {each.kind: each for each in typing.get_args(Record)}


def partition_of(copy: str) -> str:
    """The partition of a copy by their names; "" for the replica of a whole flow."""
    return copy.rpartition(":")[0]


def parts_text(digests: Mapping[str, str]) -> str:
    """The digest of a bucket made of parts, from theirs by partition, in the order given."""
    return ",".join(f"{partition}={digest}" for partition, digest in digests.items())


def parts_of(text: str) -> list[tuple[str, str]]:
    """The partitions and digests that `parts_text` joined. Raises `ValueError` if the text is not such."""
    parts = [tuple(each.split("=")) for each in text.split(",")] if text else []
    if any(len(part) != 2 or not all(part) for part in parts):
        raise ValueError(f"{text!r} does not list parts")
    return [(partition, digest) for partition, digest in parts]


def line(record: Header | Record) -> str:
    """The record as one line of a history, without its end."""
    facts = {each.name: getattr(record, each.name) for each in fields(record)}
    return json.dumps({"kind": record.kind, **facts}, separators=(",", ":"))


def parsed(text: str) -> Header | Record:
    """The record that `line` wrote. Raises `ValueError` with the reason."""
    whole = json.loads(text)
    if not isinstance(whole, dict):
        raise ValueError("not an object")  # noqa: TRY004
    kind = Header if whole.get("kind") == Header.kind else _KINDS.get(str(whole.get("kind")))
    if kind is None:
        raise ValueError(f"unknown kind {whole.get('kind')!r}")
    del whole["kind"]
    hints = {each.name: typing.get_type_hints(kind)[each.name] for each in fields(kind)}
    if whole.keys() != hints.keys():
        raise ValueError(f"a {kind.kind} record has the fields {sorted(hints)}, not {sorted(whole)}")
    return kind(**{name: _typed(whole[name], hint, name) for name, hint in hints.items()})


def _typed(value: Any, hint: Any, name: str) -> Any:
    """The value, checked against its type; JSON's lists become tuples."""
    if isinstance(hint, types.GenericAlias):
        if not isinstance(value, list):
            raise ValueError(f"{name} is {value!r}, not a list")  # noqa: TRY004
        inner = typing.get_args(hint)
        if inner[-1] is Ellipsis:
            return tuple(_typed(each, inner[0], name) for each in value)
        if len(inner) != len(value):
            raise ValueError(f"{name} holds {value!r}, which has not {len(inner)} parts")
        return tuple(_typed(each, part, name) for each, part in zip(value, inner, strict=True))
    if type(value) is not hint:
        raise ValueError(f"{name} is {value!r}, not {hint.__name__}")
    return value


class HistoryWriter:
    """Appends records to a text stream. It opens, flushes and closes nothing.

    A stream that already holds a history must be readable and seekable (mode "r+" or "a+"): a last line that
    was cut is removed first, and the header is not written again.
    """

    def __init__(self, stream: TextIO, flow: str) -> None:
        self._stream = stream
        if not self._repaired():
            self._write(Header(FORMAT_VERSION, flow))

    def write(self, record: Record) -> None:
        self._write(record)

    def _write(self, record: Header | Record) -> None:
        self._stream.write(line(record) + "\n")

    def _repaired(self) -> bool:
        """Remove a torn last line; whether a header is there."""
        stream = self._stream
        if not (stream.seekable() and stream.readable()):
            return False
        stream.seek(0)
        whole_until, begun = stream.tell(), False
        while text := stream.readline():
            if not text.endswith("\n"):
                stream.seek(whole_until)
                stream.truncate()
                break
            whole_until, begun = stream.tell(), True
        stream.seek(whole_until)
        return begun


def read(lines: Iterable[str], name: str = "the history") -> Iterator[Header | Record]:
    """The header, then every record. Raises `HistoryError` with the line's number and the reason."""
    number = 0
    for number, text in enumerate(lines, 1):
        if not text.endswith("\n"):
            raise HistoryError(f"{name} is cut in the middle at line {number}: {text[:80]!r}")
        try:
            record = parsed(text)
        except ValueError as error:
            raise HistoryError(f"{name}, line {number}: {error}") from error
        if isinstance(record, Header) != (number == 1):
            where = "does not begin with a header" if number == 1 else f"has a second header at line {number}"
            raise HistoryError(f"{name} {where}")
        if isinstance(record, Header) and record.version != FORMAT_VERSION:
            raise HistoryError(f"{name} has format {record.version}; this reads format {FORMAT_VERSION}")
        yield record
    if number == 0:
        raise HistoryError(f"{name} is empty")
