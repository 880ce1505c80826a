"""Output as Parquet files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from understudy.runtime.sinks.folder import FolderSink


@dataclass(frozen=True)
class Parquet(FolderSink):
    """A folder of Parquet files, one for each delivered range of buckets. Exactly once across crashes."""

    path: str | Path
    suffix: ClassVar[str] = "parquet"

    def write(self, rows: pa.Table, file: Path) -> None:
        pq.write_table(rows, file)

    @staticmethod
    def read(file: Path) -> pa.Table:
        return pq.ParquetFile(file).read()
