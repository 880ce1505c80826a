"""An engine with all that it emitted, and flows of one fragment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from spark_cases import WIDTH_US

import understudy as us
from understudy.core.bucket import NOTHING
from understudy.core.shape.partition import Partition
from understudy.engine.flow_engines import FlowEngines
from understudy.engine.interface import CopyEngine, Output, Snapshot

EVENTS = us.Push("k string, v bigint, id bigint, ts timestamp")


class Driven:
    """One engine. Every output that it emits must go on where the consumer's last one ended."""

    def __init__(self, engine: CopyEngine) -> None:
        self.engine = engine
        self.outputs: list[Output] = []
        self.rows: dict[Partition, dict[int, pa.Table]] = {}
        self.through: dict[Partition, int] = {}

    def advance(self, inputs: Mapping[str, pa.Table], through: int) -> None:
        self.engine.advance(inputs, through, self._take)

    def goes_on_in(self, engine: CopyEngine, snapshot: Snapshot) -> Driven:
        """Another engine that starts from a snapshot of this one, taken when this had emitted as much."""
        other = Driven(engine)
        other.rows = {consumer: dict(rows) for consumer, rows in self.rows.items()}
        other.through = dict(self.through)
        engine.start(snapshot)
        return other

    def rows_of(self, sink: str) -> dict[int, pa.Table]:
        """What a sink got, by bucket."""
        return self.rows.get(Partition(f"sink:{sink}"), {})

    def _take(self, output: Output) -> None:
        self.outputs.append(output)
        assert output.shares.keys() <= set(output.consumers)
        for consumer in output.consumers:
            before = self.through.get(consumer, NOTHING)
            assert output.through > before, f"{consumer} came no further"
            for number, table in output.shares.get(consumer, {}).items():
                assert before < number <= output.through
                assert table.num_rows
                self.rows.setdefault(consumer, {})[number] = table
            self.through[consumer] = output.through


def flow_of(name: str, function: Callable[..., Any], time: str, inputs: tuple[str, ...] = ("a",)) -> us.Flow:
    """A flow of one fragment, which has the name of the flow, and one sink."""
    flow = us.Flow(name, bucket=f"{WIDTH_US // 1000} ms")
    sources = [flow.source(given, EVENTS, time="ts") for given in inputs]

    def fragment(*frames: Any) -> Any:
        return function(*frames)

    fragment.__name__ = name
    flow.sink(flow.fragment(*sources, time=time)(fragment), us.Console())
    return flow


def engine_of(flow: us.Flow, spark: SparkSession, folder: Path) -> CopyEngine:
    """An engine for a flow that is one segment."""
    engines = FlowEngines(flow, "flow", 1, spark=spark)
    (partition,) = engines.topology.partitions
    return engines.engine(partition, folder)
