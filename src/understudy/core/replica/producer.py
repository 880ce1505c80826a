"""Producer: the top of a copy, one outlet for every consumer partition (the paper's F-Prod, section 5).

The copy's output is split by the consumers' keys before it comes here: each outlet is given its share of a
bucket. Numbers rise in every outlet, and the number through which output is complete goes to every outlet,
rows or not, so that no consumer waits for a producer that has nothing for it.

The producer stands still while any outlet is full. That cannot end in a deadlock of partitions waiting for
one another: a consumer acknowledges what has come from every producer, so the producer that is furthest
behind is never full. A source is a producer by itself, and only its own full outlets stop it, so a source
that is ahead waits without stopping a source that is behind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.edge.messages import Put, Refilled, Send, require_rising
from understudy.core.edge.outlet import Outlet, OutletState
from understudy.core.errors import PeerError, require
from understudy.core.replica.events import AtEdge, LogRead, Produced, ReadLog, SendTo
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.view import Status


class Producer:
    """Keeps a copy's output until every live copy of every consumer has it."""

    def __init__(
        self,
        name: str,
        consumers: Mapping[Partition, Mapping[int, Status]],
        *,
        buckets_max: int = 100_000,
        bytes_max: int = 256 * 2**20,
        stored: Collection[Partition] = (),
        backed: bool = False,
        through: BucketId = NOTHING,
        forgotten: BucketId = NOTHING,
    ) -> None:
        """`stored` are the consumers whose state is saved; the others are those of an outlet."""
        self.name = name
        self.outlets = {
            partition: Outlet(
                f"{name} to {partition}",
                statuses,
                buckets_max=buckets_max,
                bytes_max=bytes_max,
                stored=partition in stored,
                backed=backed,
                through=through,
                forgotten=forgotten,
            )
            for partition, statuses in sorted(consumers.items())
        }
        self._full: set[Partition] = set()

    @property
    def full(self) -> bool:
        """Whether the engine must wait."""
        # Asked with every message, so it must not take longer with more outlets.
        return bool(self._full)

    @property
    def trimmed_through(self) -> BucketId:
        """Everything through this number was produced, and no consumer will ask for it again."""
        return min(
            (
                outlet.buffer.gone_through if len(outlet.buffer) else outlet.buffer.produced_through
                for outlet in self.outlets.values()
            ),
            default=NOTHING,
        )

    @property
    def log_needed(self) -> BucketId:
        """No copy will ever ask for anything through this number again: a log may forget it."""
        return min((outlet.log_needed for outlet in self.outlets.values()), default=NOTHING)

    @property
    def gap(self) -> bool:
        """Whether some consumer that begins again from a saved snapshot would lack something here."""
        return any(outlet.gap for outlet in self.outlets.values())

    def produced(self, event: Produced) -> list[SendTo | ReadLog]:
        self._expect_output(event)
        sent: list[SendTo | ReadLog] = []
        for partition, buckets in event.shares:
            sent += self._drive(partition, Put(buckets))
        return sent

    def _expect_output(self, event: Produced) -> None:
        """Raise `BrokenInvariant` unless every share can be taken: none is taken before that is known."""
        consumers = [partition for partition, _ in event.shares]
        require(len(set(consumers)) == len(consumers), f"output for one consumer twice: {consumers}")
        for partition, buckets in event.shares:
            require(partition in self.outlets, f"output for {partition}, which is no consumer of this copy")
            require(bool(buckets), f"output for {partition} has at least one bucket, if only its number")
            require_rising(buckets, self.outlets[partition].buffer.produced_through)

    def at_edge(self, event: AtEdge) -> list[SendTo | ReadLog]:
        if event.partition not in self.outlets:
            raise PeerError(f"{event.partition} is no consumer of this partition")
        return self._drive(event.partition, event.event)

    def log_read(self, event: LogRead) -> list[SendTo | ReadLog]:
        partition, replica = event.consumer.partition, event.consumer.replica
        require(partition in self.outlets, f"the log was read for {partition}, which is no consumer")
        return self._drive(partition, Refilled(replica, event.after, event.buckets))

    def _drive(self, partition: Partition, event: object) -> list[SendTo | ReadLog]:
        instructions = self.outlets[partition].handle(event)
        self._note_full(partition)
        return [
            SendTo(Copy(partition, each.replica), each.message)
            if isinstance(each, Send)
            else ReadLog(Copy(partition, each.replica), each.after, each.bytes_max)
            for each in instructions
        ]

    def _note_full(self, partition: Partition) -> None:
        if self.outlets[partition].full:
            self._full.add(partition)
        else:
            self._full.discard(partition)

    def state(self) -> tuple[tuple[Partition, OutletState], ...]:
        return tuple((partition, outlet.state()) for partition, outlet in self.outlets.items())

    def install(self, outlets: tuple[tuple[Partition, OutletState], ...], *, saved: bool = False) -> None:
        require(
            [partition for partition, _ in outlets] == list(self.outlets),
            "a state was moved to a partition with other consumers",
        )
        for partition, state in outlets:
            self.outlets[partition].install(state, saved=saved)
            self._note_full(partition)

    def check(self) -> None:
        for outlet in self.outlets.values():
            outlet.check()
        full = {partition for partition, outlet in self.outlets.items() if outlet.full}
        require(full == self._full, f"{self._full} are noted as full, {full} are")
