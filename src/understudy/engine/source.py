"""The streaming data source that Spark runs: it asks the feed for the next group and hands its rows on.

This file is imported by the Python process that Spark starts for each input of each query, so it imports as
little as it can. The "simple" kind of reader is used: that process fetches a group's rows together with its
number and gives them to the JVM as Arrow batches, from where tasks on any host read them as blocks. The
other kind would send each task through one more Python process on its executor.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType

FORMAT = "understudy"
GROUP_KEY = b"understudy.group"


class GroupSource(DataSource):
    """Options: address, token, channel, input. The schema is given by the query."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def simpleStreamReader(self, schema: StructType) -> GroupReader:  # noqa: N802 - Spark's name
        return GroupReader(dict(self.options))


class GroupReader(SimpleDataSourceStreamReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._client: Any = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"group": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        """The group after `start`; blocks until there is one."""
        if self._client is None:
            self._client = flight.connect(self._options["address"])
        ticket = {
            "channel": self._options["channel"],
            "input": self._options["input"],
            "start": start["group"],
        }
        headers = [(b"understudy-token", self._options["token"].encode())]
        reader = self._client.do_get(
            flight.Ticket(json.dumps(ticket).encode()), flight.FlightCallOptions(headers=headers)
        )
        group = int(reader.schema.metadata[GROUP_KEY])
        table: pa.Table = reader.read_all().replace_schema_metadata(None).combine_chunks()
        batches = [batch for batch in table.to_batches() if batch.num_rows]
        return iter(batches), {"group": group}

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:  # noqa: N802
        """Asked only to repeat a micro-batch that was cut off; engines start from committed ones."""
        raise RuntimeError(
            f"groups {start['group']} to {end['group']} were asked for again: a checkpoint holds a "
            "micro-batch that was never committed. Restore from a snapshot instead"
        )

    def commit(self, end: dict[str, int]) -> None:
        pass
