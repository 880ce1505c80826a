"""Output to a terminal: a line for the range, then the rows, the first of them at most.

A terminal cannot be asked what it has shown: rows may be printed again after a crash.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from understudy.flow.errors import FlowError
from understudy.flow.writers import SinkKind, Writer
from understudy.runtime.sinks.json_lines import json_lines


@dataclass(frozen=True)
class Console(SinkKind):
    """Standard output. Rows delivered shortly before a crash may be printed again after it."""

    rows_max: int = 20

    def __post_init__(self) -> None:
        if self.rows_max < 1:
            raise FlowError(f"Console: rows_max must be at least 1, not {self.rows_max!r}.")

    def open(self, sink: str, folder: Path) -> Writer:
        return ConsoleWriter(sink, self.rows_max)

    def describe(self) -> str:
        return "standard output"


class ConsoleWriter(Writer):
    def __init__(self, sink: str, rows_max: int) -> None:
        self._sink = sink
        self._rows_max = rows_max

    def deliver(self, rows: pa.Table, first: int, through: int) -> None:
        lines = [f"{self._sink}  buckets {first} to {through}, {rows.num_rows} rows"]
        lines += [f"  {line}" for line in json_lines(rows.slice(0, self._rows_max))]
        if rows.num_rows > self._rows_max:
            lines.append(f"  ... and {rows.num_rows - self._rows_max} more")
        print("\n".join(lines), file=sys.stdout, flush=True)
