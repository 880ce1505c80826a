"""A process with a JVM of its own and a running fragment, for tests that kill one or the other.

Prints the JVM's process id and waits until its standard input closes (`wait`), or advances after it killed
the JVM (`advance`).
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from spark_cases import CASES, ORIGIN, SCHEMA, WIDTH_US

from understudy.engine.query import Input
from understudy.engine.session import endpoint, session
from understudy.engine.spark import SparkEngine

if __name__ == "__main__":
    # Like a node, which starts Spark in a thread that ends.
    with ThreadPoolExecutor() as starting:
        spark = starting.submit(session, master="local[1]", heap_mb=512).result()
    (jvm,) = [child for child in psutil.Process().children() if "java" in child.name()]
    if sys.argv[1] == "wait":
        print(jvm.pid, flush=True)
        sys.stdin.read()
    case = CASES["tumbling"]
    with tempfile.TemporaryDirectory() as directory:
        engine = SparkEngine(
            spark,
            endpoint(),
            name="orphan",
            function=case.function,
            inputs={"a": Input(SCHEMA, "ts")},
            time=case.time,
            width_us=WIDTH_US,
            directory=Path(directory),
        )
        engine.start()
        engine.advance({}, ORIGIN)
        os.kill(jvm.pid, signal.SIGKILL)
        try:
            engine.advance({}, ORIGIN + 1)
        except Exception as problem:
            print(f"{type(problem).__name__}: {problem}", flush=True)
        engine.close()
        os._exit(0)
