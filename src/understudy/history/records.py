"""The history of a run: what happened, one JSON object a line.

A header comes first: the format's version, the flow's name, whose history it is and which part of it. Every
other line is one record: its kind, when (`at_us`, the writer's own clock), who (`by`), and what. A process
writes a header when it begins and at the head of every further part. No clock orders records of different
processes: what matters is ordered by numbers and epochs that the records carry.

`of` names the copy that a record is about, "sessions/0:1", and `to` the partition that output was made for,
"stats/1". A source is a producer like any other, "packets/0:0", and output for a sink was made for
"sink:stats/0". A delivered bucket is put together from parts, and its digest tells them apart:
"stats/0=<digest>,stats/2=<digest>" (`parts_text`).

**Versions.** While a flow is upgraded, two versions of its code run side by side, each with partitions of its
own, which have the same names. Version 1 is recorded under these names. From version 2 on the version is part
of a segment's name (`versioned`): "sessions@2/0" and its copy "sessions@2/0:1". The names of sources and
sinks have no version, since the versions share them: "packets/0:0" produces for "sessions/0" and for
"sessions@2/0", and both stats/0 and stats@2/0 produce for "sink:stats/0". A sink takes the output of one
version at a time, so a delivery is of one version. The record says of which, and its digests name the parts
without it: "stats/0" in a delivery of version 2 is what "stats@2/0" produced. Epochs of views are counted for
every version by itself. No two versions of a run have one number, also if one of them was taken back.

How files are cut into parts and what becomes of a damaged line: see `writing` and `reading`.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar

from understudy.core.bucket import NOTHING, BucketId

FORMAT_VERSION = 5
FORMATS_READ = (5,)

_VERSION = re.compile(r"@([0-9]{1,9})(/[^/]*)$")

#: A bucket as a history shows it: number, rows, digest.
Shown = tuple[int, int, str]


class HistoryError(Exception):
    """A history cannot be read. The message names the line and the reason."""


@dataclass(frozen=True, slots=True)
class Header:
    """A process begins, or goes on in a further part of its history."""

    kind: ClassVar[str] = "history"
    version: int
    flow: str
    process: str = ""
    part: int = 1
    begins: bool = True
    """Whether the process begins here. If not, this part follows on the one before it."""
    before: BucketId = NOTHING
    """No record of an earlier part is about a bucket with a higher number."""
    epochs: tuple[tuple[int, int], ...] = ()
    """The newest view of every version in earlier parts: version and epoch."""


@dataclass(frozen=True, slots=True)
class _Record:
    kind: ClassVar[str]
    at_us: int
    by: str


@dataclass(frozen=True, slots=True)
class SealedRecord(_Record):
    """A source sealed a bucket that has rows."""

    kind: ClassVar[str] = "sealed"
    source: str
    number: BucketId
    rows: int


@dataclass(frozen=True, slots=True)
class HandedRecord(_Record):
    """A copy's engine took input; `numbers` are those of the buckets that have rows."""

    kind: ClassVar[str] = "handed"
    after: BucketId
    through: BucketId
    numbers: tuple[int, ...]
    of: str


@dataclass(frozen=True, slots=True)
class ProducedRecord(_Record):
    """A source or a copy's engine put out a bucket: the share of it that one consumer takes."""

    kind: ClassVar[str] = "produced"
    number: BucketId
    rows: int
    digest: str
    of: str
    to: str


@dataclass(frozen=True, slots=True)
class ArrivedRecord(_Record):
    """Output of a partition reached a sink: everything through this number, of which so many rows are new."""

    kind: ClassVar[str] = "arrived"
    partition: str
    through: BucketId
    rows: int


@dataclass(frozen=True, slots=True)
class DeliveredRecord(_Record):
    """This sink holds these buckets. It held everything through `after` before."""

    kind: ClassVar[str] = "delivered"
    sink: str
    after: BucketId
    through: BucketId
    buckets: tuple[Shown, ...]
    version: int = 1
    """The version of the flow whose output this is. The parts in the digests are that version's."""


@dataclass(frozen=True, slots=True)
class ViewRecord(_Record):
    """The controller's decision; a seat is copy, node, seat epoch, status."""

    kind: ClassVar[str] = "view"
    epoch: int
    seats: tuple[tuple[str, str, int, str], ...]
    version: int = 1
    """The version of the flow whose copies are seated. Its epochs are counted by themselves."""


@dataclass(frozen=True, slots=True)
class SuspectedRecord(_Record):
    kind: ClassVar[str] = "suspected"
    node: str


@dataclass(frozen=True, slots=True)
class SenderRecord(_Record):
    """The sinks take this copy's output from now on."""

    kind: ClassVar[str] = "sender"
    copy: str


@dataclass(frozen=True, slots=True)
class SnapshotRecord(_Record):
    kind: ClassVar[str] = "snapshot"
    version: int
    through: BucketId
    pause_us: int
    bytes: int
    of: str


@dataclass(frozen=True, slots=True)
class InstalledRecord(_Record):
    kind: ClassVar[str] = "installed"
    version: int
    through: BucketId
    of: str


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


