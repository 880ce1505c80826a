"""Takes up a segment's snapshot in a process of its own and writes what comes out, one file per bucket."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
from spark_cases import cut, random_rows
from spark_flow import make_flow

from understudy.engine.segment import Segment
from understudy.engine.session import session, stop_session
from understudy.engine.storing import open_snapshot

if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    out = Path(request["out"])
    out.mkdir()
    rows = random_rows(request["seed"])
    with Segment(make_flow(), out.parent / "elsewhere", spark=session(master="local[1]")) as segment:
        segment.start(open_snapshot(Path(request["snapshot"])))
        for through in request["cuts"]:
            advanced = segment.advance({"events": cut(rows, segment.source_through, through)}, through)
            for number, parts in advanced.buckets.items():
                for name, table in parts.items():
                    path = str(out / f"{name}-{number}.arrow")
                    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                        writer.write_table(table)
    stop_session()
