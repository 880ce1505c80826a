"""A partitioned flow in one process: partitions take turns by chance, each with groupings of its own."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from understudy.core.bucket import NOTHING
from understudy.core.shape.partition import Partition
from understudy.engine.digest import canonical_order, digest_of
from understudy.engine.flow_engines import FlowEngines
from understudy.engine.interface import CopyEngine, Output, Snapshot
from understudy.engine.times import path_of, times_of
from understudy.flow.dealing import deal, partition_numbers
from understudy.flow.flow import Flow


class PartitionedRun:
    """Sources are dealt out by Arrow, fragments' outputs by Spark. What reaches sinks is in `delivered`."""

    def __init__(
        self,
        flow: Flow,
        partitions: int,
        spark: SparkSession,
        folder: Path,
        *,
        seed: int,
        counts: Counter[str],
    ) -> None:
        self.flow = flow
        self.made = FlowEngines(flow, "fragment", partitions, spark=spark)
        self.topology = self.made.topology
        self.chance = random.Random(seed)
        self.folder = folder
        self.compared = counts
        self.partitions = self.topology.partitions
        self.engines: dict[Partition, CopyEngine] = {}
        #: (consumer, stream) -> bucket -> the parts that its producers sent.
        self.waiting: dict[tuple[Partition, str], dict[int, list[pa.Table]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self.delivered: dict[Partition, dict[int, list[pa.Table]]] = defaultdict(lambda: defaultdict(list))
        self.sent: Counter[tuple[str, Partition]] = Counter()
        self.sealed = dict.fromkeys(self.topology.ends | set(self.partitions), NOTHING)

    def __enter__(self) -> PartitionedRun:
        for partition in self.partitions:
            self.engines[partition] = self.engine(partition)
            self.engines[partition].start()
        return self

    def __exit__(self, *problem: object) -> None:
        for engine in self.engines.values():
            engine.close()

    def engine(self, partition: Partition) -> CopyEngine:
        return self.made.engine(partition, self.folder / str(partition))

    def start_again(self, partition: Partition, snapshot: Snapshot) -> None:
        """Another engine goes on from a snapshot in place of the present one."""
        self.engines[partition].close()
        self.engines[partition] = self.engine(partition)
        self.engines[partition].start(snapshot)

    def feed(self, source: str, rows: pa.Table, through: int) -> None:
        """Deal a source's rows out to every fragment that reads it."""
        for name, read in self.topology.inputs.items():
            if source in read:
                count = self.topology.counts[name]
                numbers = partition_numbers(rows, self.flow.fragments[name].partition_by, count)
                for index, share in enumerate(deal(rows, numbers, count)):
                    for bucket, part in self.buckets(source, share):
                        self.waiting[Partition(name, index), source][bucket].append(part)
                        self.sent[source, Partition(name, index)] += part.num_rows
        self.sealed[Partition(source)] = through

    def buckets(self, stream: str, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        numbers = self.made.streams[stream].numbers(rows, self.flow.bucket_us)
        for bucket in sorted(set(numbers.tolist())):
            yield bucket, rows.filter(pa.array(numbers == bucket))

    def ready(self, partition: Partition) -> int:
        return min(self.sealed[producer] for producer in self.topology.producers(partition))

    def inputs(self, partition: Partition, through: int) -> dict[str, pa.Table]:
        """What waits for a partition in buckets up to `through`: merged, and left where it is."""
        found = {}
        for stream in self.topology.inputs[partition.name]:
            waiting = self.waiting[partition, stream]
            parts = [self.merged(stream, waiting[bucket]) for bucket in sorted(waiting) if bucket <= through]
            if parts:
                found[stream] = pa.concat_tables(parts)
        return found

    def merged(self, stream: str, parts: list[pa.Table]) -> pa.Table:
        whole = pa.concat_tables(parts).combine_chunks()
        path = path_of(self.made.streams[stream].time, whole.column_names)
        return canonical_order(whole, times_of(whole, path))

    def step(self, partition: Partition, through: int) -> list[Output]:
        """Advance a partition and hand its output on."""
        outputs = self.advanced(self.engines[partition], partition, through)
        self.compared["batches"] += 1
        for stream in self.topology.inputs[partition.name]:
            waiting = self.waiting[partition, stream]
            for bucket in [bucket for bucket in waiting if bucket <= through]:
                del waiting[bucket]
        for output in outputs:
            self.hand_on(partition, output)
        return outputs

    def advanced(self, engine: CopyEngine, partition: Partition, through: int) -> list[Output]:
        """What an engine puts out for the inputs that wait for a partition, which are left where they are."""
        outputs: list[Output] = []
        engine.advance(self.inputs(partition, through), through, outputs.append)
        return outputs

    def hand_on(self, partition: Partition, output: Output) -> None:
        names = self.made.streams[partition.name].schema.names
        assert output.consumers == self.topology.consumers(partition)
        for consumer, shares in output.shares.items():
            for bucket, rows in shares.items():
                assert self.sealed[partition] < bucket <= output.through
                assert rows.num_rows
                assert rows.schema.names == names
                assert rows.equals(self.merged(partition.name, [rows])), "not in canonical order"
                self.sent[partition.name, consumer] += rows.num_rows
                if consumer in self.topology.ends:
                    self.delivered[consumer][bucket].append(rows)
                else:
                    self.waiting[consumer, partition.name][bucket].append(rows)
        self.sealed[partition] = output.through

    def run(self, through: int, stop: Partition | None = None) -> None:
        """Let partitions take turns until all have come to `through`, as far as their inputs let them.

        With `stop`, only until that one has taken in something and has something more to take in.
        """
        while True:
            able = [p for p in self.partitions if self.engines[p].through < min(self.ready(p), through)]
            if not able or (stop in able and self.engines[stop].through > 0):
                return
            partition = self.chance.choice(able)
            after, last = self.engines[partition].through, min(self.ready(partition), through)
            # A long first stretch of empty buckets is of no interest, and neither is the end.
            first = max(after + 1, min(last, self.earliest(partition)))
            self.step(partition, self.chance.choice([last, last, self.chance.randint(first, last)]))

    def earliest(self, partition: Partition) -> int:
        found = [
            bucket
            for stream in self.topology.inputs[partition.name]
            for bucket in self.waiting[partition, stream]
        ]
        return min(found, default=self.ready(partition))

    def rows_of(self, fragment: str) -> dict[int, pa.Table]:
        """What the sink of a fragment got, by bucket, in canonical order."""
        delivered = self.delivered[Partition(f"sink:{fragment}")]
        return {bucket: self.merged(fragment, parts) for bucket, parts in sorted(delivered.items())}


def digests(outputs: list[Output]) -> Mapping[tuple[str, int], str]:
    return {
        (str(consumer), bucket): digest_of(rows)
        for output in outputs
        for consumer, shares in output.shares.items()
        for bucket, rows in shares.items()
    }
