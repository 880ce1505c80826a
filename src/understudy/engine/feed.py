"""The feed: how groups of sealed buckets reach Spark, and how we know that it stands still.

Spark's side of a fragment is a streaming data source (see `source`), whose Python process asks this Arrow
Flight endpoint for what follows its offset. An offset is a group number. A call for group n + 1 blocks
until the engine offers that group, and it is itself the news that group n is committed: Spark asks only
when the previous micro-batch is done to its last file. So "asked for what follows n" is the moment in which
the query stands still at a bucket boundary, and the only moment in which the engine takes snapshots or
moves the watermark.

A fragment with several inputs has one data source per input. Spark asks them one after the other; each is
answered with the same group number, so they can never drift apart.

The endpoint listens on loopback unless another host is given; every call carries a random token.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyarrow import flight

from understudy.core.errors import BrokenInvariant
from understudy.engine.source import GROUP_KEY, ROWS_KEY


class ChannelClosed(Exception):
    """The channel was closed under a thread that waited on it. The cause, if any, says why."""


class GroupChannel:
    """One running query's connection. The engine offers; the query's data sources take."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._changed = threading.Condition()
        self._offered: tuple[int, dict[str, pa.Table]] | None = None
        self._asked: int | None = None
        self._closed = False
        self._failure: BaseException | None = None

    def offer(self, group: int, tables: Mapping[str, pa.Table]) -> None:
        """Let the query have `group`, which must follow the group that the query stands at."""
        with self._changed:
            if self._asked != group - 1:
                raise BrokenInvariant(
                    f"{self.name}: group {group} offered, but the query stands at {self._asked}"
                )
            # The previous group is committed, or it would not be asked for the next: it is dropped here.
            self._offered = (group, dict(tables))
            self._asked = None
            self._changed.notify_all()

    def wait_still(self, group: int) -> None:
        """Return when `group` is committed and the query stands still; `ChannelClosed` if it never will."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._asked == group)
            if self._closed:
                raise ChannelClosed(self.name) from self._failure
            self._offered = None

    def close(self, failure: BaseException | None = None) -> None:
        """Release all that wait: data sources learn of nothing new, the engine gets `failure`."""
        with self._changed:
            if not self._closed:
                self._closed = True
                self._failure = failure
                self._offered = None
            self._changed.notify_all()

    def rows(self, source: str, group: int) -> pa.Table:
        """The rows of the group that was taken last."""
        with self._changed:
            if self._offered is None or self._offered[0] != group:
                raise flight.FlightServerError(f"{self.name}: group {group} is not the one being processed")
            return self._offered[1][source]

    def take(self, source: str, start: int) -> tuple[int, int]:
        """Number and rows of what follows `start` for one input; waits. After `close`: `start` itself."""
        with self._changed:
            if self._offered is None or self._offered[0] != start + 1:
                self._asked = start
                self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._closed or (self._offered is not None and self._offered[0] == start + 1)
            )
            if self._closed or self._offered is None:
                return start, 0
            return start + 1, self._offered[1][source].num_rows


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def start_call(self, info: Any, headers: Mapping[str, list[str]]) -> None:
        given = headers.get("understudy-token", [""])[0]
        if not secrets.compare_digest(given, self._token):
            raise flight.FlightUnauthenticatedError("this endpoint serves its own process's queries only")


class GroupFeed(flight.FlightServerBase):  # type: ignore[misc]
    """The process's Flight endpoint: any number of channels behind one address."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.token = secrets.token_hex(16)
        super().__init__(f"grpc://{host}:0", middleware={"token": _TokenCheck(self.token)})
        self.address = f"grpc://{host}:{self.port}"
        self._channels: dict[str, GroupChannel] = {}
        self._lock = threading.Lock()

    def options(self, channel: str) -> dict[str, str]:
        """The options with which a data source reaches a channel."""
        return {"address": self.address, "token": self.token, "channel": channel}

    def open(self, name: str) -> GroupChannel:
        """A new channel under a name. One that had the name before no longer gets calls."""
        channel = GroupChannel(name)
        with self._lock:
            self._channels[name] = channel
        return channel

    def drop(self, channel: GroupChannel) -> None:
        with self._lock:
            if self._channels.get(channel.name) is channel:
                del self._channels[channel.name]
        channel.close()

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        asked = json.loads(ticket.ticket)
        with self._lock:
            channel = self._channels.get(asked["channel"])
        if channel is None:
            raise flight.FlightServerError("this query's engine is closed")
        if "group" in asked:
            table = channel.rows(asked["input"], asked["group"]).slice(asked["first"], asked["count"])
            return flight.RecordBatchStream(table)
        group, rows = channel.take(asked["input"], asked["start"])
        schema = pa.schema([], metadata={GROUP_KEY: str(group).encode(), ROWS_KEY: str(rows).encode()})
        return flight.RecordBatchStream(schema.empty_table())
