"""A copy on its host: its machine, and the edges that it has open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from understudy.core.bucket import BucketId
from understudy.core.replica.replica import Replica
from understudy.core.shape.partition import Copy


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

    def taken_from(self, producer: Copy) -> BucketId:
        """Through which number this copy has taken a producer's output."""
        assert self.machine.below is not None
        return self.machine.below.inlets[producer.partition].taken

    def produced_for(self, consumer: Copy) -> BucketId:
        """Through which number this copy has produced output for a consumer."""
        assert self.machine.above is not None
        return self.machine.above.outlets[consumer.partition].buffer.produced_through
