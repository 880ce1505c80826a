"""Warming up: the flow's queries run once over made-up rows before a node offers itself.

The first micro-batches of a query take seconds: Java loads classes, Spark compiles the plan, the compiler
has seen nothing yet. A standby that has to do this after it was given its seat catches up that much later,
and until then the survivor is alone. So every node pays for it before it joins. The rows never leave this
function, and neither does any trouble with them: a query may well reject made-up values.

A node that rows wait for joins at once: its first groups are slow, and still come sooner so.
"""

from __future__ import annotations

import datetime
import decimal
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from understudy.core.view.view import View
from understudy.engine.flow_engines import FlowEngines
from understudy.engine.interface import CopyEngine
from understudy.flow.flow import Flow
from understudy.flow.model import Source
from understudy.runtime.settings import RunSettings, node_names

log = logging.getLogger(__name__)

ROUNDS = 4
ROWS = 64


def is_awaited(node: str, settings: RunSettings, view: View | None, *, beside: bool = False) -> bool:
    """Whether rows wait for this node: every copy of a partition is lost, or the run goes on and the node is
    one of those that have a place from the start. `beside` says that another version runs meanwhile.
    """
    if view is not None:
        return view.lost is not None
    return not beside and settings.generation > 1 and node in node_names(settings.nodes, settings.first_node)


def warm_up(flow: Flow, folder: Path, awaited: Callable[[], bool]) -> float:
    """Run the flow's queries over a few made-up groups in a folder of their own, as long as the node is not
    awaited; returns the seconds.
    """
    began = time.monotonic()
    engines = FlowEngines(flow, "flow", 1)
    try:
        # One after the other: two queries that start at once take longer.
        for partition in engines.topology.partitions:
            if awaited():
                break
            _run(flow, engines.engine(partition, folder), engines.topology.inputs[partition.name], awaited)
    except Exception as problem:
        log.info("warming up did not get to its end: %s: %.200s", type(problem).__name__, problem)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return time.monotonic() - began


def _run(flow: Flow, engine: CopyEngine, sources: Sequence[str], awaited: Callable[[], bool]) -> None:
    try:
        engine.start()
        # Far enough apart for windows to close, so that what closes them is warm as well.
        step = max(1, 10_000_000 // flow.bucket_us)
        first = time.time_ns() // 1_000 // flow.bucket_us
        for number in range(first, first + ROUNDS * step, step):
            if awaited():
                return
            tables = {name: _made_up(flow.sources[name], number * flow.bucket_us) for name in sources}
            engine.advance(tables, number, lambda _: None)
    finally:
        engine.close()


def _made_up(source: Source, time_us: int) -> pa.Table:
    columns = []
    for field in source.arrow_schema:
        if field.name == source.time:
            columns.append(pa.array([time_us] * ROWS, pa.int64()).cast(field.type))
        else:
            columns.append(pa.array([_plain(field.type)] * ROWS, field.type))
    return pa.Table.from_arrays(columns, schema=source.arrow_schema)


def _plain(kind: pa.DataType) -> Any:
    """A harmless value of this type; null for nested types."""
    if pa.types.is_boolean(kind):
        return False
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return 1
    if pa.types.is_string(kind):
        return "warm"
    if pa.types.is_binary(kind):
        return b"warm"
    if pa.types.is_decimal(kind):
        return decimal.Decimal(1)
    if pa.types.is_date(kind):
        return datetime.date(2000, 1, 1)
    if pa.types.is_timestamp(kind):
        return datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
    return None
