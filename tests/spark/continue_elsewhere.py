"""Takes up a segment's snapshot in a process of its own and writes what comes out, one file per bucket."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
from driving import Driven, engine_of
from spark_cases import cut, random_rows
from spark_flow import make_flow

from understudy.engine.session import session, stop_session
from understudy.engine.storing import open_snapshot

if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    out = Path(request["out"])
    out.mkdir()
    rows = random_rows(request["seed"])
    run = Driven(engine_of(make_flow(), session(master="local[1]"), out.parent / "elsewhere"))
    run.engine.start(open_snapshot(Path(request["snapshot"])))
    for through in request["cuts"]:
        run.advance({"events": cut(rows, run.engine.through, through)}, through)
    for consumer, buckets in run.rows.items():
        for number, table in buckets.items():
            path = str(out / f"{consumer.name.removeprefix('sink:')}-{number}.arrow")
            with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
    run.engine.close()
    stop_session()
