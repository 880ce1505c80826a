"""A whole flow in one process: every fragment on an engine of its own, one after the other for each group.

Between two fragments lies an edge: rows of complete buckets that the consumer has not taken yet, because
another of its inputs is behind. At the end, buckets of a sink's fragment that are complete but ahead of the
slowest sink are held back, so that what leaves the segment is complete through one number for all sinks.

Edges and held buckets are part of a snapshot, beside the snapshots of the engines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.errors import require
from understudy.engine.interface import Snapshot
from understudy.engine.query import Input
from understudy.engine.session import endpoint, session
from understudy.engine.spark import SparkEngine
from understudy.engine.storing import (
    Digests,
    open_snapshot,
    read_rows,
    seal_snapshot,
    verify_snapshot,
    write_rows,
)
from understudy.engine.streams import streams_of
from understudy.flow.errors import EnvironmentFailed
from understudy.flow.flow import Flow
from understudy.flow.model import Fragment

_ENGINES = "engines"


@dataclass(frozen=True)
class SegmentAdvanced:
    """Complete buckets of the fragments that have sinks: rows by bucket, then fragment. None are empty."""

    buckets: Mapping[BucketId, Mapping[str, pa.Table]]
    through: BucketId
    """All sinks' buckets are complete through here. It never falls."""


class Edge:
    """Rows on their way into a fragment, in bucket order."""

    def __init__(self, given: Input, width_us: int) -> None:
        self._given = given
        self._width_us = width_us
        self.rows: pa.Table = given.schema.empty_table()

    def add(self, tables: Iterable[pa.Table]) -> None:
        waiting = [table for table in (self.rows, *tables) if table.num_rows]
        if waiting:
            self.rows = pa.concat_tables(waiting).combine_chunks()

    def take(self, through: BucketId) -> pa.Table:
        """Remove and return the rows of buckets at or below `through`."""
        if not self.rows.num_rows:
            return self.rows
        count = int(np.searchsorted(self._given.numbers(self.rows, self._width_us), through + 1))
        taken, self.rows = self.rows.slice(0, count), self.rows.slice(count)
        return taken


