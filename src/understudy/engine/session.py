"""One Spark session per process, started when it is first needed.

The settings give up Spark's provisions for large, shared, long jobs to lower the fixed cost of a small
micro-batch, which is this system's latency. Results depend on the first settings; the others only save time.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from understudy.engine.aot import find_cache
from understudy.engine.feed import GroupFeed
from understudy.engine.jvm import Jvm, find_java, start_jvm
from understudy.engine.source import GroupSource

#: A socket's path may have 107 bytes; Spark's own name for it takes 42.
SOCKET_FOLDER_MAX = 64

SETTINGS: Mapping[str, str] = {
    # What a result is.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    # Files: without these Hadoop forks a chmod for every one.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # A snapshot holds what the last micro-batch needs, and a restart reads it: keep both short.
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "10",
    "spark.sql.streaming.stateStore.maintenanceInterval": "5s",
    # Closing an engine does not wait for ever for a task that hangs.
    "spark.sql.streaming.stopTimeout": "30s",
    # These are not looked at, and collecting them takes time in every micro-batch.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "1",
    "spark.sql.streaming.pollingDelay": "1ms",
    "spark.locality.wait": "0",
    "spark.shuffle.compress": "false",
    "spark.shuffle.spill.compress": "false",
    "spark.broadcast.compress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

_lock = threading.Lock()
_running: tuple[SparkSession, Jvm] | None = None
_feed: GroupFeed | None = None


def endpoint() -> GroupFeed:
    """The process's feed, started when it is first needed."""
    global _feed  # noqa: PLW0603 - one endpoint per process
    with _lock:
        if _feed is None:
            _feed = GroupFeed()
        return _feed


def session(
    *,
    master: str = "local[*]",
    heap_mb: int = 1024,
    stderr: Path | None = None,
    settings: Mapping[str, str] | None = None,
    java_home: str | Path | None = None,
    jvm_options: tuple[str, ...] = (),
) -> SparkSession:
    """The process's session. The first call starts it; later calls return it and ignore their arguments.

    A trained ahead-of-time cache is used if there is one, unless `jvm_options` say otherwise.
    """
    global _running  # noqa: PLW0603 - one JVM per process is the point
    with _lock:
        if _running is None:
            _running = _start(
                master=master,
                heap_mb=heap_mb,
                stderr=stderr,
                settings=settings or {},
                java_home=java_home,
                jvm_options=jvm_options,
            )
        return _running[0]


def ask_java() -> None:
    """Return once Java has answered a question, however long that takes."""
    with _lock:
        running = _running
    if running is not None and running[0]._jvm is not None:
        running[0]._jvm.java.lang.System.nanoTime()


def make_active(spark: SparkSession) -> None:
    """What a user's function finds as the active session, which Spark keeps for each thread."""
    SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def _start(
    *,
    master: str,
    heap_mb: int,
    stderr: Path | None,
    settings: Mapping[str, str],
    java_home: str | Path | None,
    jvm_options: tuple[str, ...],
) -> tuple[SparkSession, Jvm]:
    java = find_java(java_home)
    cache = None if any("AOT" in option for option in jvm_options) else find_cache(java)
    jvm = start_jvm(java=java, heap_mb=heap_mb, stderr=stderr, cache=cache, options=jvm_options)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_GATEWAY_PORT"] = str(jvm.port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = jvm.secret
    builder = SparkSession.builder.master(master).appName("understudy")
    for name, value in {**SETTINGS, **_sockets(jvm.folder), **settings}.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
        _slim(spark)
        spark.dataSource.register(GroupSource)
    except BaseException:
        jvm.stop(0)
        raise
    return spark, jvm


#: Of Hadoop's settings, what Spark needs of them for files on disk.
_HADOOP_KEPT = ("fs.defaultFS", "fs.file.impl")


def _slim(spark: SparkSession) -> None:
    """Leave out Hadoop's thousand default settings.

    Spark writes them all, each string compressed by itself, into a broadcast for every stateful operator of
    every micro-batch: a fifth of the time of a small one.
    """
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    kept = {name: hadoop.get(name) for name in _HADOOP_KEPT}
    hadoop.clear()
    for name, value in kept.items():
        if value is not None:
            hadoop.set(name, value)


def _sockets(folder: Path) -> dict[str, str]:
    """How Spark talks to its Python workers: by sockets that are files, where their paths are short enough.

    Calls over TCP take longer.
    """
    return {
        "spark.python.unix.domain.socket.enabled": str(len(os.fsencode(folder)) <= SOCKET_FOLDER_MAX).lower(),
        "spark.python.unix.domain.socket.dir": str(folder),
    }


def stop_session(wait_s: float = 30.0) -> None:
    """End the process's session and its JVM, if there is one."""
    global _running, _feed  # noqa: PLW0603
    with _lock:
        if _feed is not None:
            _feed.shutdown()
            _feed = None
        if _running is None:
            return
        spark, jvm = _running
        _running = None
        try:
            spark.stop()
        finally:
            jvm.stop(wait_s)
            # A later session must not look for the JVM that has gone.
            for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
                os.environ.pop(name, None)
            SparkContext._gateway = None
            SparkContext._jvm = None
