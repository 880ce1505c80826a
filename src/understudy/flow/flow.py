"""A flow: sources, fragments over them, sinks. Building one starts nothing.

Each part is checked when it is added, so that the error points at its line. Mistakes between parts (unknown
inputs, cycles, no source, no sink) can only be seen at the end: `validate`, which the loading of a flow file
and every run call. Inputs may be given as objects or as names, and a name may refer to a fragment that is
defined later.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from understudy.flow.durations import duration_us
from understudy.flow.errors import FlowError
from understudy.flow.explain import explain
from understudy.flow.folders import require_own_folders
from understudy.flow.keys import require_keys
from understudy.flow.kinds import SourceKind
from understudy.flow.model import Fragment, Sink, Source
from understudy.flow.order import topological
from understudy.flow.writers import SinkKind

# Names become folder names, stream names and columns of reports.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")
_WIDTH_MAX_US = 3_600_000_000


class Flow:
    """A named flow. `bucket` is the width of its buckets: the grain of progress, recovery and delivery."""

    def __init__(self, name: str, bucket: str = "100 ms") -> None:
        self.name = _checked_name("flow", name)
        self.bucket_us = duration_us(bucket, f"flow {name!r}, bucket")
        # Spark keeps watermarks in milliseconds; a boundary between two of them would not exist there.
        if not 0 < self.bucket_us <= _WIDTH_MAX_US or self.bucket_us % 1_000:
            raise FlowError(
                f"flow {name!r}: a bucket is a whole number of milliseconds from 1 ms to 1 h, not {bucket!r}."
            )
        self._sources: dict[str, Source] = {}
        self._fragments: dict[str, Fragment] = {}
        self._sinks: dict[str, Sink] = {}

    @property
    def sources(self) -> Mapping[str, Source]:
        """The sources by name, as they were added."""
        return MappingProxyType(self._sources)

    @property
    def fragments(self) -> Mapping[str, Fragment]:
        """The fragments by name, each after its inputs. A FlowError names an unknown input or a cycle."""
        return topological(self.name, self._sources, self._fragments)

    @property
    def sinks(self) -> Mapping[str, Sink]:
        """The sinks by name, as they were added."""
        return MappingProxyType(self._sinks)

    def source(
        self,
        name: str,
        kind: SourceKind,
        *,
        time: str,
        late: str = "restamp",
        lateness: str = "0 ms",
        idle: str | None = None,
        ahead: str | None = "1 hour",
    ) -> Source:
        """Add a source of rows whose column `time` says when each happened.

        `lateness`: how long a bucket stays open past its end for rows that come out of order.
        `late`: what becomes of a row that comes later still: moved to the oldest open bucket ("restamp"),
        left out and counted ("drop"), or refused with all of its push ("refuse").
        `idle`: after this much silence the source's time goes on with the clock. Without it, a silent source
        holds back every fragment that reads it. Time in which the gateway could not listen is no silence.
        `ahead`: how far a row may lie in the future, past both the newest row of the source and the gateway's
        wall clock. One such row would seal everything before it, so it is left out and counted with
        late="drop", and otherwise all of its push is refused: the gateway's clock may be the wrong one.
        None sets no limit.
        """
        where = f"source {self._free_stream_name('source', name)!r}"
        if not isinstance(kind, SourceKind):
            raise FlowError(
                f"{where}: expected a kind of source, such as Push, Generator or Files, not {kind!r}."
            )
        schema = getattr(kind, "schema", None)
        if not isinstance(schema, str):
            raise FlowError(f"{where}: {type(kind).__name__} has no `schema`, a text of Spark DDL.")
        idle_us = None if idle is None else duration_us(idle, f"{where}, idle")
        lateness_us = duration_us(lateness, f"{where}, lateness")
        ahead_us = None if ahead is None else duration_us(ahead, f"{where}, ahead")
        source = Source(name, kind, schema, time, late, lateness_us, idle_us, ahead_us)
        self._sources[name] = source
        return source

    def fragment(
        self,
        *inputs: Source | Fragment | str,
        time: str,
        partition_by: Sequence[str] = (),
        partitions: int | None = None,
    ) -> Callable[[Callable[..., Any]], Fragment]:
        """Make the decorated function a fragment over `inputs`, named like the function.

        `time` names the output's time column; `partition_by` the columns by which its state may be split:
        every input must have them. `partitions`: into how many; None leaves that to the run.
        """

        def add(function: Callable[..., Any]) -> Fragment:
            name = self._free_stream_name("fragment", getattr(function, "__name__", ""))
            where = f"fragment {name!r}"
            if not inputs:
                raise FlowError(f"{where} has no input. Name at least one source or fragment.")
            if isinstance(partition_by, str) or not all(isinstance(column, str) for column in partition_by):
                raise FlowError(
                    f"{where}: partition_by must be a list of column names, not {partition_by!r}."
                )
            _check_partitions(where, partition_by, partitions)
            if not isinstance(time, str) or not time:
                raise FlowError(f"{where}: time must name the output's time column, not {time!r}.")
            names = tuple(self._input_name(where, each) for each in inputs)
            _check_arguments(where, function, names)
            fragment = Fragment(name, names, function, time, tuple(partition_by), partitions)
            self._fragments[name] = fragment
            return fragment

        return add

    def sink(self, fragment: Fragment | str, kind: SinkKind, name: str | None = None) -> Sink:
        """Deliver a fragment's output to where `kind` says. Unless named, it is named like its fragment."""
        if not isinstance(kind, SinkKind):
            raise FlowError(
                f"sink: expected a kind of sink, such as Parquet, JsonLines or Callback, not {kind!r}."
            )
        source = self._input_name("sink", fragment)
        if name is None:
            taken = [
                each
                for each in (source, *(f"{source}_{n}" for n in range(2, 1000)))
                if each not in self._sinks
            ]
            name = taken[0]
        if _checked_name("sink", name) in self._sinks:
            raise FlowError(f"flow {self.name!r} has two sinks named {name!r}. Give one another name.")
        sink = Sink(name, source, kind)
        require_own_folders(sink, self._sinks.values())
        self._sinks[name] = sink
        return sink

    def validate(self) -> None:
        """Raise a FlowError unless the flow can run as a whole.

        What fragments put out is not known before Spark has seen them; only sources' columns are checked.
        """
        where = f"flow {self.name!r}"
        if not self._sources:
            raise FlowError(f"{where} has no source. Add one with flow.source(...).")
        fragments = self.fragments
        for sink in self._sinks.values():
            if sink.input in self._sources:
                raise FlowError(
                    f"sink {sink.name!r} reads the source {sink.input!r}. A sink needs a fragment."
                )
            if sink.input not in fragments:
                raise FlowError(f"sink {sink.name!r} reads {sink.input!r}, which is no fragment of {where}.")
        if not self._sinks:
            raise FlowError(f"{where} has no sink. Deliver a fragment's output with flow.sink(...).")
        used = {name for fragment in fragments.values() for name in fragment.inputs}
        for name in self._sources:
            # Nothing would ever read it, yet its silence would hold back the others.
            if name not in used:
                raise FlowError(f"source {name!r} is read by no fragment of {where}. Use it or remove it.")
        columns = {name: source.arrow_schema for name, source in self._sources.items()}
        for fragment in fragments.values():
            require_keys(fragment, columns)

    def explain(self) -> str:
        """The flow as text: every part with its schema, time, partitioning and inputs."""
        return explain(self.name, self.bucket_us, self.sources, self.fragments, self.sinks)

    def __repr__(self) -> str:
        parts = f"{len(self._sources)} sources, {len(self._fragments)} fragments, {len(self._sinks)} sinks"
        return f"Flow({self.name!r}, {parts})"

    def _free_stream_name(self, what: str, name: str) -> str:
        _checked_name(what, name)
        for other, names in (("source", self._sources), ("fragment", self._fragments)):
            if name in names:
                raise FlowError(
                    f"flow {self.name!r}: the {what} {name!r} has the name of a {other} already there. "
                    "Sources and fragments need different names."
                )
        return name

    def _input_name(self, where: str, given: Source | Fragment | str) -> str:
        if isinstance(given, str):
            return given
        if not isinstance(given, Source | Fragment):
            raise FlowError(f"{where}: an input is a source, a fragment or the name of one, not {given!r}.")
        if given not in (self._sources.get(given.name), self._fragments.get(given.name)):
            raise FlowError(f"{where}: its input {given.name!r} belongs to another flow than {self.name!r}.")
        return given.name


def _checked_name(what: str, name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise FlowError(
            f"{what}: {name!r} is not a name. Start with a letter and use letters, digits, '_' and '-', "
            "63 characters at most."
        )
    return name


def _check_partitions(where: str, partition_by: Sequence[str], partitions: int | None) -> None:
    if partitions is None:
        return
    if not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 1:
        raise FlowError(f"{where}: partitions must be a whole number from 1 on, not {partitions!r}.")
    if partitions > 1 and not partition_by:
        raise FlowError(
            f"{where}: {partitions} partitions need partition_by, the columns by which rows are dealt out to "
            "them. Name those, or leave partitions out."
        )


def _check_arguments(where: str, function: Callable[..., Any], inputs: tuple[str, ...]) -> None:
    try:
        inspect.signature(function).bind(*inputs)
    except TypeError as problem:
        raise FlowError(
            f"{where} reads {len(inputs)} inputs ({', '.join(inputs)}), but its function does not take "
            f"exactly that many arguments: {problem}."
        ) from None
