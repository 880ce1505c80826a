"""Output to a terminal: a line for the range, then the rows, the first of them at most.

A terminal cannot be asked what it has shown, so nothing is recovered: rows may be printed again after a
crash.
"""

from __future__ import annotations

import sys
from typing import TextIO

import pyarrow as pa

from understudy.core.bucket import NOTHING, BucketId
from understudy.runtime.sinks.files import json_lines
from understudy.runtime.sinks.writer import Delivery, undelivered


class ConsoleWriter:
    def __init__(self, name: str, rows_max: int, stream: TextIO | None = None) -> None:
        self._name = name
        self._rows_max = rows_max
        self._stream = stream or sys.stdout
        self._position = NOTHING

    def recover(self) -> BucketId:
        return NOTHING

    def deliver(self, buckets: Delivery, through: BucketId) -> None:
        if through <= self._position:
            return
        fresh = undelivered(buckets, self._position, through)
        if fresh:
            table = pa.concat_tables([rows for _, rows in fresh])
            lines = [f"{self._name}  buckets {fresh[0][0]} to {through}, {table.num_rows} rows"]
            lines += [f"  {line}" for line in json_lines(table.slice(0, self._rows_max))]
            if table.num_rows > self._rows_max:
                lines.append(f"  ... and {table.num_rows - self._rows_max} more")
            print("\n".join(lines), file=self._stream, flush=True)
        self._position = through
