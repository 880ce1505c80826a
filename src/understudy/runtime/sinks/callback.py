"""Output to a function of the user's. Its position is kept in a small file after each call.

The call and the file are two things, and a crash can come between them: then the call is repeated. So a
callback sees every bucket at least once, in order, and can use `through` to leave out what it has seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from understudy.core.bucket import NOTHING, BucketId
from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.runtime.sinks.writer import Delivery, undelivered


class CallbackWriter:
    def __init__(self, function: Callable[[pa.Table, int, int], object], position_file: Path) -> None:
        self._function = function
        self._file = position_file
        self._position = NOTHING

    def recover(self) -> BucketId:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._position = int(self._file.read_text()) if self._file.exists() else NOTHING
        except (OSError, ValueError) as problem:
            raise EnvironmentFailed(
                f"The position of a callback cannot be read from {self._file}: {problem}. Repair the file, "
                "or remove it to call the function again from the start."
            ) from problem
        return self._position

    def deliver(self, buckets: Delivery, through: BucketId) -> None:
        if through <= self._position:
            return
        fresh = undelivered(buckets, self._position, through)
        if fresh:
            self._call(pa.concat_tables([rows for _, rows in fresh]).combine_chunks(), fresh[0][0], through)
            self._keep(through)
        self._position = through

    def _call(self, table: pa.Table, first: BucketId, through: BucketId) -> None:
        try:
            self._function(table, first, through)
        except Exception as problem:
            name = getattr(self._function, "__qualname__", repr(self._function))
            raise UserError(
                f"The callback {name} failed on buckets {first} to {through} ({table.num_rows} rows): "
                f"{type(problem).__name__}: {problem}. They count as not delivered."
            ) from problem

    def _keep(self, through: BucketId) -> None:
        unfinished = self._file.with_name(self._file.name + ".new")
        try:
            with unfinished.open("w") as file:
                file.write(str(through))
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(self._file)
        except OSError as problem:
            raise EnvironmentFailed(f"The position of a callback cannot be kept: {problem}.") from problem
