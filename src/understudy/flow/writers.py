"""Writers: where a sink's rows go. All are data; writing happens in the runtime.

Rows reach a writer bucket by bucket, in order. What a crash can do to each is said beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from understudy.flow.errors import FlowError


@dataclass(frozen=True)
class Parquet:
    """A folder of Parquet files, one for each delivered range of buckets. Exactly once across crashes."""

    path: str | Path


@dataclass(frozen=True)
class JsonLines:
    """A folder of files with one JSON object a line. Exactly once across crashes."""

    path: str | Path


@dataclass(frozen=True)
class Console:
    """Standard output. Rows delivered shortly before a crash may be printed again after it."""

    rows_max: int = 20

    def __post_init__(self) -> None:
        if self.rows_max < 1:
            raise FlowError(f"Console: rows_max must be at least 1, not {self.rows_max!r}.")


@dataclass(frozen=True)
class Callback:
    """`function(table, first, through)`: the rows of buckets `first` to `through`.

    The position is kept after each call, so a crash during or right after a call repeats that call:
    at least once, and `through` tells the function what it has already seen.
    """

    function: Callable[[pa.Table, int, int], object]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise FlowError(f"Callback: needs a function(table, first, through), not {self.function!r}.")


Writer = Parquet | JsonLines | Console | Callback
