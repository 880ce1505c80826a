"""Memory that is free goes back to the system.

While a copy is dead and not yet given up, buckets pile up by the hundred megabytes. The C library learns from
the first such bucket to carve the next ones out of its heaps, and keeps these heaps: after every loss a
process would stay as large as its backlog was. With a fixed threshold it maps each large block by itself, and
unmaps it when it is free.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

#: `mallopt`'s number for the free memory that a heap may keep at its end. Setting it fixes all thresholds.
_M_TRIM_THRESHOLD = -1
KEPT_BYTES = 128 * 1024


def return_what_is_free() -> None:
    """For this process from now on. Other C libraries than GNU's have no such call and need none."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
