"""The horizon: the oldest input bucket that a fragment's current state may still depend on.

Upstream may forget everything before it, and a replay must begin there. It follows from the boundary, which
is the end of the last bucket taken in, and from the extent of the fragment's state (see `extent`).
"""

from __future__ import annotations

import math

from understudy.core.bucket import NOTHING, BucketId, bucket_of, end_of


def horizon_of(through: BucketId, extent_us: float, width_us: int) -> BucketId:
    """The horizon after bucket `through`; NOTHING, the beginning of time, when the state has no bound."""
    if through == NOTHING or extent_us == math.inf:
        return NOTHING
    if extent_us == 0:
        return through + 1
    return bucket_of(end_of(through, width_us) - math.ceil(extent_us), width_us)
