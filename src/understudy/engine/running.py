"""A streaming query from its start to its end.

Another thread may stop the query at any moment, also while it starts: a copy that loses its seat does not
wait for its engine. In either order, nothing of the query stays behind. The starting thread sees that the
query was stopped before it opens the channel, or the channel is closed under it; and a query that Spark
brought up meanwhile is ended by the thread that started it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from understudy.core.errors import require
from understudy.engine.blame import slow_start
from understudy.engine.feed import ChannelClosed, GroupChannel, GroupFeed

log = logging.getLogger(__name__)

#: How often Spark may begin with a query whose Python does not start in time.
STARTS_MAX = 5


class RunningQuery:
    """One query on a channel of its own. All methods but `stop` belong to one thread."""

    def __init__(self, feed: GroupFeed, channel_name: str, name: str) -> None:
        self._feed = feed
        self._channel_name = channel_name
        self._name = name
        self._lock = threading.Lock()
        self._channel: GroupChannel | None = None
        self._query: StreamingQuery | None = None
        self._tracker: Any = None
        self.stopped = False

    @property
    def standing(self) -> bool:
        """Whether it has started and was not stopped."""
        return self._tracker is not None and not self.stopped

    def start(
        self, frame: DataFrame, checkpoint: Path, group: int, collect: Callable[[DataFrame, int], None]
    ) -> None:
        """Return when the query stands still after `group`. ChannelClosed if it never will, and why."""
        for start in range(1, STARTS_MAX + 1):
            try:
                self._start(frame, checkpoint, group, collect)
                break
            except ChannelClosed as problem:
                if start == STARTS_MAX or not slow_start(problem.__cause__):
                    raise
                log.warning("%s: Python did not start within Spark's 10 s; starting it again", self._name)

    def _start(
        self, frame: DataFrame, checkpoint: Path, group: int, collect: Callable[[DataFrame, int], None]
    ) -> None:
        with self._lock:
            if self.stopped:
                raise ChannelClosed(self._name)
            channel = self._channel = self._feed.open(self._channel_name)
        query = (
            frame.writeStream.foreachBatch(collect)
            .outputMode("append")
            .option("checkpointLocation", str(checkpoint.absolute()))
            .start()
        )
        with self._lock:
            self._query = query
            stopped = self.stopped
        if stopped:
            _end(query)
            raise ChannelClosed(self._name)
        threading.Thread(
            target=_watch, args=(query, channel), name=f"watch-{self._name}", daemon=True
        ).start()
        channel.wait_still(group)
        self._tracker = query._jsq.streamingQuery().watermarkTracker()

    def run(self, group: int, tables: Mapping[str, pa.Table], watermark_ms: int) -> None:
        """Run one micro-batch; returns when it is committed. ChannelClosed as for `start`."""
        require(self._tracker is not None, f"{self._name} has not started")
        assert self._channel is not None
        self._tracker.setWatermark(watermark_ms)
        self._channel.offer(group, tables)
        self._channel.wait_still(group)

    def stop(self) -> None:
        """End the query. From any thread, at any time, and more than once."""
        with self._lock:
            self.stopped = True
            channel, query = self._channel, self._query
        if channel is not None:
            self._feed.drop(channel)
        if query is not None:
            _end(query)


def _end(query: StreamingQuery) -> None:
    try:
        query.stop()
    except (Py4JError, ConnectionError, PySparkException):
        # A query that failed, or whose JVM is gone, has nothing left to stop.
        return


def _watch(query: StreamingQuery, channel: GroupChannel) -> None:
    """Wait for the query's end and close its channel, so that no failure becomes a hang."""
    try:
        query.awaitTermination()
    except BaseException as problem:
        channel.close(problem)
    else:
        channel.close()
