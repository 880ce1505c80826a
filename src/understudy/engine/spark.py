"""One fragment on Spark Structured Streaming.

The query runs all the time, and nearly all of that time it stands still in its data sources, waiting for
the next group (see `feed`). `advance` sets the watermark to the group's boundary, offers the group and
waits until the query asks for the next one; by then one micro-batch has run and is committed, and its
output was handed over as Arrow.

Output rows are put into buckets by the fragment's declared time. Buckets that are complete leave at once.
Rows ahead of them are held, and are part of a snapshot.

The results of some operators depend on how buckets are grouped into micro-batches, mostly of user code that
keeps state. The engine gives those one bucket at a time, and empty buckets too for as long as the passing of
time alone may close a window, drop a key or fire a timer.

Where the output is dealt out to partitions of other fragments, its rows carry hidden columns that say where
each goes (see `dealing`). They are part of what is held and of what leaves, but not of `schema`.
"""

from __future__ import annotations

import math
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from understudy.core.bucket import NOTHING, BucketId, bucket_of, end_of
from understudy.core.errors import BrokenInvariant, require
from understudy.engine.blame import fails_everywhere, machines_fault, shortened
from understudy.engine.conforming import conformed, together
from understudy.engine.dealing import Dealt, hidden_column
from understudy.engine.digest import canonical_order
from understudy.engine.feed import ChannelClosed, GroupFeed
from understudy.engine.horizon import horizon_of
from understudy.engine.identity import WHOLE, Identity, Share
from understudy.engine.query import Input, Query, build_query
from understudy.engine.running import RunningQuery
from understudy.engine.storing import link_checkpoint, read_rows, revive_checkpoint, write_rows
from understudy.engine.times import times_of
from understudy.flow.dealing import partition_numbers
from understudy.flow.errors import ContractViolation, EnvironmentFailed, FlowError

#: A state on disk: its folder, and what `SparkEngine.save` returned for it.
Saved = tuple[Path, Mapping[str, Any]]


@dataclass(frozen=True)
class Advanced:
    """What one step brought out. `rows` has only buckets that are not empty and that are now complete."""

    rows: Mapping[BucketId, pa.Table]
    before: BucketId
    """Output was complete through here before the step."""
    through: BucketId
    """Output is complete through here. It never falls."""


