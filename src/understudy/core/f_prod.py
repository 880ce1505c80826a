"""F-Prod: the top of a partition's replica, one outlet for every consumer partition (Flux paper, section 5).

The partition's output is split by the consumers' keys before it comes here: each outlet is given its share
of a bucket. Numbers rise in every outlet, and the last number of a group goes to every outlet, rows or not,
so that no consumer waits for a producer that has nothing for it.

The producer stands still while any outlet is full. That cannot end in a circle of partitions waiting for
one another: all outlets of all producers count the same numbers, a consumer acknowledges what has come from
every producer, so the producer that is furthest behind is never full.
"""

from __future__ import annotations

from collections.abc import Mapping

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.errors import PeerError, require
from understudy.core.exchange import Edge, ProducedFor, across
from understudy.core.instructions import Instruction, SendTo
from understudy.core.machine import Machine
from understudy.core.messages import Attached, OutletState, Produced, PSync, Sync
from understudy.core.outlet import Outlet
from understudy.core.partition import Copy, Partition
from understudy.core.view import Slot, Status


class FProd(Machine):
    """Keeps a partition's output until every copy of every consumer has it."""

    def __init__(
        self,
        name: str,
        consumers: Mapping[Partition, Mapping[Slot, Status]],
        *,
        buckets_max: int = 100_000,
        bytes_max: int = 256 * 2**20,
    ) -> None:
        super().__init__(name)
        self.outlets = {
            partition: Outlet(
                f"{name} to {partition}", statuses, buckets_max=buckets_max, bytes_max=bytes_max
            )
            for partition, statuses in sorted(consumers.items())
        }
        self.version = 0
        self._full: set[Partition] = set()

    @property
    def full(self) -> bool:
        """Whether the engine must wait."""
        # Asked with every message, so it must not take longer with more outlets.
        return bool(self._full)

    @property
    def trimmed_through(self) -> BucketId:
        """Everything through this number was produced, and no consumer will ask for it again."""
        return min((outlet.buffer.trimmed_through for outlet in self.outlets.values()), default=NOTHING)

    def _handle(self, event: object) -> list[Instruction]:
        match event:
            case ProducedFor(partition, bucket):
                return self._drive(partition, Produced(bucket))
            case Sync(version):
                self.version = version
                return [
                    SendTo(Copy(partition, slot), PSync(version))
                    for partition, outlet in self.outlets.items()
                    for slot in outlet.status
                    if slot in outlet.attached
                ]
            case Edge(partition, inner):
                if partition not in self.outlets:
                    raise PeerError(f"{partition} is no consumer of this partition")
                done = self._drive(partition, inner)
                if isinstance(inner, Attached) and self.version:
                    # Also when it is not new: a checkpoint may have been taken while the connection was made.
                    done.append(SendTo(Copy(partition, inner.slot), PSync(self.version)))
                return done
            case _:
                raise PeerError(f"f-prod does not take {event}")

    def _drive(self, partition: Partition, event: object) -> list[Instruction]:
        outlet = self.outlets[partition]
        instructions = outlet.handle(event)
        self._note_full(partition)
        return across(partition, instructions, outlet.version, outlet.buffer.produced_through)

    def _note_full(self, partition: Partition) -> None:
        if self.outlets[partition].full:
            self._full.add(partition)
        else:
            self._full.discard(partition)

    def state(self) -> tuple[tuple[Partition, OutletState], ...]:
        return tuple((partition, outlet.state()) for partition, outlet in self.outlets.items())

    def install(self, version: int, outlets: tuple[tuple[Partition, OutletState], ...]) -> None:
        require(
            [partition for partition, _ in outlets] == list(self.outlets),
            "a state was moved to a partition with other consumers",
        )
        self.version = version
        for partition, state in outlets:
            self.outlets[partition].install(state)
            self._note_full(partition)

    def check(self) -> None:
        for outlet in self.outlets.values():
            outlet.check()
        full = {partition for partition, outlet in self.outlets.items() if outlet.full}
        require(full == self._full, f"{self._full} are noted as full, {full} are")
