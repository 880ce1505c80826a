"""What the demonstration's output must be: the flow's own fragments as a batch job over the same packets.

The generator is pure, and the run's log remembers the moment at which it began. So the input can be made
again to the microsecond, and Spark can be asked for the answer all at once.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from understudy.engine.session import session, stop_session
from understudy.flow.errors import EnvironmentFailed
from understudy.flow.flow import Flow
from understudy.flow.schema import TIMESTAMP
from understudy.runtime.ingest.clients import READER
from understudy.runtime.ingest.generator import Generator
from understudy.runtime.ingest.ingest import Ingest


def origin_us(flow: Flow, source: str, log: Path) -> int:
    """When the generator of a run began, as its log has it."""
    ingest = Ingest(flow, log)
    try:
        ingest.recover()
        last = ingest.last(source, READER)
    finally:
        ingest.close()
    if last is None:
        raise EnvironmentFailed(
            f"The log in {log} holds no row of {source}: the run ended before its first one."
        )
    return int(last.note["origin_us"])


def generated(flow: Flow, source: str, began_us: int) -> pa.Table:
    """All rows of a generated source that ends, with their times."""
    declared = flow.sources[source]
    kind = declared.kind
    if not isinstance(kind, Generator) or kind.rows is None:
        raise ValueError(f"source {source} is not generated, or has no end")
    made = kind.function(kind.seed, 0, kind.rows)
    columns = {name: made[name] for name in declared.arrow_schema.names if name != declared.time}
    numbers = np.arange(kind.rows, dtype=np.float64)
    times = began_us + np.floor(numbers * 1e6 / kind.rows_per_s).astype(np.int64)
    columns[declared.time] = pa.array(times).cast(TIMESTAMP)
    return pa.table(columns, schema=declared.arrow_schema)


def batch(flow: Flow, rows: pa.Table, folder: Path, *, heap_mb: int) -> pa.Table:
    """The output of the flow's last fragment over these rows. Each fragment reads the one before it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "input.parquet"
    pq.write_table(rows, file)
    spark = session(master="local[2]", heap_mb=heap_mb, stderr=folder / "jvm.log")
    try:
        frame = spark.read.parquet(str(file))
        for fragment in flow.fragments.values():
            frame = fragment(frame)
        return frame.toArrow()
    finally:
        stop_session()
