"""A simulated flow: its topology, its input, and everything that must come of it.

Inputs are fixed before a run begins. One reference engine for each partition, fed with all input in one go,
shows what every engine must take, hold and put out, and what every sink must get; so checkers need no memory
of their own: the position of an engine or a sink decides what must come next.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.shape.partition import Partition
from understudy.core.shape.topology import Topology
from understudy.sim.engine import Dealing, Rows, SimEngine, Snapshot, merged


class ExpectedRows:
    """What one partition takes, or what one producer has for one consumer: rows by number."""

    def __init__(self, rows: Mapping[BucketId, Rows], through: BucketId) -> None:
        self.through = through
        self.rows = {number: rows[number] for number in sorted(rows) if rows[number]}
        self._numbers = list(self.rows)

    def next_after(self, number: BucketId) -> BucketId | None:
        """The first bucket with rows after this number."""
        at = bisect_right(self._numbers, number)
        return self._numbers[at] if at < len(self._numbers) else None


@dataclass(frozen=True, eq=False)
class Flow:
    """`inputs` are the sealed buckets of each source, all of which end with the same number."""

    topology: Topology
    inputs: Mapping[str, Sequence[Bucket]]
    lags: Mapping[str, int]

    @cached_property
    def dealings(self) -> dict[Partition, Dealing]:
        """How each producer deals its output to its consumers."""
        ends = [Partition(name) for name in self.topology.sources]
        return {p: Dealing(self.topology.consumers(p)) for p in (*ends, *self.topology.partitions)}

    def engine(self, partition: Partition) -> SimEngine:
        return SimEngine(self.dealings[partition], self.lags[partition.name])

    @cached_property
    def reference(self) -> Reference:
        return Reference(self)


class Reference:
    """What must happen, known in advance."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        #: What each producer has for each consumer.
        self.edges: dict[tuple[Partition, Partition], ExpectedRows] = {}
        #: What each consumer must take, merged.
        self.taken: dict[Partition, ExpectedRows] = {}
        self._states: dict[Partition, list[tuple[BucketId, Snapshot]]] = {}
        for name, buckets in flow.inputs.items():
            rows = {b.number: b.payload for b in buckets if isinstance(b.payload, tuple)}
            self._put(Partition(name), rows, buckets[-1].number if buckets else NOTHING)
        for partition in flow.topology.partitions:
            self._run(partition)
        for sink in flow.topology.sinks:
            self._merge(Partition(sink))

    def _put(self, producer: Partition, rows: Mapping[BucketId, Rows], through: BucketId) -> None:
        dealing = self._flow.dealings[producer]
        dealt: dict[Partition, dict[BucketId, Rows]] = {}
        for number, own in rows.items():
            for consumer, part in dealing.deal(own).items():
                dealt.setdefault(consumer, {})[number] = part
        for consumer in self._flow.topology.consumers(producer):
            self.edges[producer, consumer] = ExpectedRows(dealt.get(consumer, {}), through)

    def _merge(self, consumer: Partition) -> ExpectedRows:
        streams = [self.edges[producer, consumer] for producer in self._flow.topology.producers(consumer)]
        through = min(stream.through for stream in streams)
        rows: dict[BucketId, Rows] = {}
        for stream in streams:
            for number, own in stream.rows.items():
                if number <= through:
                    rows[number] = tuple(sorted((*rows.get(number, ()), *own)))
        self.taken[consumer] = ExpectedRows(rows, through)
        return self.taken[consumer]

    def _run(self, partition: Partition) -> None:
        stream = self._merge(partition)
        engine = self._flow.engine(partition)
        states = self._states[partition] = [(NOTHING, engine.snapshot())]
        out: dict[Partition, dict[BucketId, Rows]] = {}
        buckets = [Bucket(n, ((partition, rows),)) for n, rows in stream.rows.items()]
        for bucket in (*buckets, Bucket(stream.through)):
            if bucket.number in (engine.position, NOTHING):
                continue
            for consumer, run in engine.advance([bucket]):
                for made in run:
                    if isinstance(made.payload, tuple):
                        out.setdefault(consumer, {})[made.number] = made.payload
            states.append((engine.position, engine.snapshot()))
        for consumer in self._flow.topology.consumers(partition):
            self.edges[partition, consumer] = ExpectedRows(out.get(consumer, {}), engine.complete)

    def state_at(self, partition: Partition, position: BucketId) -> Snapshot:
        """The state of an engine that holds exactly the input through this number."""
        states = self._states[partition]
        at, state = states[bisect_right(states, position, key=lambda each: each[0]) - 1]
        if at == position:
            return state
        engine = self._flow.engine(partition)
        engine.restore(state)
        engine.advance([Bucket(position)])
        return engine.snapshot()


__all__ = ["Flow", "Reference", "ExpectedRows", "merged"]