@dataclass(frozen=True, slots=True)
class LeftOutRecord(_Record):
    """Digests of this stream do not cover the values of these columns."""

    kind: ClassVar[str] = "left-out"
    stream: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MissedRecord(_Record):
    """The process did more than could be written: so many records are missing here."""

    kind: ClassVar[str] = "missed"
    records: int


@dataclass(frozen=True, slots=True)
class StoppedRecord(_Record):
    """The history could not be written any more, and the process went on without."""

    kind: ClassVar[str] = "stopped"
    why: str


Record = (
    SealedRecord
    | HandedRecord
    | ProducedRecord
    | ArrivedRecord
    | DeliveredRecord
    | ViewRecord
    | SuspectedRecord
    | SenderRecord
    | SnapshotRecord
    | InstalledRecord
    | FaultRecord
    | BegunRecord
    | EndedRecord
    | LeftOutRecord
    | MissedRecord
    | StoppedRecord
)


def partition_of(copy: str) -> str:
    """The partition of a copy by their names."""
    return copy.rpartition(":")[0]


def versioned(partition: str, version: int) -> str:
    """The name under which a version of the flow records this partition of a segment."""
    if version == 1:
        return partition
    segment, slash, index = partition.rpartition("/")
    return f"{segment}@{version}{slash}{index}"


def version_of(partition: str) -> int:
    """The version of the flow that a partition of a segment belongs to, by its name."""
    if "@" not in partition:
        # The usual case: this is asked once for every bucket of a run.
        return 1
    found = _VERSION.search(partition)
    return 1 if found is None else int(found[1])


def unversioned(partition: str) -> str:
    """The partition's name without a version."""
    return _VERSION.sub(r"\2", partition)


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
    facts = {name: getattr(record, name) for name in _NAMES[record.kind]}
    return json.dumps({"kind": record.kind, **facts}, separators=(",", ":"))


def parsed(text: str) -> Header | Record:
    """The record that `line` wrote. Raises `ValueError` with the reason."""
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as problem:
        # Without the place: it would be taken for a line and a column of the history.
        raise ValueError(f"not JSON: {problem.msg}") from None
    if not isinstance(fields, dict):
        raise ValueError("not an object")  # noqa: TRY004
    kind = fields.pop("kind", None)
    parser = _PARSERS.get(kind) if isinstance(kind, str) else None
    if parser is None:
        raise ValueError(f"unknown kind {kind!r}")
    return parser.record(fields)


#: Checks a value of a field against its type; JSON's lists become tuples.
_Check = Callable[[Any, str], Any]


class _Parser:
    """Makes records of one kind. Their types are looked up once: a history has many lines."""

    def __init__(self, kind: type[Any]) -> None:
        hints = typing.get_type_hints(kind)
        self._kind = kind
        self._checks = {name: _check(hints[name]) for name in _NAMES[kind.kind]}

    def record(self, fields: dict[str, Any]) -> Header | Record:
        if fields.keys() != self._checks.keys():
            names = sorted(self._checks)
            raise ValueError(f"a {self._kind.kind} record has the fields {names}, not {sorted(fields)}")
        values = [check(fields[name], name) for name, check in self._checks.items()]
        made: Header | Record = self._kind(*values)
        return made


class _HeaderParser(_Parser):
    def record(self, fields: dict[str, Any]) -> Header | Record:
        if fields.get("version") == FORMAT_VERSION:
            return super().record(fields)
        # Of another format only so much is known for certain.
        known = {name: self._checks[name](fields.get(name), name) for name in ("version", "flow")}
        return Header(**known)


def _check(hint: Any) -> _Check:
    if not isinstance(hint, types.GenericAlias):
        return partial(_plain, hint)
    inner = typing.get_args(hint)
    if inner[-1] is Ellipsis:
        return partial(_sequence, _check(inner[0]))
    return partial(_tuple, tuple(_check(each) for each in inner))


def _plain(hint: type[Any], value: Any, name: str) -> Any:
    if type(value) is not hint:
        raise ValueError(f"{name} is {value!r}, not {hint.__name__}")
    if hint is str and not value.isascii():
        # JSON can name half a character. It could not be printed in a verdict.
        value.encode()
    return value


def _sequence(check: _Check, value: Any, name: str) -> tuple[Any, ...]:
    return tuple([check(each, name) for each in _listed(value, name)])


def _tuple(checks: tuple[_Check, ...], value: Any, name: str) -> tuple[Any, ...]:
    if len(_listed(value, name)) != len(checks):
        raise ValueError(f"{name} holds {value!r}, which has not {len(checks)} parts")
    return tuple([check(each, name) for check, each in zip(checks, value, strict=True)])


def _listed(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is {value!r}, not a list")  # noqa: TRY004
    return value


_KINDS: tuple[type[Any], ...] = (Header, *typing.get_args(Record))
_NAMES = {kind.kind: tuple(each.name for each in fields(kind)) for kind in _KINDS}
_PARSERS = {kind.kind: (_HeaderParser if kind is Header else _Parser)(kind) for kind in _KINDS}
