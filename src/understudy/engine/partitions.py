"""A flow as partitions: each copy of each partition of a fragment on an engine of its own.

A partition's engine runs the fragment's function over the partition's share of the input rows. What it puts
out is dealt out in turn: to the partitions of every fragment that reads it, by that fragment's keys, and
whole to egress if a sink reads it. The numbers come out of the query itself (see `dealing`), so dealing
is one sort and one copy of the rows.

Fragments are analysed once, when the partitioned flow is made: that tells the columns of their outputs, and
whether these can be dealt out the way the fragments above want it; and it shows whether a fragment's own
operators allow a split by its columns (see `splitting`). An engine then analyses only its own
fragment, because a query is bound to the channel that feeds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from understudy.core.bucket import BucketId
from understudy.core.errors import require
from understudy.core.partition import Partition
from understudy.core.topology import EGRESS, Topology
from understudy.engine.dealing import Dealt, hidden_column, require_free_names
from understudy.engine.identity import WHOLE, Share
from understudy.engine.interface import Snapshot
from understudy.engine.query import Input, build_query
from understudy.engine.session import endpoint, session
from understudy.engine.spark import SparkEngine
from understudy.engine.splitting import require_splittable
from understudy.engine.streams import streams_of
from understudy.flow.dealing import deal
from understudy.flow.flow import Flow
from understudy.flow.keys import require_keys
from understudy.flow.model import Fragment


@dataclass(frozen=True)
class PartitionAdvanced:
    """What one step of a partition brought out.

    `shares` has, for each partition that takes of it, the rows by bucket; EGRESS takes all rows of a fragment
    with sinks. Only buckets that are complete are there, and no share is empty.
    """

    shares: Mapping[Partition, Mapping[BucketId, pa.Table]]
    through: BucketId
    """Output is complete through here, for every consumer. It never falls."""


class PartitionEngine:
    """One copy of one partition: an `Engine` (see `interface`) whose output is dealt out to its consumers."""

    def __init__(self, engine: SparkEngine, consumers: Mapping[str, int], *, egress: bool) -> None:
        self._engine = engine
        self._consumers = dict(consumers)
        self._egress = egress

    @property
    def name(self) -> str:
        return self._engine.name

    @property
    def schema(self) -> pa.Schema:
        """The columns of the output, as every consumer gets them."""
        return self._engine.schema

    @property
    def through(self) -> BucketId:
        return self._engine.through

    @property
    def output_through(self) -> BucketId:
        return self._engine.output_through

    @property
    def unbounded(self) -> str | None:
        return self._engine.unbounded

    @property
    def rounding(self) -> tuple[str, ...]:
        """Aggregates whose last digits depend on the grouping: with any, compare digests without floats."""
        return self._engine.rounding

    def start(self, snapshot: Snapshot | None = None) -> None:
        self._engine.start(snapshot)

    def advance(self, inputs: Mapping[str, pa.Table], through: BucketId) -> PartitionAdvanced:
        """As `Engine.advance`, over this partition's share of every input.

        Rows of one bucket that several producers sent must come in an order that both copies of the partition
        agree on.
        """
        advanced = self._engine.advance(inputs, through)
        shares: dict[Partition, dict[BucketId, pa.Table]] = {}
        for number in sorted(advanced.rows):
            for partition, rows in self._dealt(advanced.rows[number]):
                if rows.num_rows:
                    shares.setdefault(partition, {})[number] = rows
        return PartitionAdvanced(shares, advanced.through)

    def snapshot(self, into: Path) -> Snapshot:
        return self._engine.snapshot(into)

    def restore(self, snapshot: Snapshot) -> None:
        self._engine.restore(snapshot)

    def horizon(self) -> BucketId:
        return self._engine.horizon()

    def close(self) -> None:
        self._engine.close()

    def _dealt(self, table: pa.Table) -> list[tuple[Partition, pa.Table]]:
        rows = table.select(list(range(len(self.schema))))
        found = [(EGRESS, rows)] if self._egress else []
        for consumer, count in self._consumers.items():
            if count == 1:
                found.append((Partition(consumer), rows))
                continue
            numbers = table.column(hidden_column(consumer)).to_numpy()
            parts = deal(rows, numbers, count)
            found += [(Partition(consumer, index), part) for index, part in enumerate(parts)]
        return found


class PartitionedFlow:
    """A flow in the shape of a topology: makes the engines of its partitions.

    Raises a FlowError if a fragment's output cannot be dealt out by the keys of a fragment that reads it, or
    if a fragment with more than one partition would give other results than with one (see `splitting`).
    """

    def __init__(self, flow: Flow, topology: Topology, *, spark: SparkSession | None = None) -> None:
        self._flow = flow
        self._topology = topology
        self._spark = spark or session()
        fragments = flow.fragments
        require(
            dict(topology.inputs) == {name: fragment.inputs for name, fragment in fragments.items()},
            f"the topology is not that of flow {flow.name}",
        )
        for name, count in topology.counts.items():
            require(
                count == 1 or bool(fragments[name].partition_by),
                f"fragment {name} has {count} partitions and no columns to deal its input out by",
            )
        self._streams = streams_of(flow, self._analyse)

    @property
    def streams(self) -> Mapping[str, Input]:
        """The columns and the time of every source and fragment."""
        return self._streams

    def engine(self, partition: Partition, directory: Path) -> PartitionEngine:
        """A new engine for one copy of `partition`, to be started. It works in `directory`."""
        fragment, count = partition.fragment, self._topology.counts.get(partition.fragment, 0)
        require(partition.index < count, f"flow {self._flow.name} has no partition {partition}")
        declared = self._flow.fragments[fragment]
        consumers = self._consumers(fragment)
        engine = SparkEngine(
            self._spark,
            endpoint(),
            name=fragment,
            function=declared.function,
            inputs={given: self._streams[given] for given in declared.inputs},
            time=declared.time,
            width_us=self._flow.bucket_us,
            directory=directory,
            share=Share(partition.index, count, declared.partition_by) if count > 1 else WHOLE,
            dealt_to=self._dealt_to(fragment),
        )
        return PartitionEngine(engine, consumers, egress=fragment in self._topology.sinks)

    def _consumers(self, fragment: str) -> dict[str, int]:
        counts = self._topology.counts
        return {name: counts[name] for name, read in self._topology.inputs.items() if fragment in read}

    def _dealt_to(self, fragment: str) -> dict[str, Dealt]:
        """Consumers with one partition need no number: they take every row."""
        fragments = self._flow.fragments
        consumers = self._consumers(fragment)
        return {name: (fragments[name].partition_by, count) for name, count in consumers.items() if count > 1}

    def _analyse(self, fragment: Fragment, inputs: Mapping[str, Input]) -> pa.Schema:
        require_keys(fragment, {name: given.schema for name, given in inputs.items()})
        query = build_query(
            self._spark,
            fragment=fragment.name,
            function=fragment.function,
            inputs=inputs,
            time=fragment.time,
            # Never started, so it never asks this channel for anything.
            options=endpoint().options("analysis"),
            dealt_to={},
        )
        count = self._topology.counts[fragment.name]
        if count > 1:
            require_splittable(fragment.name, query.plan, fragment.partition_by, count)
        require_free_names(fragment.name, query.schema.names, self._dealt_to(fragment.name))
        return query.schema
