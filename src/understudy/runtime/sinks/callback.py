"""Output to a function of the user's.

The call and its entry in the journal are two steps, and a crash can come between them: then the call is
repeated. So a callback sees every bucket at least once, in order, and can use `through` to leave out what it
has seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from understudy.flow.errors import FlowError
from understudy.flow.writers import SinkKind, Writer


@dataclass(frozen=True)
class Callback(SinkKind):
    """`function(table, first, through)`: the rows of buckets `first` to `through`.

    The position is kept after each call, so a crash during or right after a call repeats that call:
    at least once, and `through` tells the function what it has already seen.
    """

    function: Callable[[pa.Table, int, int], object]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise FlowError(f"Callback: needs a function(table, first, through), not {self.function!r}.")

    def open(self, sink: str, folder: Path) -> Writer:
        return CallbackWriter(self.function)

    def describe(self) -> str:
        return f"calls {getattr(self.function, '__qualname__', repr(self.function))}"


class CallbackWriter(Writer):
    def __init__(self, function: Callable[[pa.Table, int, int], object]) -> None:
        self._function = function

    def deliver(self, rows: pa.Table, first: int, through: int) -> None:
        self._function(rows, first, through)
