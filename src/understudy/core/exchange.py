"""What the parts of a partitioned flow say to each other across an exchange, by partition and copy.

An inlet or an outlet knows one pair of peers and speaks of them by slot. Around it, F-Cons and F-Prod speak
of many: an `Edge` event is a slot's event together with the partition that the slot is of, and `SendTo` is
an instruction to send to one copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.errors import require
from understudy.core.instructions import FoldedIn, Instruction, Send, SendTo
from understudy.core.messages import Attached, Detached, Folded, From
from understudy.core.partition import Copy, Partition
from understudy.core.view import Activated, Avail, Fail, Slot

SlotEvent = From | Attached | Detached | Fail | Avail | Activated


@dataclass(frozen=True, slots=True)
class Edge:
    """Something happened on the edge between this partition and that one."""

    partition: Partition
    event: SlotEvent


@dataclass(frozen=True, slots=True)
class ProducedFor:
    """The engine's next output bucket, the share of one consumer partition."""

    partition: Partition
    bucket: Bucket


def across(
    partition: Partition,
    instructions: Iterable[Instruction],
    versions: Mapping[Slot, int | None],
    produced_through: BucketId = NOTHING,
) -> list[Instruction]:
    """What one end of an edge asks for, with the partition that its slots are of.

    A newcomer is told that it was folded in, and how far a producer is: only it can know when all have done
    so, and when it has caught up with them.
    """
    told: list[Instruction] = []
    for instruction in instructions:
        match instruction:
            case Send(slot, message):
                told.append(SendTo(Copy(partition, slot), message))
            case FoldedIn(slot):
                version = versions[slot]
                require(version is not None, f"{slot.value} of {partition} was folded in without a version")
                assert version is not None
                told.append(SendTo(Copy(partition, slot), Folded(version, produced_through)))
            case _:
                told.append(instruction)
    return told
