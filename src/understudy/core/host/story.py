"""A host's events as its story shows them: short, and without rows, which a story must not keep in memory."""

from __future__ import annotations

from collections.abc import Sequence

from understudy.core.bucket import Bucket
from understudy.core.edge.messages import Data
from understudy.core.host.parcels import Began, HostEvent, Inside, ParcelFrom, Relay, Say, ViewSeen
from understudy.core.replica.events import Installed, LogRead, Produced


def told(event: HostEvent) -> object:
    match event:
        case ParcelFrom(node, _, Say(sender, to, _, Data(buckets)), cause):
            return f"Data {_span(buckets)} {sender} > {to}, {node}#{cause}"
        case ParcelFrom(node, _, Relay(view), cause):
            return f"view {view.epoch}, {node}#{cause}"
        case Inside(copy, epoch, Produced(shares)):
            runs = ", ".join(f"{_span(buckets)} > {partition}" for partition, buckets in shares)
            return f"Produced {copy}@{epoch}: {runs}"
        case Inside(copy, epoch, LogRead(consumer, after, buckets)):
            return f"LogRead {copy}@{epoch} after {after}: {_span(buckets)} > {consumer}"
        case Began(copy, epoch, saved) if saved is not None:
            return f"Began {copy}@{epoch}: version {saved.version}, through {saved.through}"
        case Inside(copy, epoch, Installed(attempt, state)):
            return f"Installed {copy}@{epoch}: attempt {attempt}, version {state.version}"
        case ViewSeen(view):
            return f"view {view.epoch}"
    return event


def _span(buckets: Sequence[Bucket]) -> str:
    """A run of buckets by its numbers. A story also tells of what was rejected, so the run may be empty."""
    return f"{buckets[0].number}..{buckets[-1].number}" if buckets else "no bucket"
