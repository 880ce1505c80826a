"""The parts of a flow, frozen. Each is checked on its own when it is built; a `Flow` checks them together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from understudy.flow.errors import FlowError
from understudy.flow.kinds import SourceKind
from understudy.flow.schema import TIMESTAMP, parse_schema
from understudy.flow.writers import SinkKind

#: What happens to a row that is older than a sealed bucket of its source.
LATE = ("restamp", "drop", "refuse")


@dataclass(frozen=True)
class Source:
    """A stream of rows from outside. `schema` is Spark DDL; `time` names its timestamp column.

    A bucket is sealed once a row arrives that is `lateness_us` past the bucket's end. With `idle_us`, a
    source that has been silent for that long no longer holds the flow back: its time goes on with the clock.
    A row may lie at most `ahead_us` past both the newest row and the wall clock; None means without limit.
    """

    name: str
    kind: SourceKind
    schema: str
    time: str
    late: str
    lateness_us: int
    idle_us: int | None
    ahead_us: int | None = None

    def __post_init__(self) -> None:
        where = f"source {self.name!r}"
        columns = self.arrow_schema.names
        if self.time not in columns:
            raise FlowError(
                f"{where}: its time column {self.time!r} is not in the schema ({', '.join(columns)})."
            )
        kind = self.arrow_schema.field(self.time).type
        if kind != TIMESTAMP:
            raise FlowError(f"{where}: its time column {self.time!r} must be of type timestamp, not {kind}.")
        if self.late not in LATE:
            raise FlowError(f"{where}: late={self.late!r} is not one of {', '.join(LATE)}.")

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        return parse_schema(self.schema)


@dataclass(frozen=True)
class Fragment:
    """A query over streaming DataFrames: one argument for each input, one DataFrame out.

    `time` names the output column that decides each row's bucket (a dot reaches into a struct, as in
    "window.end"). Calling a fragment calls its function, so that it can be tried on any DataFrame.
    """

    name: str
    inputs: tuple[str, ...]
    function: Callable[..., Any]
    time: str
    partition_by: tuple[str, ...]
    #: None: as many as the run says.
    partitions: int | None = None

    def __call__(self, *inputs: Any) -> Any:
        return self.function(*inputs)


@dataclass(frozen=True)
class Sink:
    """A fragment's output, delivered in order to where its kind says."""

    name: str
    input: str
    kind: SinkKind
