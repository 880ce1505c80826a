"""A copy on its host: its machine, and the edges that it has open. Sources and sinks are copies as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.host.limits import Limits
from understudy.core.host.places import Places
from understudy.core.replica.consumer import Consumer
from understudy.core.replica.producer import Producer
from understudy.core.replica.replica import Replica
from understudy.core.shape.partition import Copy, Partition


@dataclass(frozen=True, slots=True)
class Opened:
    """An edge that stands, or is being opened: the attempt's number, and the process at its other end."""

    serial: int
    node: str


@dataclass(eq=False)
class Resident:
    """A copy that is hosted here. `edges` are open, `tried` have been asked for and not answered yet."""

    copy: Copy
    epoch: int
    machine: Replica
    edges: dict[Copy, Opened] = field(default_factory=dict)
    tried: dict[Copy, Opened] = field(default_factory=dict)

    @property
    def begun(self) -> bool:
        return self.machine.begun

    @property
    def producers(self) -> Iterator[Copy]:
        inlets = {} if self.machine.below is None else self.machine.below.inlets
        return (Copy(partition, replica) for partition, inlet in inlets.items() for replica in inlet.status)

    @property
    def consumers(self) -> Iterator[Copy]:
        outlets = {} if self.machine.above is None else self.machine.above.outlets
        return (
            Copy(partition, replica) for partition, outlet in outlets.items() for replica in outlet.status
        )

    @property
    def neighbours(self) -> Iterator[Copy]:
        ends = self.machine.ends.items()
        return (Copy(partition, replica) for partition, end in ends for replica in end.status)

    def is_fed_by(self, producer: Partition) -> bool:
        """Whether some copy of that partition is attached to this one."""
        assert self.machine.below is not None
        return bool(self.machine.below.inlets[producer].attached)

    def taken_from(self, producer: Copy) -> BucketId:
        """Through which number this copy has taken a producer's output."""
        assert self.machine.below is not None
        return self.machine.below.inlets[producer.partition].taken

    def produced_for(self, consumer: Copy) -> BucketId:
        """Through which number this copy has produced output for a consumer."""
        assert self.machine.above is not None
        return self.machine.above.outlets[consumer.partition].buffer.produced_through


def resident_of(copy: Copy, places: Places, limits: Limits, *, saved: bool, backup: bool) -> Resident:
    """A copy at its seat in the newest view, which has taken and produced nothing yet.

    `saved` says that the run saves its state in a store; `backup`, that this copy does not work as yet.
    """
    producers, consumers = places.topology.producers, places.topology.consumers
    between = any(partition not in places.topology.ends for partition in producers(copy.partition))
    below = Consumer(
        f"consumer of {copy}",
        copy.replica,
        places.statuses(producers(copy.partition), copy),
        group_buckets_max=limits.group_buckets_max,
        group_bytes_max=limits.group_bytes_max,
        passive=backup,
    )
    above = Producer(
        f"producer of {copy}",
        places.statuses(consumers(copy.partition), copy),
        buckets_max=limits.output_buckets_max,
        bytes_max=limits.output_bytes_max,
        # A sink holds what it has acknowledged, whatever happens to it.
        stored=[p for p in consumers(copy.partition) if saved and p not in places.topology.ends],
    )
    # Sources have a log, which may grow; copies keep in memory what their consumers have not saved.
    save_bytes_max = limits.save_bytes_max if saved and between else 0
    machine = Replica(copy, below, above, save_bytes_max=save_bytes_max)
    machine.saves = saved and places.saves(copy)
    return Resident(copy, places.seat_epoch(copy), machine)


def ends_of(
    places: Places,
    limits: Limits,
    delivered: Mapping[str, BucketId],
    trimmed: Mapping[str, BucketId],
    forgotten: Mapping[str, BucketId],
    *,
    saved: bool,
    rest: bool = False,
) -> Iterator[Resident]:
    """Sources and sinks. `delivered` says through which number each sink has its output already, `trimmed`
    through which number every live copy has taken a source's buckets, `forgotten` through which its log is
    gone. `rest` says that the sinks do.
    """
    topology = places.topology
    for name in topology.sources:
        copy = Copy(Partition(name))
        above = Producer(
            f"source {name}",
            places.statuses(topology.consumers(copy.partition), copy),
            buckets_max=limits.input_buckets_max,
            bytes_max=limits.input_bytes_max,
            stored=topology.consumers(copy.partition) if saved else (),
            backed=True,
            through=trimmed.get(name, NOTHING) if saved else NOTHING,
            forgotten=forgotten.get(name, NOTHING),
        )
        yield Resident(copy, 0, Replica(copy, None, above))
    for name in topology.sinks:
        copy = Copy(Partition(name))
        below = Consumer(
            name,
            None,
            places.statuses(topology.producers(copy.partition), copy),
            group_buckets_max=limits.group_buckets_max,
            group_bytes_max=limits.group_bytes_max,
            through=delivered.get(name, NOTHING),
            acks_when_processed=True,
            rests=rest,
        )
        yield Resident(copy, 0, Replica(copy, below, None))
