"""The store of saved snapshots, in a simulated world: the newest few of every partition.

Nothing here fails by itself: a schedule lets a save fail, or an older snapshot be the newest that is whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.shape.partition import Partition
from understudy.sim.checkers import demand
from understudy.sim.flow import Flow
from understudy.sim.worker import Kept

#: How many snapshots of a partition are kept.
KEPT_MAX = 2

#: By partition, the snapshots that are kept, oldest first. Never changed in place.
Vault = Mapping[Partition, tuple[Kept, ...]]


def with_saved(vault: Vault, partition: Partition, kept: Kept) -> Vault:
    """The vault, with one more snapshot, and without those that it is now too full for."""
    snapshots = sorted((*vault.get(partition, ()), kept), key=lambda each: each.state.through)
    return {**vault, partition: tuple(snapshots[-KEPT_MAX:])}


def floor_of(vault: Vault, partition: Partition) -> BucketId:
    """What the oldest snapshot of a partition holds that will ever be used.

    As long as there are fewer than are kept, the only one may be damaged; and a copy that was declared dead
    and does not know yet may still add an older one.
    """
    kept = vault.get(partition, ())
    return kept[0].state.through if len(kept) == KEPT_MAX else NOTHING


def begins_with(vault: Vault, partition: Partition, *, damaged: int = 0) -> Kept | None:
    """The newest snapshot that is whole, if so many are damaged; None: a copy begins with nothing."""
    kept = vault.get(partition, ())
    return kept[-1 - damaged] if len(kept) > damaged else None


def may_be_damaged(vault: Vault, partition: Partition, adopted: Collection[Partition]) -> bool:
    """Whether a partition goes on if its newest snapshot is damaged: from the one before, or from nothing."""
    return len(vault.get(partition, ())) > (partition in adopted)


def check_fit(
    flow: Flow, vault: Vault, forgotten: Mapping[str, BucketId], adopted: Collection[Partition] = ()
) -> None:
    """Any two saved states fit together, and the logs go back far enough for each of them.

    A partition of which fewer are saved than are kept may also begin with nothing, and make everything again,
    unless its first one was adopted.
    """
    for consumer in flow.topology.partitions:
        for through in _numbers(vault, consumer, adopted):
            for producer in flow.topology.producers(consumer):
                needed = flow.reference.edges[producer, consumer].next_after(through)
                if needed is not None:
                    _check_edge(vault, forgotten, producer, consumer, needed)


def _numbers(vault: Vault, partition: Partition, adopted: Collection[Partition]) -> Iterator[BucketId]:
    """Where a partition may begin again."""
    yield from (kept.state.through for kept in vault.get(partition, ()))
    if len(vault.get(partition, ())) < KEPT_MAX and partition not in adopted:
        yield NOTHING


def _check_edge(
    vault: Vault,
    forgotten: Mapping[str, BucketId],
    producer: Partition,
    consumer: Partition,
    needed: BucketId,
) -> None:
    what = f"a saved state of {consumer} needs bucket {needed} of {producer}"
    if producer.name in forgotten:
        demand(forgotten[producer.name] < needed, "saved-fit", f"{what}, which its log has forgotten")
        return
    for kept in vault.get(producer, ()):
        gone = dict(kept.state.outlets)[consumer].gone_through
        demand(
            gone < needed, "saved-fit", f"{what}, and a saved state of that has it no more: {gone} is gone"
        )
