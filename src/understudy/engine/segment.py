"""The engine of one copy: the fragments of a segment, each on a Spark query of its own.

A fragment takes the buckets that all of its inputs have completed. Rows between two fragments of the segment
pass through an `InputQueue` and stay inside. Output for consumers outside, partitions of other segments or
sinks, leaves as soon as its fragment is done with it: before the fragments that read it have run, and without
regard to other sinks. Fragments of which neither reads the other, directly or through others, run side by
side where Spark has more than one core.

The input queues and the states of all fragments are one snapshot. It goes on under changed code as far as the
states do (see `fitting`). Fragments of the segment may also have come or gone since: one that has come begins
after the snapshot's last input bucket and keeps no state, and of one that has gone nothing is taken up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Set
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.errors import require
from understudy.core.shape.partition import Partition
from understudy.engine.conforming import conformed
from understudy.engine.consumers import Consumers
from understudy.engine.fitting import refused_newcomer
from understudy.engine.input_queue import InputQueue
from understudy.engine.interface import Emit, Output, Snapshot
from understudy.engine.lanes import Lanes
from understudy.engine.query import Input
from understudy.engine.spark import Advanced, SparkEngine
from understudy.engine.storing import Digests, read_rows, seal_snapshot, verify_snapshot, write_rows
from understudy.flow.errors import EnvironmentFailed, FlowError


class SegmentEngine:
    """A `CopyEngine` (see `interface`).

    `engines` are those of its fragments, each after those it reads; `reads` says what each of them reads, and
    `consumers` who takes its output outside.
    """

    def __init__(
        self,
        flow: str,
        partition: Partition,
        *,
        engines: Mapping[str, SparkEngine],
        reads: Mapping[str, tuple[str, ...]],
        consumers: Mapping[str, Consumers],
        streams: Mapping[str, Input],
        width_us: int,
        cores: int,
    ) -> None:
        self._identity = {"flow": flow, "segment": partition.name, "fragments": list(engines)}
        self._engines = dict(engines)
        self._reads = {name: reads[name] for name in engines}
        self._consumers = {name: consumers[name] for name in engines if consumers[name].partitions}
        self._streams = streams
        self._width_us = width_us
        self._inputs = {name for read in self._reads.values() for name in read} - self._engines.keys()
        self._queues = {
            (name, given): InputQueue(streams[given], width_us)
            for name, read in self._reads.items()
            for given in read
        }
        self._lanes: Lanes[Advanced] = Lanes(min(cores, self._width()), f"segment {partition}")
        self._digests = Digests()
        self._through = NOTHING

    @property
    def through(self) -> BucketId:
        return self._through

    @property
    def stepwise(self) -> bool:
        return any(engine.stepwise for engine in self._engines.values())

    @property
    def steps(self) -> int:
        return sum(engine.steps for engine in self._engines.values())

    @property
    def unbounded(self) -> str | None:
        for name, engine in self._engines.items():
            if engine.unbounded is not None:
                return f"{engine.unbounded} in fragment {name!r}"
        return None

    @property
    def rounding(self) -> dict[str, tuple[str, ...]]:
        return {name: engine.rounding for name, engine in self._engines.items() if engine.rounding}

    def start(self, snapshot: Snapshot | None = None) -> None:
        if snapshot is None:
            for engine in self._engines.values():
                engine.start()
        else:
            self._restore(snapshot)

    def advance(self, inputs: Mapping[str, pa.Table], through: BucketId, emit: Emit) -> None:
        name = self._identity["segment"]
        require(through > self._through, f"segment {name}: {through} is not after {self._through}")
        unknown = inputs.keys() - self._inputs
        require(not unknown, f"segment {name} has no inputs {sorted(unknown)}")
        for (_, given), queue in self._queues.items():
            if given in inputs:
                schema = self._streams[given].schema
                queue.add([inputs[given].select(schema.names).cast(schema)], through)
            elif given in self._inputs:
                queue.add([], through)
        self._through = through
        try:
            self._run(emit)
        except BaseException:
            self._lanes.settle()
            raise

    def horizon(self) -> BucketId:
        needed = {
            name: engine.output_through + 1 if name in self._consumers else self._through + 1
            for name, engine in self._engines.items()
        }
        oldest = self._through + 1
        for name, engine in reversed(self._engines.items()):
            extent = engine.extent_us
            if extent == math.inf:
                return NOTHING
            first = min(engine.horizon(), needed[name] - math.ceil(extent / self._width_us))
            for given in self._reads[name]:
                if given in needed:
                    needed[given] = min(needed[given], first)
                else:
                    oldest = min(oldest, first)
        return max(oldest, NOTHING)

    def snapshot(self, into: Path) -> Snapshot:
        into.mkdir(parents=True)
        states = {name: engine.save(_folder(into, name)) for name, engine in self._engines.items()}
        for (name, given), queue in self._queues.items():
            if queue.rows.num_rows:
                write_rows(_queue_file(into, name, given), queue.rows)
        complete = [self._engines[name].output_through for name in self._consumers]
        facts = {
            **self._identity,
            "through": self._through,
            "output_through": min(complete, default=self._through),
            "engines": states,
        }
        snapshot = seal_snapshot(into, facts, self._digests)
        self._digests.keep_only(into)
        return snapshot

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()
        self._lanes.close()

    def _restore(self, snapshot: Snapshot) -> None:
        manifest = verify_snapshot(snapshot)
        said = {key: manifest.get(key) for key in self._identity}
        states = manifest["engines"]
        if said["flow"] != self._identity["flow"] or not self._is_of_these(states):
            raise EnvironmentFailed(
                f"snapshot {snapshot.directory} is of {_shown(said)}, not of {_shown(self._identity)}"
            )
        self._require_stateless(self._engines.keys() - states.keys())
        self._through = manifest["through"]
        for name, engine in self._engines.items():
            if name in states:
                engine.start((_folder(snapshot.directory, name), states[name]))
            else:
                engine.start(after=self._through)
        for (name, given), queue in self._queues.items():
            if name not in states:
                queue.begin_after(self._through)
            path = _queue_file(snapshot.directory, name, given)
            rows = [conformed(read_rows(path), self._streams[given].schema)] if path.exists() else []
            through = self._engines[given].output_through if given in self._engines else self._through
            queue.add(rows, through)

    def _is_of_these(self, states: Mapping[str, Any]) -> bool:
        """Whether some of its fragments are in a snapshot, each with those that it reads inside."""
        known = [name for name in self._engines if name in states]
        same = all((g in states) == (g in self._engines) for name in known for g in self._reads[name])
        return bool(known) and same

    def _require_stateless(self, newcomers: Set[str]) -> None:
        for name in self._engines:
            if name in newcomers and (sentence := refused_newcomer(name, self._engines[name].shape)):
                raise FlowError(sentence)

    def _run(self, emit: Emit) -> None:
        """Let every fragment take what its inputs have completed, each after those it reads."""
        waiting = list(self._engines)
        unfinished = set(waiting)
        self._begin_ready(waiting, unfinished)
        while unfinished:
            name, advanced = self._lanes.next()
            unfinished.discard(name)
            output = self._passed_on(name, advanced)
            # First let the fragments above run: they do not wait for what becomes of the output.
            self._begin_ready(waiting, unfinished)
            if output is not None:
                emit(output)

    def _begin_ready(self, waiting: list[str], unfinished: set[str]) -> None:
        """Begin what waits for nothing unfinished. Fragments whose inputs came no further are finished."""
        for name in tuple(waiting):
            if not unfinished.intersection(self._reads[name]):
                waiting.remove(name)
                queues = {given: self._queues[name, given] for given in self._reads[name]}
                through = min(queue.through for queue in queues.values())
                if through > self._engines[name].through:
                    rows = {given: queue.take(through) for given, queue in queues.items()}
                    self._lanes.add(name, partial(self._engines[name].advance, rows, through))
                else:
                    unfinished.discard(name)

    def _passed_on(self, name: str, advanced: Advanced) -> Output | None:
        """Put a fragment's completed output into the queues inside; returns it for the consumers outside."""
        for (_, given), queue in self._queues.items():
            if given == name:
                queue.add((advanced.rows[number] for number in sorted(advanced.rows)), advanced.through)
        consumers = self._consumers.get(name)
        if consumers is None or advanced.through == advanced.before:
            return None
        return Output(consumers.shares(advanced.rows), consumers.partitions, advanced.through)

    def _width(self) -> int:
        """How many fragments may have something to do at once."""
        depth: dict[str, int] = {}
        for name, read in self._reads.items():
            depth[name] = 1 + max((depth[given] for given in read if given in depth), default=0)
        return max(Counter(depth.values()).values())


def _folder(snapshot: Path, fragment: str) -> Path:
    return snapshot / "engines" / fragment


def _queue_file(snapshot: Path, fragment: str, given: str) -> Path:
    return snapshot / f"edge-{fragment}-{given}.arrow"


def _shown(identity: Mapping[str, Any]) -> str:
    fragments = ", ".join(identity["fragments"] or ())
    return f"segment {identity['segment']!r} (fragments {fragments}) of flow {identity['flow']!r}"
