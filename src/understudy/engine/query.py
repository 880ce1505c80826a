"""A fragment's streaming query as Spark knows it: built from the user's function, and checked before it runs.

Each input becomes a streaming DataFrame on the feed, with a watermark on its time column. The watermark's
value is not left to Spark, which would only learn it from rows and use it one micro-batch later: while the
query stands still the engine sets it to the boundary of the group that it is about to offer. Rows of that
group are judged by the watermark before, what the boundary closes comes out in the same micro-batch, and an
empty group moves time on like any other.

A time inside a struct ("window.end") cannot carry a watermark. It is copied to a hidden column that does,
and a window column is marked the way Spark marks its own, so that `F.window("window", ...)` and
`F.window_time("window")` work on the output of an earlier fragment as they do after an aggregation in the
same query.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program calls it
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from understudy.engine.blame import shortened
from understudy.engine.dealing import Dealt, with_partition_numbers
from understudy.engine.determinism import require_deterministic
from understudy.engine.event_time import HIDDEN_TIME
from understudy.engine.extent import ENDLESS_AGGREGATE
from understudy.engine.facts import Facts, facts_of
from understudy.engine.plan import PlanNode, parse_plan
from understudy.engine.session import make_active
from understudy.engine.source import FORMAT
from understudy.engine.state_shape import Shape, shape_of
from understudy.engine.tables import Tables, pinned_tables
from understudy.engine.times import path_of, times_of
from understudy.flow.errors import FlowError
from understudy.flow.loading import place_of

_WINDOW_METADATA = {"spark.timeWindow": True, "spark.watermarkDelayMs": 0}


@dataclass(frozen=True)
class Input:
    """One input of a fragment: the columns of its rows, in Spark's own Arrow types, and its time column."""

    schema: pa.Schema
    time: str

    def numbers(self, table: pa.Table, width_us: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The bucket number of every row."""
        times = times_of(table, path_of(self.time, self.schema.names))
        return np.asarray(times.to_numpy(zero_copy_only=False) // width_us, dtype=np.int64)


@dataclass(frozen=True)
class Query:
    """A query that is ready to start. `schema` and `plan` are the user's; `frame` may have hidden columns."""

    frame: DataFrame
    schema: pa.Schema
    plan: PlanNode
    facts: Facts
    time: tuple[str, ...]
    tables: Tables


def build_query(
    spark: SparkSession,
    *,
    fragment: str,
    function: Callable[..., Any],
    inputs: Mapping[str, Input],
    time: str,
    options: Mapping[str, str],
    dealt_to: Mapping[str, Dealt],
) -> Query:
    """Call the user's function on streaming inputs and check what it made. FlowErrors name the fragment."""
    frames = [_input_frame(spark, name, given, options) for name, given in inputs.items()]
    own_watermarks = {_plan_of(frame).find("EventTimeWatermark").fields["nodeId"] for frame in frames}
    make_active(spark)
    result = _call(fragment, function, frames)
    plan = _plan_of(result)
    require_deterministic(fragment, plan, own_watermarks)
    path = time_path(fragment, result.schema, time)
    facts = facts_of(plan, path)
    if facts.unbounded == ENDLESS_AGGREGATE:
        raise FlowError(
            f"fragment {fragment!r} aggregates without a window, so no group would ever be complete. Group "
            "by F.window or F.session_window of the time column as well"
        )
    if facts.lag_us == math.inf:
        raise FlowError(
            f"fragment {fragment!r}: its time column {time!r} may lag behind without bound, so no bucket of "
            "its output could ever be sealed. Declare a time that follows the input: the end of a window or "
            "session "
            '("window.end", "session_window.end"), or bound both times in the join\'s condition'
        )
    schema = to_arrow_schema(result.schema, timezone="UTC")
    frame = with_partition_numbers(fragment, result, dealt_to)
    return Query(frame, schema, plan, facts, path, pinned_tables(fragment, result))


def query_shape(query: Query, inputs: Mapping[str, Input], time: str, width_us: int) -> Shape:
    """The shape of a query's state, of the plan as Spark optimises it."""
    optimised, leaves = _optimised(query.frame)
    return shape_of(
        plan=query.plan,
        optimised=optimised,
        leaves=leaves,
        facts=query.facts,
        inputs={name: given.time for name, given in inputs.items()},
        time=time,
        width_us=width_us,
        schema=query.schema,
    )


def _optimised(frame: DataFrame) -> tuple[PlanNode, Sequence[str | None]]:
    """The plan that runs, and of its leaves from left to right the inputs that they are."""
    state = frame.sparkSession._jsparkSession.sessionState()
    plan = state.optimizer().execute(frame._jdf.queryExecution().analyzed())
    found = plan.collectLeaves()
    leaves = [found.apply(index) for index in range(found.size())]
    streaming = [leaf.getClass().getSimpleName().startswith("Streaming") for leaf in leaves]
    names = [
        str(leaf.extraOptions().get("input")) if live else None
        for leaf, live in zip(leaves, streaming, strict=True)
    ]
    return parse_plan(plan.toJSON()), names


def _plan_of(frame: DataFrame) -> PlanNode:
    return parse_plan(frame._jdf.queryExecution().analyzed().toJSON())


def _input_frame(spark: SparkSession, name: str, given: Input, options: Mapping[str, str]) -> DataFrame:
    schema, time = from_arrow_schema(given.schema), given.time
    frame = (
        spark.readStream.format(FORMAT)
        .schema(schema)
        .options(**options, input=name, slices=str(spark.sparkContext.defaultParallelism))
        .load()
    )
    if time in schema.fieldNames():
        return frame.withWatermark(time, "0 seconds")
    outer, _, inner = time.partition(".")
    frame = frame.withColumn(HIDDEN_TIME, F.col(time)).withWatermark(HIDDEN_TIME, "0 seconds")
    columns = []
    for field in schema.fields:
        column = F.col(f"`{field.name}`")
        is_window = isinstance(field.dataType, StructType) and field.dataType.fieldNames() == ["start", "end"]
        if field.name == outer and inner == "end" and is_window:
            column = column.alias(field.name, metadata=_WINDOW_METADATA)
        columns.append(column)
    return frame.select(*columns)


def _where(function: Callable[..., Any], problem: Exception) -> str:
    """The line of the function's file that led to the problem; nothing for a callable without a file."""
    code = getattr(function, "__code__", None)
    return "" if code is None else f" ({place_of(Path(code.co_filename), problem)})"


def _call(fragment: str, function: Callable[..., Any], frames: list[DataFrame]) -> DataFrame:
    try:
        result = function(*frames)
    except PySparkException as problem:
        raise FlowError(
            f"fragment {fragment!r}: Spark does not accept it: {shortened(str(problem))}"
        ) from problem
    except FlowError:
        raise
    except Exception as problem:
        raise FlowError(
            f"fragment {fragment!r} raised {type(problem).__name__}: {problem}{_where(function, problem)}"
        ) from problem
    if not isinstance(result, DataFrame):
        raise FlowError(
            f"fragment {fragment!r} returned {type(result).__name__}. It must return a streaming DataFrame "
            "made from its inputs"
        )
    if not result.isStreaming:
        raise FlowError(f"fragment {fragment!r} returned a DataFrame that does not read any of its inputs")
    return result


def time_path(fragment: str, schema: StructType, time: str) -> tuple[str, ...]:
    """The path of a fragment's time column in its output, which must be a timestamp."""
    path = path_of(time, schema.fieldNames())
    kind: Any = schema
    for part in path:
        if not isinstance(kind, StructType) or part not in kind.fieldNames():
            raise FlowError(
                f"fragment {fragment!r}: its time column {time!r} is not in its output, which has the "
                f"columns {schema.simpleString()[len('struct<') : -1]}"
            )
        kind = kind[part].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType):
        raise FlowError(
            f"fragment {fragment!r}: its time column {time!r} must be a timestamp, but is "
            f"{kind.simpleString()}. The output has the columns {schema.simpleString()[len('struct<') : -1]}"
        )
    return path