class Segment:
    """All fragments of a flow: the methods of an `Engine`, over sources and sinks instead of one fragment.

    Everything lives in `directory`, which the segment may create and empties again when it is closed.
    """

    def __init__(self, flow: Flow, directory: Path, *, spark: SparkSession | None = None) -> None:
        self._flow = flow
        self._width_us = flow.bucket_us
        self._digests = Digests()
        self._engines: dict[str, SparkEngine] = {}
        self._edges: dict[tuple[str, str], Edge] = {}
        self._held: dict[str, dict[BucketId, pa.Table]] = {sink.input: {} for sink in flow.sinks.values()}
        self._source_through = NOTHING
        self._through = NOTHING

        def analyse(fragment: Fragment, inputs: Mapping[str, Input]) -> pa.Schema:
            engine = self._engines[fragment.name] = SparkEngine(
                spark or session(),
                endpoint(),
                name=fragment.name,
                function=fragment.function,
                inputs=inputs,
                time=fragment.time,
                width_us=flow.bucket_us,
                directory=directory,
            )
            return engine.schema

        self._known = streams_of(flow, analyse)
        self._clear_edges()

    def __enter__(self) -> Segment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def source_through(self) -> BucketId:
        """The last source bucket taken in; NOTHING at first."""
        return self._source_through

    @property
    def through(self) -> BucketId:
        """All sinks are complete through here; NOTHING at first."""
        return self._through

    @property
    def unbounded(self) -> str | None:
        """The fragment and operator whose state has no bound, if there is one."""
        for name, engine in self._engines.items():
            if engine.unbounded is not None:
                return f"{engine.unbounded} in fragment {name!r}"
        return None

    @property
    def rounding(self) -> dict[str, tuple[str, ...]]:
        """Fragments whose sums of floats depend on the grouping in their last digits, and those sums."""
        return {name: engine.rounding for name, engine in self._engines.items() if engine.rounding}

    def start(self, snapshot: Snapshot | None = None) -> None:
        if snapshot is not None:
            self.restore(snapshot)
            return
        for engine in self._engines.values():
            engine.start()

    def advance(self, inputs: Mapping[str, pa.Table], through: BucketId) -> SegmentAdvanced:
        """Take in the sealed buckets of every source after `source_through` up to `through`, all at once.

        `inputs` maps sources to their rows in bucket order; a source that is missing has none.
        """
        require(through > self._source_through, f"{through} is not after {self._source_through}")
        unknown = set(inputs) - set(self._flow.sources)
        require(not unknown, f"flow {self._flow.name} has no sources {sorted(unknown)}")
        for (_, source), edge in self._edges.items():
            if source in inputs:
                edge.add([inputs[source].cast(self._known[source].schema)])
        self._source_through = through
        return self._run()

    def horizon(self) -> BucketId:
        """The oldest source bucket from which a replay builds the present state and all output to come."""
        needed = {
            name: self._through + 1 if name in self._held else self._source_through + 1
            for name in self._engines
        }
        oldest = self._source_through + 1
        for name in reversed(list(self._engines)):
            engine = self._engines[name]
            extent = engine.extent_us
            if extent == math.inf:
                return NOTHING
            first = min(engine.horizon(), needed[name] - math.ceil(extent / self._width_us))
            for given in self._flow.fragments[name].inputs:
                if given in needed:
                    needed[given] = min(needed[given], first)
                else:
                    oldest = min(oldest, first)
        return max(oldest, NOTHING)

    def snapshot(self, into: Path) -> Snapshot:
        """Write everything to the directory `into`, which must not exist. Between two advances only."""
        into.mkdir(parents=True)
        for name, engine in self._engines.items():
            engine.snapshot(into / _ENGINES / name)
        for (consumer, given), edge in self._edges.items():
            if edge.rows.num_rows:
                write_rows(into / f"edge-{consumer}-{given}.arrow", edge.rows)
        for name, held in self._held.items():
            for number, table in held.items():
                write_rows(into / f"held-{name}-{number}.arrow", table)
        facts = {
            "flow": self._flow.name,
            "through": self._source_through,
            "output_through": self._through,
            "held": {name: sorted(held) for name, held in self._held.items()},
        }
        snapshot = seal_snapshot(into, facts, self._digests)
        self._digests.keep_only(into)
        return snapshot

    def restore(self, snapshot: Snapshot) -> None:
        """Throw the present state away and go on from `snapshot`. The snapshot itself is left as it is."""
        manifest = verify_snapshot(snapshot)
        if manifest["flow"] != self._flow.name or set(manifest["held"]) != set(self._held):
            raise EnvironmentFailed(
                f"snapshot {snapshot.directory} is of flow {manifest['flow']!r} with sinks on "
                f"{', '.join(sorted(manifest['held']))}, not of {self._flow.name!r} with sinks on "
                f"{', '.join(sorted(self._held))}"
            )
        for name, engine in self._engines.items():
            engine.restore(open_snapshot(snapshot.directory / _ENGINES / name))
        self._clear_edges()
        for (consumer, given), edge in self._edges.items():
            path = snapshot.directory / f"edge-{consumer}-{given}.arrow"
            if path.exists():
                edge.add([read_rows(path)])
        self._held = {
            name: {
                number: read_rows(snapshot.directory / f"held-{name}-{number}.arrow") for number in numbers
            }
            for name, numbers in manifest["held"].items()
        }
        self._source_through = manifest["through"]
        self._through = manifest["output_through"]

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()

    def _clear_edges(self) -> None:
        self._edges = {
            (name, given): Edge(self._known[given], self._width_us)
            for name, fragment in self._flow.fragments.items()
            for given in fragment.inputs
        }

    def _run(self) -> SegmentAdvanced:
        """Let every fragment take what its inputs have completed, in the order of the flow."""
        for name, engine in self._engines.items():
            given = self._flow.fragments[name].inputs
            through = min(self._complete(source) for source in given)
            if through <= engine.through:
                continue
            rows = {source: self._edges[name, source].take(through) for source in given}
            advanced = engine.advance(rows, through)
            for (_, source), edge in self._edges.items():
                if source == name:
                    edge.add(advanced.rows[number] for number in sorted(advanced.rows))
            if name in self._held:
                self._held[name].update(advanced.rows)
        return self._released()

    def _complete(self, name: str) -> BucketId:
        return self._source_through if name in self._flow.sources else self._engines[name].output_through

    def _released(self) -> SegmentAdvanced:
        self._through = max(self._through, min(self._engines[name].output_through for name in self._held))
        out: dict[BucketId, dict[str, pa.Table]] = {}
        for name, held in self._held.items():
            for number in [n for n in held if n <= self._through]:
                out.setdefault(number, {})[name] = held.pop(number)
        return SegmentAdvanced(dict(sorted(out.items())), self._through)
