"""The streaming data source that Spark runs: it asks the feed for the next group, and its tasks fetch the
rows.

This file is imported by the Python process that Spark starts for each input of each query, and by the
Python workers of its tasks, so it imports as little as it can. The former only learns the number and size
of the next group. The rows are pulled by the tasks, in as many slices as there are cores if the group is
large, and go to the JVM as Arrow batches. (Spark's "simple" kind of reader needs no workers, but it passes
every row through a serialised block: three times the time per row.)
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyarrow import flight
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

FORMAT = "understudy"
#: Schema metadata of an answer: the number of the next group, and how many rows it has.
GROUP_KEY = b"understudy.group"
ROWS_KEY = b"understudy.rows"

#: A slice smaller than this is not worth a task of its own.
SLICE_ROWS_MIN = 20_000

#: A worker outlives its task and keeps its connection for the next one.
_clients: dict[str, Any] = {}
_reads = 0


class GroupSource(DataSource):
    """Options: address, token, channel, input, slices. The schema is given by the query."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> GroupReader:  # noqa: N802 - Spark's name
        return GroupReader(dict(self.options))


class Slice(InputPartition):
    """Some rows of a group."""

    def __init__(self, group: int, first: int, count: int) -> None:
        super().__init__((group, first, count))
        self.group = group
        self.first = first
        self.count = count


class GroupReader(DataSourceStreamReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._rows: dict[int, int] = {}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"group": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
        """The group after `start`; blocks until there is one."""
        metadata = self._get({"start": start["group"]}).schema.metadata
        group = int(metadata[GROUP_KEY])
        self._rows = {group: int(metadata[ROWS_KEY])}
        return {"group": group}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        group = end["group"]
        if group not in self._rows:
            raise RuntimeError(
                f"groups {start['group']} to {group} were asked for again: a checkpoint holds a "
                "micro-batch that was never committed. Restore from a snapshot instead"
            )
        rows = self._rows[group]
        count = max(1, min(int(self._options["slices"]), rows // SLICE_ROWS_MIN))
        cuts = [rows * index // count for index in range(count + 1)]
        return [Slice(group, a, b - a) for a, b in pairwise(cuts) if b > a]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        _spare_the_collector()
        asked = {"group": partition.group, "first": partition.first, "count": partition.count}
        for chunk in self._get(asked):
            if chunk.data.num_rows:
                yield chunk.data

    def commit(self, end: dict[str, int]) -> None:
        pass

    def _get(self, asked: dict[str, int]) -> Any:
        address = self._options["address"]
        if address not in _clients:
            _clients[address] = flight.connect(address)
        ticket = {"channel": self._options["channel"], "input": self._options["input"], **asked}
        headers = [(b"understudy-token", self._options["token"].encode())]
        return _clients[address].do_get(
            flight.Ticket(json.dumps(ticket).encode()), flight.FlightCallOptions(headers=headers)
        )


def _spare_the_collector() -> None:
    """Take what is loaded by now out of the garbage collector's sight.

    Spark's worker collects garbage after every task and is deaf until it is done. With pandas and Arrow
    loaded that takes tens of milliseconds, each time for the same modules. Rarer and rarer, because cyclic
    garbage that is alive at this moment will never be collected.
    """
    global _reads  # noqa: PLW0603 - one count per worker process
    _reads += 1
    if _reads.bit_count() == 1:
        gc.freeze()
