"""What every sink writer promises."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import pyarrow as pa

from understudy.core.bucket import BucketId
from understudy.core.errors import require

#: Buckets with their rows, ascending.
Delivery = Sequence[tuple[BucketId, pa.Table]]


class SinkWriter(Protocol):
    """Called by one thread. `recover` comes first and once."""

    def recover(self) -> BucketId:
        """The position: the bucket through which everything is delivered; NOTHING if nothing is.

        Removes what an interrupted delivery left behind. A path that cannot be used is EnvironmentFailed.
        """

    def deliver(self, buckets: Delivery, through: BucketId) -> None:
        """Deliver these buckets; `through` is the last that they cover, with rows or without.

        When it returns, the rows are durable and the position is `through`. Buckets at or below the position
        were delivered before and are left out, so a repeated call changes nothing. After a crash the
        recovered position may lie below the last `through`, but only by buckets without rows.
        """


def undelivered(buckets: Delivery, position: BucketId, through: BucketId) -> list[tuple[BucketId, pa.Table]]:
    """The buckets after `position` that have rows, once it is certain that they come as promised."""
    numbers = [number for number, _ in buckets]
    require(
        all(a < b for a, b in pairwise(numbers)) and all(number <= through for number in numbers),
        f"buckets {numbers} were delivered out of order or past their end, {through}",
    )
    return [(number, table) for number, table in buckets if number > position and table.num_rows]
