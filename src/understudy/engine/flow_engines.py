"""A flow in the shape that a policy gives it: makes the engine of every copy.

Fragments are analysed once, when this is made: that tells the columns of their outputs, and whether these can
be dealt out the way the fragments above want it; and it shows whether a fragment's own operators allow a
split by its columns (see `splitting`). An engine then analyses only its own fragments, because a query is
bound to the channel that feeds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from understudy.core.errors import require
from understudy.core.shape.partition import Partition
from understudy.core.shape.topology import Topology
from understudy.engine.consumers import Consumers
from understudy.engine.dealing import Dealt, require_free_names
from understudy.engine.fitting import FORMAT
from understudy.engine.identity import WHOLE, Share
from understudy.engine.interface import CopyEngine
from understudy.engine.query import Input, build_query, query_shape
from understudy.engine.segment import SegmentEngine
from understudy.engine.segments import fragments_of, sink_partition, topology_of
from understudy.engine.session import endpoint, session
from understudy.engine.spark import SparkEngine
from understudy.engine.splitting import require_splittable
from understudy.engine.state_shape import Shape
from understudy.engine.streams import streams_of
from understudy.flow.flow import Flow
from understudy.flow.keys import require_keys
from understudy.flow.model import Fragment


class FlowEngines:
    """The engines of a flow whose unit of replication is "flow" or "fragment" (see `segments`).

    Raises a FlowError if a fragment cannot run, if its output cannot be dealt out by the keys of a fragment
    that reads it, or if a fragment with more than one partition would give other results than with one.
    """

    def __init__(self, flow: Flow, unit: str, partitions: int, *, spark: SparkSession | None = None) -> None:
        self._flow = flow
        self._unit = unit
        self._spark = spark or session()
        self._segments = fragments_of(flow, unit)
        self._topology = topology_of(flow, unit, partitions)
        self._tables: dict[str, str] = {}
        self._shapes: dict[str, Shape] = {}
        self._tables_of: dict[str, dict[str, str]] = {}
        self._streams = streams_of(flow, self._analyse)

    @property
    def topology(self) -> Topology:
        return self._topology

    @property
    def streams(self) -> Mapping[str, Input]:
        """The columns and the time of every source and fragment."""
        return self._streams

    @property
    def tables(self) -> Mapping[str, str]:
        """The files of all tables that do not stream, for `identity.require_same_tables` between replicas.

        Snapshots are compared by themselves. This is for replicas that begin with nothing.
        """
        return self._tables

    @property
    def shape(self) -> dict[str, Any]:
        """The flow as far as its state depends on it, for `fitting.fit`. JSON holds it."""
        fragments = {
            name: {**shape, "partitions": self._split(name), "tables": self._tables_of[name]}
            for name, shape in self._shapes.items()
        }
        return {
            "format": FORMAT,
            "flow": self._flow.name,
            "unit": self._unit,
            "width_us": self._flow.bucket_us,
            "sources": sorted(self._flow.sources),
            "segments": {name: list(members) for name, members in self._segments.items()},
            "fragments": fragments,
            "sinks": {sink.name: sink.input for sink in self._flow.sinks.values()},
        }

    def _split(self, fragment: str) -> dict[str, Any]:
        count = self._topology.counts[fragment] if self._unit == "fragment" else 1
        return {"count": count, "by": list(self._flow.fragments[fragment].partition_by) if count > 1 else []}

    def engine(self, partition: Partition, directory: Path) -> CopyEngine:
        """A new engine for one copy of `partition`, to be started. It works in `directory`."""
        count = self._topology.counts.get(partition.name, 0)
        require(partition.index < count, f"flow {self._flow.name} has no partition {partition}")
        members = {name: self._flow.fragments[name] for name in self._segments[partition.name]}
        engines = {
            name: SparkEngine(
                self._spark,
                endpoint(),
                name=name,
                function=fragment.function,
                inputs={given: self._streams[given] for given in fragment.inputs},
                time=fragment.time,
                width_us=self._flow.bucket_us,
                directory=directory,
                share=Share(partition.index, count, fragment.partition_by) if count > 1 else WHOLE,
                dealt_to=self._dealt_to(name),
                shape=self._shapes[name],
            )
            for name, fragment in members.items()
        }
        return SegmentEngine(
            self._flow.name,
            partition,
            engines=engines,
            reads={name: fragment.inputs for name, fragment in members.items()},
            consumers={name: self._consumers(name) for name in members},
            streams=self._streams,
            width_us=self._flow.bucket_us,
            cores=self._spark.sparkContext.defaultParallelism,
        )

    def _consumers(self, fragment: str) -> Consumers:
        sinks = (sink.name for sink in self._flow.sinks.values() if sink.input == fragment)
        return Consumers(
            columns=tuple(self._streams[fragment].schema.names),
            sinks=tuple(Partition(sink_partition(name)) for name in sinks),
            counts=self._readers(fragment),
        )

    def _readers(self, fragment: str) -> dict[str, int]:
        """The segments that read a fragment, which are fragments too: others keep to themselves."""
        read = self._topology.inputs.items()
        return {name: self._topology.counts[name] for name, given in read if fragment in given}

    def _dealt_to(self, fragment: str) -> dict[str, Dealt]:
        """Consumers with one partition need no number: they take every row."""
        fragments, readers = self._flow.fragments, self._readers(fragment)
        return {name: (fragments[name].partition_by, count) for name, count in readers.items() if count > 1}

    def _analyse(self, fragment: Fragment, inputs: Mapping[str, Input]) -> pa.Schema:
        partitioned = self._unit == "fragment"
        if partitioned:
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
        tables = query.tables.facts()
        self._tables |= {f"{fragment.name}: {file}": is_ for file, is_ in tables.items()}
        self._tables_of[fragment.name] = tables
        self._shapes[fragment.name] = query_shape(query, inputs, fragment.time, self._flow.bucket_us)
        count = self._topology.counts[fragment.name] if partitioned else 1
        if count > 1:
            require_splittable(fragment.name, query.plan, fragment.partition_by, count)
        require_free_names(fragment.name, query.schema.names, self._dealt_to(fragment.name))
        return query.schema
