"""A real process, killed with SIGKILL in the middle of its pushes: what it acknowledged is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import understudy as us
from understudy.runtime.ingest.ingest import Ingest

CLIENT = """
import sys
from pathlib import Path
from understudy.runtime.ingest.ingest import Ingest
from understudy.runtime.ingest.rows import to_table
sys.path.insert(0, str(Path(sys.argv[2]).parent))
from test_ingest_kill import make_flow

flow = make_flow()
ingest = Ingest(flow, Path(sys.argv[1]), segment_bytes=20_000)
ingest.recover()
last = ingest.last("s", "c")
number = last.sequence + 1 if last else 0
while True:
    rows = to_table(flow.sources["s"], [{"id": number, "ts": number * 30_000}])
    ingest.push("s", rows, "c", number, now_us=0)
    ingest.commit()
    print(number, flush=True)
    number += 1
"""


def make_flow() -> us.Flow:
    flow = us.Flow("killed", bucket="100 ms")
    flow.source("s", us.Push("id bigint, ts timestamp"), time="ts")
    return flow


def acknowledged_until_killed(folder: Path, pushes: int) -> int:
    """Run the client, kill it after so many acknowledgements; the last number it acknowledged."""
    command = [sys.executable, "-c", CLIENT, str(folder), __file__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(pushes)]
        assert all(lines), "the client ended by itself"
        process.kill()
        # What was in the pipe when it died was acknowledged too.
        lines += [line for line in process.stdout if line.endswith("\n")]
    return int(lines[-1])


def test_acknowledged_rows_survive_sigkill_once_each(tmp_path: Path) -> None:
    last = -1
    for _ in range(3):
        last = acknowledged_until_killed(tmp_path, pushes=40)
    flow = make_flow()
    ingest = Ingest(flow, tmp_path)
    buckets = ingest.recover()
    ingest.close_source("s")
    ingest.commit()
    buckets += ingest.take()
    ids = [n for b in buckets if b.table is not None for n in b.table.column("id").to_pylist()]
    # One more may have been committed without its acknowledgement reaching us.
    assert ids in (list(range(last + 1)), list(range(last + 2)))
    assert last >= 119
