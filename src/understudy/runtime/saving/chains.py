"""Which runs of buckets a save must write, given those that earlier saves of this process wrote.

An outlet keeps buckets in order, gains some at the end and loses some at the beginning. So each save writes
one run, of the buckets after the last one that was saved, and names the earlier runs as long as they hold a
bucket that is still kept. Nothing obliges a copy to go on where the last one on this partition stood: it may
come from another replica, which may cut empty stretches differently. So what a run holds is compared with
what is kept, bucket by bucket, and a chain that does not fit is dropped for one new run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import xxhash

from understudy.core.bucket import Bucket, BucketId
from understudy.core.edge.outlet import OutletState
from understudy.core.replica.events import CopyState
from understudy.core.shape.partition import Partition
from understudy.runtime.saving.manifest import Object, SavedOutlet
from understudy.runtime.saving.places import Parts, digest_of
from understudy.runtime.saving.runs import encode_run, view_of

#: A longer chain is replaced by one run.
RUNS_MAX = 64

#: Enough of a bucket to tell whether it is the same one.
_Mark = tuple[BucketId, int, bytes | None]


@dataclass(frozen=True)
class _Run:
    """A run that was written, without its payloads."""

    saved: Object
    marks: tuple[_Mark, ...]

    @property
    def last(self) -> BucketId:
        return self.marks[-1][0]


Chain = tuple[_Run, ...]
Chains = Mapping[Partition, Chain]


@dataclass(frozen=True)
class Plan:
    """How a state's outlets are saved."""

    outlets: tuple[SavedOutlet, ...]
    new: Mapping[Object, Parts]
    """The runs that must be written."""
    chains: Chains
    """What the next save goes on from, if this one succeeds."""


def plan(state: CopyState, earlier: Chains, has: Callable[[Object], bool]) -> Plan:
    """`has` says whether the store still has a run."""
    outlets: list[SavedOutlet] = []
    new: dict[Object, Parts] = {}
    chains: dict[Partition, Chain] = {}
    for consumer, outlet in state.outlets:
        marks = [_mark(bucket) for bucket in outlet.kept]
        chain = _fitting(earlier.get(consumer, ()), outlet, marks, has)
        written = sum(_after(run, outlet.gone_through) for run in chain)
        if written < len(marks):
            parts = encode_run(outlet.kept[written:])
            size_bytes = sum(memoryview(part).nbytes for part in parts)
            run = _Run(Object(digest_of(parts), size_bytes), tuple(marks[written:]))
            new[run.saved] = parts
            chain = (*chain, run)
        chains[consumer] = chain
        outlets.append(
            SavedOutlet(
                consumer,
                outlet.produced_through,
                outlet.gone_through,
                outlet.floors,
                len(outlet.kept),
                tuple(run.saved for run in chain),
            )
        )
    return Plan(tuple(outlets), new, chains)


def _mark(bucket: Bucket) -> _Mark:
    payload = None if bucket.empty else xxhash.xxh3_128_digest(view_of(bucket.payload))
    return bucket.number, bucket.size_bytes, payload


def _after(run: _Run, gone_through: BucketId) -> int:
    return sum(mark[0] > gone_through for mark in run.marks)


def _fitting(chain: Chain, outlet: OutletState, marks: list[_Mark], has: Callable[[Object], bool]) -> Chain:
    """The runs that hold a beginning of what is kept and nothing else that counts; none if they do not."""
    needed = tuple(run for run in chain if run.last > outlet.gone_through)
    held = [mark for run in needed for mark in run.marks if mark[0] > outlet.gone_through]
    fits = held == marks[: len(held)] and all(has(run.saved) for run in needed)
    return needed if fits and len(needed) < RUNS_MAX else ()
