"""Consumer: the bottom of a copy (the paper's F-Cons, section 5): an inlet for every producer partition, the
merge of what they bring, and the engine's next group.

It hands a group to the engine when the engine stands still, and acknowledges the group just before that. So
whenever the engine stands still, its state holds exactly the input that was acknowledged, through the same
number for every producer, and a checkpoint is the engine's state and that one number.

A *sink* is a consumer whose engine writes to the outside. After a crash it must go on from what was written,
so it acknowledges a group only when the group is processed.

Two versions of a flow may run side by side (`core.turning`), each with a consumer for the sink. One of them
is awake. The other *rests*: it takes output in like any consumer, hands nothing out, and drops what the other
version has delivered. So both versions are trimmed alike, how far it is behind shows in what has come, and it
can wake at any number.
"""

from __future__ import annotations

from collections.abc import Mapping

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.edge.inlet import Inlet
from understudy.core.edge.merge import Merge
from understudy.core.edge.messages import Held, Send, Take, Taken
from understudy.core.errors import PeerError, require
from understudy.core.replica.events import (
    AtEdge,
    CopyInstruction,
    LimitGroups,
    Passed,
    Process,
    Rest,
    Rests,
    SendTo,
    Wake,
)
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.view import Status


class Consumer:
    """Takes the merged input of a copy in order and hands it out in groups."""

    def __init__(
        self,
        name: str,
        own: int | None,
        producers: Mapping[Partition, Mapping[int, Status]],
        *,
        group_buckets_max: int = 1_000,
        group_bytes_max: int = 64 * 2**20,
        through: BucketId = NOTHING,
        acks_when_processed: bool = False,
        passive: bool = False,
        rests: bool = False,
    ) -> None:
        self.name = name
        self.own = own
        self.group_buckets_max = group_buckets_max
        self.group_bytes_max = group_bytes_max
        #: What the engine manages in time, within the two limits above.
        self.manages = LimitGroups()
        self.acks_when_processed = acks_when_processed
        self.inlets = {
            partition: Inlet(f"{name} from {partition}", statuses, own=own, through=through, passive=passive)
            for partition, statuses in sorted(producers.items())
        }
        self.merge = Merge(tuple(self.inlets), through=through)
        self.processed = through
        #: What the engine was given in all.
        self.handed_bytes = 0
        self.busy = False
        #: Whether it hands nothing out, or is to rest as soon as its group is done.
        self.rests = rests
        self.to_rest = False
        #: What another version has delivered: this one hands out nothing of it.
        self.passed = through

    @property
    def handed(self) -> BucketId:
        """Everything through this number is in the engine, or on its way there."""
        return self.merge.handed

    def at_edge(self, event: AtEdge) -> list[SendTo]:
        inlet = self.inlets.get(event.partition)
        if inlet is None:
            raise PeerError(f"{event.partition} is no producer of this partition")
        return self._carried(event.partition, inlet.handle(event.event))

    def hand_out(self) -> list[SendTo | Process]:
        """The next group for an engine that stands still, if there is one."""
        require(not self.busy, "a group was handed out while the engine works")
        if self.rests or not self.merge.ready:
            return []
        delivered = min(self.passed, self.merge.frontier)
        require(self.handed >= delivered, f"{self.name} would repeat what was delivered through {delivered}")
        group = self.merge.take(
            min(self.group_buckets_max, self.manages.buckets_max or self.group_buckets_max),
            min(self.group_bytes_max, self.manages.bytes_max or self.group_bytes_max),
        )
        self.busy = True
        self.handed_bytes += sum(bucket.size_bytes for bucket in group)
        sent = [] if self.acks_when_processed else self._acknowledge()
        return [*sent, Process(group)]

    def done(self) -> list[SendTo]:
        """The engine has finished its group."""
        require(self.busy, "the engine finished a group that it was never given")
        self.busy = False
        self.processed = self.handed
        return self._acknowledge() if self.acks_when_processed else []

    def told(self, event: Rest | Passed | Wake) -> list[CopyInstruction]:
        """Another version's output is delivered, or was, or this version's is to be. `turn` follows."""
        match event:
            case Rest():
                self.to_rest = not self.rests
            case Passed(through):
                self.passed = max(self.passed, through)
            case Wake(through):
                require(self.rests, f"{self.name} was woken and does not rest")
                self.rests, self.passed = False, max(self.passed, through)
        return []

    def turn(self) -> list[SendTo | Rests]:
        """Rest if that is due, and drop what another version has delivered, as far as it has come."""
        if self.busy:
            return []
        done: list[SendTo | Rests] = []
        if self.to_rest:
            self.to_rest, self.rests = False, True
            done.append(Rests(self.handed))
        through = min(self.passed, self.merge.frontier)
        if through > self.handed:
            self.merge.drop(through)
            self.processed = through
            done += self._acknowledge()
        return done

    def install(self, through: BucketId) -> None:
        """The engine holds everything through this number. Only before anything was received."""
        for inlet in self.inlets.values():
            require(not inlet.attached, f"state was installed after {inlet.name} was attached")
        self.merge = Merge(tuple(self.inlets), through=through)
        self.processed = through
        for partition, inlet in self.inlets.items():
            self.inlets[partition] = Inlet(inlet.name, inlet.status, own=self.own, through=through)

    def hold(self, through: BucketId) -> list[SendTo]:
        """A backup's snapshot holds everything through this number."""
        self.merge = Merge(tuple(self.inlets), through=through)
        self.processed = through
        sent: list[SendTo] = []
        for partition, inlet in self.inlets.items():
            sent += self._carried(partition, inlet.hold(through))
        return sent

    def take_over(self) -> list[SendTo]:
        """A backup's engine has started from its snapshot: ask for what follows."""
        sent: list[SendTo] = []
        for partition, inlet in self.inlets.items():
            sent += self._carried(partition, inlet.take_over())
        return sent

    def held(self, through: BucketId) -> list[SendTo]:
        """Tell every producer what the store holds of this partition."""
        sent: list[SendTo] = []
        for partition, inlet in self.inlets.items():
            sent += self._carried(partition, inlet.handle(Held(through)))
        return sent

    def _acknowledge(self) -> list[SendTo]:
        sent: list[SendTo] = []
        for partition, inlet in self.inlets.items():
            sent += self._carried(partition, inlet.handle(Taken(self.handed)))
        return sent

    def _carried(self, partition: Partition, instructions: list[Send | Take]) -> list[SendTo]:
        sent: list[SendTo] = []
        for instruction in instructions:
            if isinstance(instruction, Take):
                self.merge.put(partition, instruction.buckets)
            else:
                sent.append(SendTo(Copy(partition, instruction.replica), instruction.message))
        return sent

    def check(self) -> None:
        self.merge.check()
        for inlet in self.inlets.values():
            inlet.check()
            ahead = self.acks_when_processed and self.busy
            require(
                inlet.taken == self.handed or (ahead and inlet.taken < self.handed),
                f"{inlet.name} acknowledged {inlet.taken}, not {self.handed}",
            )