class SparkEngine:
    """The engine of one fragment, in the process's Spark session.

    Its methods keep the contract of those of a `CopyEngine` (see `interface`), which is made of such engines.
    """

    def __init__(
        self,
        spark: SparkSession,
        feed: GroupFeed,
        *,
        name: str,
        function: Callable[..., Any],
        inputs: Mapping[str, Input],
        time: str,
        width_us: int,
        directory: Path,
        share: Share = WHOLE,
        dealt_to: Mapping[str, Dealt] = MappingProxyType({}),
        shape: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.name = name
        self._inputs = dict(inputs)
        self._width_us = width_us
        self._time_name = time
        self._directory = directory / f"{name}-{uuid.uuid4().hex[:8]}"
        channel_name = uuid.uuid4().hex
        self._query: Query = build_query(
            spark,
            fragment=name,
            function=function,
            inputs=inputs,
            time=time,
            options=feed.options(channel_name),
            dealt_to=dealt_to,
        )
        self._identity = Identity(name, share, dict(dealt_to), self._query.tables.facts(), shape)
        self._running = RunningQuery(feed, channel_name, name)
        self._checkpoint = self._directory / "checkpoint"
        self._group = 0
        self._through = NOTHING
        self._output_through = NOTHING
        self._held: dict[BucketId, pa.Table] = {}
        self._arrived: list[pa.Table] = []
        self._failure: BaseException | None = None
        self._cause: PySparkException | None = None

    @property
    def schema(self) -> pa.Schema:
        return self._query.schema

    @property
    def through(self) -> BucketId:
        return self._through

    @property
    def output_through(self) -> BucketId:
        return self._output_through

    @property
    def stepwise(self) -> bool:
        """Whether every bucket is a micro-batch of its own."""
        return self._query.facts.grouping is not None

    @property
    def steps(self) -> int:
        return self._group

    @property
    def unbounded(self) -> str | None:
        return self._query.facts.unbounded

    @property
    def extent_us(self) -> float:
        """How much older than the last boundary an input row may be that the state depends on."""
        return self._query.facts.extent_us

    @property
    def rounding(self) -> tuple[str, ...]:
        """Aggregates whose last digits depend on the grouping: with any, compare digests without floats."""
        return self._query.facts.rounding

    @property
    def shape(self) -> Mapping[str, Any]:
        """The shape of its state (see `state_shape`)."""
        return self._identity.shape

    def start(self, saved: Saved | None = None, *, after: BucketId = NOTHING) -> None:
        """Begin, from nothing or from a state whose files have been verified. Called once.

        From nothing it begins with the bucket after `after`: a fragment that is new in a run keeps no state.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            if saved is not None:
                self._take_up(*saved)
            elif after != NOTHING:
                self._through, self._output_through = after, self._complete_through(after)
            self._launch()
        finally:
            # Closed meanwhile: its files may have come after they were removed.
            if self._running.stopped:
                self._remove_files()

    def advance(self, inputs: Mapping[str, pa.Table], through: BucketId) -> Advanced:
        if self._failure is not None:
            raise BrokenInvariant(
                f"fragment {self.name}: it failed before; start another from a snapshot"
            ) from self._failure
        require(through > self._through, f"fragment {self.name}: {through} is not after {self._through}")
        unknown = set(inputs) - set(self._inputs)
        require(not unknown, f"fragment {self.name} has no inputs {sorted(unknown)}")
        tables = {name: self._conformed(name, inputs.get(name)) for name in self._inputs}
        before = self._output_through
        ready: dict[BucketId, pa.Table] = {}
        for part, boundary in self._parts(tables, through):
            self._run_group(part, boundary)
            self._sort_out(ready)
        return Advanced(ready, before, self._output_through)

    def horizon(self) -> BucketId:
        return horizon_of(self._through, self._query.facts.extent_us, self._width_us)

    def save(self, into: Path) -> dict[str, Any]:
        """Write the state between two advances to the directory `into`, and return what `start` must know."""
        if self._running.stopped:
            raise EnvironmentFailed(f"fragment {self.name!r} was closed")
        require(self._running.standing and self._failure is None, f"fragment {self.name}: nothing to save")
        into.mkdir(parents=True)
        if self._group:
            link_checkpoint(self._checkpoint, into / "checkpoint")
        for number, table in self._held.items():
            write_rows(into / f"held-{number}.arrow", table)
        return {
            **self._identity.facts(),
            "group": self._group,
            "through": self._through,
            "output_through": self._output_through,
            "held": sorted(self._held),
        }

    def _take_up(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self._identity.require_own(folder, facts)
        if facts["group"]:
            revive_checkpoint(folder / "checkpoint", self._checkpoint)
        self._group = facts["group"]
        self._through = facts["through"]
        self._output_through = facts["output_through"]
        self._held = {n: self._renewed(read_rows(folder / f"held-{n}.arrow")) for n in facts["held"]}

    def _renewed(self, rows: pa.Table) -> pa.Table:
        """Held rows with the columns that the fragment puts out now, and dealt out to its consumers now."""
        schema, dealt_to = self._query.schema, self._identity.dealt_to
        if rows.column_names == [*schema.names, *map(hidden_column, dealt_to)]:
            return rows
        table = conformed(rows, schema)
        for consumer, (keys, count) in dealt_to.items():
            numbers = partition_numbers(table, keys, count).astype(np.int32)
            table = table.append_column(hidden_column(consumer), pa.array(numbers))
        return table

    def close(self) -> None:
        self._running.stop()
        self._remove_files()

    # One micro-batch

    def _conformed(self, name: str, table: pa.Table | None) -> pa.Table:
        schema = self._inputs[name].schema
        if table is None:
            return schema.empty_table()
        return table.select(schema.names).cast(schema).combine_chunks()

    def _parts(
        self, tables: dict[str, pa.Table], through: BucketId
    ) -> Sequence[tuple[dict[str, pa.Table], BucketId]]:
        """The micro-batches to run: one, unless an operator's result depends on the grouping."""
        if self._query.facts.grouping is None:
            return [(tables, through)]
        numbers = {name: self._bucket_numbers(name, table) for name, table in tables.items()}
        filled = {int(n) for column in numbers.values() for n in np.unique(column)}
        stops = {through, *filled, *self._stirring(filled, through)}
        return [
            (
                {
                    name: table.slice(*_run(numbers[name], stop)).combine_chunks()
                    for name, table in tables.items()
                },
                stop,
            )
            for stop in sorted(stops)
        ]

    def _stirring(self, filled: set[BucketId], through: BucketId) -> set[BucketId]:
        """Empty buckets whose passing may do something: close a window, drop a key, fire a timer."""
        starts = filled | ({self._through} if self._through != NOTHING else set())
        stirring_us = self._query.facts.stirring_us
        if not starts or stirring_us == 0:
            return set()
        if stirring_us == math.inf:
            return set(range(min(starts) + 1, through))
        quiet = math.ceil(stirring_us / self._width_us) + 1
        return {n for start in starts for n in range(start + 1, min(start + 1 + quiet, through))}

    def _bucket_numbers(self, name: str, table: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
        numbers = self._inputs[name].numbers(table, self._width_us)
        if len(numbers) > 1 and bool(np.any(np.diff(numbers) < 0)):
            raise BrokenInvariant(f"fragment {self.name}: rows of input {name} are not in bucket order")
        return numbers

    def _run_group(self, tables: Mapping[str, pa.Table], boundary: BucketId) -> None:
        watermark_ms = (end_of(boundary, self._width_us) - 1) // 1000
        try:
            self._running.run(self._group + 1, tables, watermark_ms)
        except (ChannelClosed, Py4JError, ConnectionError) as problem:
            raise self._ended(problem) from self._failure
        self._require_tables()
        self._group += 1
        self._through = boundary

    def _ended(self, problem: Exception) -> Exception:
        """What to raise because the query ended. The failure is remembered."""
        cause = self._cause or (problem.__cause__ if isinstance(problem, ChannelClosed) else problem)
        self._failure = cause or problem
        if self._running.stopped:
            return EnvironmentFailed(f"fragment {self.name!r} was closed")
        # A table's file that is gone fails the query as well, with a longer story.
        self._require_tables()
        return self._explained(self._failure)

    def _require_tables(self) -> None:
        try:
            self._query.tables.require_unchanged()
        except EnvironmentFailed as problem:
            self._failure = problem
            raise

    def _explained(self, cause: BaseException) -> Exception:
        if isinstance(cause, PySparkException):
            if (wrong := machines_fault(cause)) is not None:
                return EnvironmentFailed(f"fragment {self.name!r}: Spark could not go on here ({wrong})")
            if (error := fails_everywhere(cause)) is not None:
                return FlowError(
                    f"fragment {self.name!r} cannot run with this Spark and this Java: {error}. It would "
                    "fail on every node: use another function"
                )
            return FlowError(f"fragment {self.name!r} failed in Spark: {shortened(str(cause))}")
        if isinstance(cause, Py4JError | ConnectionError | OSError):
            return EnvironmentFailed(
                f"fragment {self.name!r}: the JVM that Spark runs in has ended ({cause})"
            )
        return EnvironmentFailed(f"fragment {self.name!r}: its query was stopped from outside ({cause})")

    def _sort_out(self, ready: dict[BucketId, pa.Table]) -> None:
        """Put what has arrived into buckets, and move those that are now complete to `ready`."""
        arrived, self._arrived = self._arrived, []
        for table in arrived:
            for number, rows in self._by_bucket(table):
                before = self._held.get(number)
                self._held[number] = rows if before is None else together([before, rows])
        self._output_through = max(self._output_through, self._complete_through(self._through))
        for number in sorted(n for n in self._held if n <= self._output_through):
            table = self._held.pop(number)
            ready[number] = canonical_order(table, times_of(table.combine_chunks(), self._query.time))

    def _complete_through(self, through: BucketId) -> BucketId:
        """The last output bucket that is complete once all input through `through` is processed."""
        complete_us = end_of(through, self._width_us) - int(self._query.facts.lag_us)
        return bucket_of(complete_us, self._width_us) - 1

    def _by_bucket(self, table: pa.Table) -> list[tuple[BucketId, pa.Table]]:
        if not table.num_rows:
            return []
        times = times_of(table, self._query.time)
        if times.null_count:
            raise self._violation(f"{times.null_count} rows came out with no value in it")
        numbers = times.to_numpy() // self._width_us
        order = np.argsort(numbers, kind="stable")
        table, numbers = table.take(pa.array(order)), numbers[order]
        first = int(numbers[0])
        if first <= self._output_through:
            time_us = int(times.to_numpy().min())
            shown = pa.scalar(time_us, pa.timestamp("us", tz="UTC")).as_py().isoformat()
            raise self._violation(
                f"a row came out with {shown}, for bucket {first}, but everything through bucket "
                f"{self._output_through} is sealed already"
            )
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        return [(int(numbers[a]), table.slice(a, b - a)) for a, b in pairwise(cuts)]

    def _violation(self, what: str) -> ContractViolation:
        self._failure = ContractViolation(
            f"fragment {self.name!r}: its time column {self._time_name!r} is broken: {what}. Declare a time "
            "that never runs behind the input: the end of a window, or the greatest of the times that a row "
            "was made from"
        )
        return self._failure

    # The query's life

    def _launch(self) -> None:
        try:
            self._running.start(self._query.frame, self._checkpoint, self._group, self._collect)
        except (ChannelClosed, Py4JError, ConnectionError) as problem:
            raise self._ended(problem) from self._failure
        except PySparkException as problem:
            if self._running.stopped:
                raise self._ended(problem) from problem
            why = shortened(str(problem))
            if "in update mode" in why:
                why += '. A fragment runs in output mode "append": state functions must be declared so, too'
            raise FlowError(f"fragment {self.name!r}: Spark does not run it: {why}") from problem

    def _remove_files(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def _collect(self, batch: DataFrame, batch_id: int) -> None:
        try:
            table = batch.toArrow()
        except PySparkException as problem:
            # What Spark makes of it on the way back through the JVM buries the message under stacks.
            self._cause = problem
            raise
        if table.num_rows:
            self._arrived.append(table)


def _run(numbers: np.ndarray[Any, np.dtype[np.int64]], stop: BucketId) -> tuple[int, int]:
    first, last = np.searchsorted(numbers, [stop, stop + 1])
    return int(first), int(last - first)
