"""How far behind a fragment's output may lag, and how far back its state reaches, read off the analysed plan.

All times are relative to the boundary: the end of the last sealed input bucket. No later row of an input is
older than it. The analysis follows columns that carry event time upwards through the plan and keeps, for
each, its **lag**: no row still to come out has a value older than boundary - lag. Rules, operator by
operator:

- An input's time column lags 0. A column computed from it by adding an interval lags that much less; the
  greatest of several lags as the best of them, the least as the worst.
- A windowed aggregate emits a group when the watermark passes the window's end: the end lags 0, the start
  and any time taken from inside lag the window's length.
- A session's end lags 0, its start has no bound.
- A join keeps a row while the other side may still bring a match. With l.time - r.time in [low, high], left
  rows are kept for -low and right rows for high. Each side's times lag that much, but the greater of the
  two does not: one of them has only just arrived. Rows without a match come out when they are given up, so
  there it does.

Spark's watermark counts milliseconds and is put 1 ms below the boundary, so that the boundary's own rows
are not late. What is emitted by eviction therefore lags up to 999 microseconds more, unless its times are
whole milliseconds, as the ends of windows are when length and slide are.

The **extent** of a state is how much older than the boundary the oldest input row may be that it depends
on; extents of operators in series add up. None means without bound.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from understudy.engine.event_time import MS_US, Stream, Time, Window, linear, time_of
from understudy.engine.plan import Node

#: The column that carries the watermark when an input's time is inside a struct (see `query`).
HIDDEN_TIME = "__understudy_time"

#: How `Facts.unbounded` calls an aggregate none of whose groups ever closes.
ENDLESS_AGGREGATE = "groupBy without a window"

_EVICTION_LOSS_US = 999

#: Operators that run a user's code, or count rows, over whatever one micro-batch holds.
GROUPING_SENSITIVE = {
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPandas": "transformWithStateInPandas",
    "TransformWithStateInPySpark": "transformWithState",
    "FlatMapGroupsInPandas": "applyInPandas",
    "FlatMapGroupsInArrow": "applyInArrow",
    "FlatMapCoGroupsInPandas": "cogroup.applyInPandas",
    "FlatMapCoGroupsInArrow": "cogroup.applyInArrow",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "GlobalLimit": "limit",
    "LocalLimit": "limit",
}
ARBITRARY_STATE = {kind for kind, name in GROUPING_SENSITIVE.items() if "State" in name}

#: Aggregates whose value depends on the order in which rows arrive.
_ORDER_SENSITIVE = {"First", "Last", "CollectList", "AnyValue", "MaxBy", "MinBy", "Mode", "ListAgg"}
#: Aggregates that merge approximations: how rows were grouped shows in the value.
_SKETCHES = {"ApproximatePercentile", "ApproxTopK", "KllSketchAggBigint", "KllSketchAggDouble"}
_ROUNDED_ALWAYS = {
    "StddevSamp", "StddevPop", "VarianceSamp", "VariancePop", "Skewness", "Kurtosis", "Corr", "CovSample",
    "CovPopulation", "RegrSlope", "RegrIntercept", "RegrR2",
}  # fmt: skip
_FLOATS = {"double", "float"}


@dataclass(frozen=True)
class Facts:
    """What the plan says about a fragment, for its declared time column."""

    stateful: bool
    lag_us: float
    """How far behind the boundary output may be; infinite if there is no bound."""
    extent_us: float
    """How much older than the boundary an input row may be that the state depends on."""
    unbounded: str | None
    """The operator whose state has no bound, if there is one."""
    grouping: str | None
    """The operator whose result depends on how buckets are grouped into micro-batches, if there is one."""
    rounding: tuple[str, ...]
    """Aggregates of floating-point numbers: their last digits depend on the order of additions."""


def facts_of(plan: Node, time: Iterable[str]) -> Facts:
    """The facts of an analysed plan whose output column `time` (a path) decides the bucket of a row."""
    stream = _follow(plan)
    lag_us = _lag_of_output(plan, stream, list(time))
    return Facts(
        stream.stateful,
        lag_us,
        stream.extent_us,
        stream.unbounded,
        stream.grouping,
        tuple(dict.fromkeys(stream.rounding)),
    )


def _lag_of_output(plan: Node, stream: Stream, path: list[str]) -> float:
    names = _output_names(plan)
    for number in reversed(stream.output):
        if names.get(number) == path[0]:
            found = stream.times.get(number)
            if isinstance(found, Window):
                field_name = path[1] if len(path) > 1 else ""
                return max(0.0, found.start_us if field_name == "start" else found.end_us)
            if found is not None:
                return max(0.0, found)
    # A time of the user's own making: the contract of the time column is checked on every row instead.
    return 0.0


def _output_names(plan: Node) -> dict[int, str]:
    return {e.id: e.name for node in plan.walk() for e in node.expressions() if e.id is not None}


def _follow(node: Node) -> Stream:
    children = [_follow(child) for child in node.children]
    if not children:
        return Stream(node.kind.startswith("Streaming"), _ids(node.tree("output")))
    handler = _HANDLERS.get(node.kind)
    if handler is not None:
        return handler(node, children)
    child = children[0]
    if node.tree("output"):
        child = replace(child, output=_ids(node.tree("output")), times={})
    if node.kind == "Generate":
        child = replace(child, output=child.output + _ids(node.tree("generatorOutput")))
    return _with_grouping(node, child)


def _with_grouping(node: Node, stream: Stream) -> Stream:
    if not stream.streaming or node.kind not in GROUPING_SENSITIVE:
        return stream
    name = GROUPING_SENSITIVE[node.kind]
    stream = replace(stream, grouping=stream.grouping or name, stateful=True)
    if node.kind in ARBITRARY_STATE or name == "limit":
        stream = replace(stream, unbounded=stream.unbounded or name, extent_us=math.inf)
    return stream


def _ids(nodes: Iterable[Node]) -> tuple[int, ...]:
    return tuple(node.id for node in nodes if node.id is not None)


def _watermark(node: Node, children: list[Stream]) -> Stream:
    (child,) = children
    return replace(child, times={**child.times, **dict.fromkeys(_ids(node.tree("eventTime")), 0.0)})


def _project(node: Node, children: list[Stream]) -> Stream:
    (child,) = children
    columns = node.tree("projectList")
    times = {c.id: found for c in columns if c.id is not None and (found := time_of(c, child)) is not None}
    hidden = [c.children[0] for c in columns if c.kind == "Alias" and c.name == HIDDEN_TIME]
    for field_read in hidden:
        # The struct that the hidden time is read from stands for it: its end is the input's own time.
        for part in field_read.walk():
            if part.kind == "AttributeReference" and part.id is not None:
                times[part.id] = Window(math.inf, 0.0, 0, whole_ms=False)
    return replace(child, output=_ids(columns), times=times)


def _expand(node: Node, children: list[Stream]) -> Stream:
    """Sliding windows: each row goes to several windows. The first is the worst for the start of a window."""
    (child,) = children
    output = _ids(node.tree("output"))
    times: dict[int, Time] = {}
    columns = node.tree("projections")
    for position, number in enumerate(output):
        found = [time_of(column, child) for column in columns[position :: len(output)]]
        known = [value for value in found if value is not None]
        if len(known) == len(found) and known:
            times[number] = known[0]
    return replace(child, output=output, times=times)


def _aggregate(node: Node, children: list[Stream]) -> Stream:
    (child,) = children
    columns = node.tree("aggregateExpressions")
    if not child.streaming:
        return replace(child, output=_ids(columns))
    keys = [found for key in node.tree("groupingExpressions") if (found := time_of(key, child)) is not None]
    windows = [key for key in keys if isinstance(key, Window)]
    evicted_us = child.watermark_us + (0 if any(w.whole_ms for w in windows) else _EVICTION_LOSS_US)
    length_us: float = math.inf
    gap_us: float = math.inf
    if windows:
        length_us = min((w.length_us for w in windows if w.length_us is not None), default=math.inf)
        gap_us = min((w.gap_us for w in windows), default=math.inf) if length_us == math.inf else length_us
    elif keys:
        length_us = gap_us = 0.0

    def time_in_group(expression: Node) -> Time | None:
        found = time_of(expression, child)
        if isinstance(found, Window):
            return replace(found, end_us=evicted_us, start_us=evicted_us + (found.length_us or math.inf))
        if found is not None:
            return evicted_us if not windows else evicted_us + length_us
        inner = _under_aggregate(expression)
        if inner is None or time_of(inner[1], child) is None:
            return None
        return evicted_us + (gap_us if inner[0] == "Max" else length_us)

    times = {c.id: found for c in columns if c.id is not None and (found := time_in_group(c)) is not None}
    extent_us = child.extent_us + child.watermark_us + length_us + MS_US
    sensitive = _sensitive_aggregate(columns, child.mixed)
    return replace(
        child,
        output=_ids(columns),
        times=times,
        stateful=True,
        extent_us=extent_us,
        unbounded=child.unbounded or (_unbounded_aggregate(bool(keys)) if extent_us == math.inf else None),
        grouping=child.grouping or sensitive,
        rounding=child.rounding + _rounded(columns),
        fresh=(),
    )


def _unbounded_aggregate(windowed: bool) -> str:
    return "session_window" if windowed else ENDLESS_AGGREGATE


def _under_aggregate(expression: Node) -> tuple[str, Node] | None:
    """The aggregate function of `alias(function(column))` and its column."""
    node = expression
    while node.kind in {"Alias", "AggregateExpression", "Cast"} and node.children:
        node = node.children[0]
    if node.kind in {"Max", "Min", "First", "Last", "AnyValue", "MaxBy", "MinBy"} and node.children:
        return node.kind, node.children[0]
    return None


def _sensitive_aggregate(columns: Iterable[Node], mixed: bool) -> str | None:
    for column in columns:
        for part in column.walk():
            if part.kind in _SKETCHES or (mixed and part.kind in _ORDER_SENSITIVE):
                return _function_name(part.kind)
    return None


def _rounded(columns: Iterable[Node]) -> tuple[str, ...]:
    found = []
    for column in columns:
        for part in column.walk():
            if part.kind in _ROUNDED_ALWAYS or (
                part.kind in {"Sum", "Average", "TrySum", "TryAverage"}
                and any(p.type in _FLOATS or p.kind == "Divide" for p in part.walk())
            ):
                found.append(f"{_function_name(part.kind)} as {column.name}")
    return tuple(found)


def _function_name(kind: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind).lower()


def _deduplicate(node: Node, children: list[Stream]) -> Stream:
    (child,) = children
    if not child.streaming:
        return child
    keys = node.tree("keys") if node.kind == "Deduplicate" else None
    bounded = any(k in child.times for k in (_ids(keys) if keys is not None else child.output))
    stream = replace(child, stateful=True)
    if child.mixed and not bounded:
        stream = replace(stream, grouping=stream.grouping or "dropDuplicates over several inputs")
    if bounded:
        return replace(stream, extent_us=stream.extent_us + stream.watermark_us + MS_US)
    return replace(
        stream, extent_us=math.inf, unbounded=stream.unbounded or "dropDuplicates without the time column"
    )


def _within_watermark(node: Node, children: list[Stream]) -> Stream:
    (child,) = children
    stream = _with_grouping(node, child)
    return (
        replace(stream, extent_us=stream.extent_us + stream.watermark_us + MS_US)
        if child.streaming
        else child
    )


def _union(node: Node, children: list[Stream]) -> Stream:
    first = children[0]
    live = [child for child in children if child.streaming]
    times: dict[int, Time] = {}
    for position, number in enumerate(first.output):
        found = [c.times.get(c.output[position]) for c in live if position < len(c.output)]
        plain = [f for f in found if isinstance(f, int | float)]
        if found and len(plain) == len(found):
            times[number] = max(plain)
        elif found and all(isinstance(f, Window) for f in found) and found[0] is not None:
            times[number] = found[0]
    merged = _merged(children)
    return replace(merged, output=first.output, times=times, mixed=len(live) > 1 or merged.mixed)


def _merged(children: list[Stream]) -> Stream:
    """What holds for several streams together: the worst of each."""
    live = [child for child in children if child.streaming] or children
    return Stream(
        streaming=any(child.streaming for child in children),
        output=(),
        watermark_us=max(child.watermark_us for child in live),
        extent_us=max(child.extent_us for child in live),
        stateful=any(child.stateful for child in live),
        unbounded=next((c.unbounded for c in live if c.unbounded), None),
        grouping=next((c.grouping for c in live if c.grouping), None),
        rounding=tuple(r for c in live for r in c.rounding),
        mixed=any(child.mixed for child in live),
    )


def _join(node: Node, children: list[Stream]) -> Stream:
    left, right = children
    kind = str(node.fields["joinType"].get("object", node.fields["joinType"].get("product-class", "")))
    kind = kind.rpartition(".")[2].rstrip("$")
    output = left.output if kind in {"LeftSemi", "LeftAnti"} else left.output + right.output
    if not (left.streaming and right.streaming):
        live = left if left.streaming else right
        return replace(_merged(children), output=output, times=live.times)
    low_us, high_us = _difference(node.tree("condition"), left, right)
    kept_left_us, kept_right_us = max(0.0, -low_us), max(0.0, high_us)
    base = _merged(children)
    loss_us = base.watermark_us + _EVICTION_LOSS_US
    times = {
        **{number: _later(value, kept_left_us + loss_us) for number, value in left.times.items()},
        **{number: _later(value, kept_right_us + loss_us) for number, value in right.times.items()},
    }
    newest_us = max(
        [v for s in (left, right) for v in s.times.values() if isinstance(v, int | float)], default=0.0
    )
    kept_us = max(kept_left_us, kept_right_us)
    return replace(
        base,
        output=output,
        times=times,
        stateful=True,
        mixed=True,
        watermark_us=base.watermark_us + kept_us + MS_US,
        extent_us=base.extent_us + base.watermark_us + kept_us + MS_US,
        unbounded=base.unbounded or ("join without a bound on both times" if kept_us == math.inf else None),
        fresh=((frozenset(left.times), frozenset(right.times), newest_us),)
        if kind in {"Inner", "Cross"}
        else (),
    )


def _later(value: Time, kept_us: float) -> Time:
    if isinstance(value, Window):
        return replace(value, start_us=value.start_us + kept_us, end_us=value.end_us + kept_us)
    return value + kept_us


def _difference(condition: Iterable[Node], left: Stream, right: Stream) -> tuple[float, float]:
    """Bounds of left time - right time, from the comparisons that a join's condition joins by AND."""
    low_us, high_us = -math.inf, math.inf
    for part in (part for root in condition for part in _conjuncts(root)):
        for written, a, b in _comparisons(part):
            kind, one, two = written, linear(a), linear(b)
            if one is None or two is None:
                continue
            if one[0] in right.times and two[0] in left.times:
                one, two, kind = two, one, _MIRROR.get(kind, kind)
            if one[0] not in left.times or two[0] not in right.times:
                continue
            offset_us = two[1] - one[1]
            if kind in {"EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual"}:
                low_us = max(low_us, offset_us)
            if kind in {"EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual"}:
                high_us = min(high_us, offset_us)
    return low_us, high_us


_MIRROR = {
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
}


def _conjuncts(node: Node) -> Iterable[Node]:
    if node.kind == "And":
        for child in node.children:
            yield from _conjuncts(child)
    else:
        yield node


def _comparisons(node: Node) -> Iterable[tuple[str, Node, Node]]:
    if node.kind == "Between":
        (value,) = node.tree("input")
        yield "GreaterThanOrEqual", value, node.tree("lower")[0]
        yield "LessThanOrEqual", value, node.tree("upper")[0]
    elif len(node.children) == 2:
        yield node.kind, node.children[0], node.children[1]


_HANDLERS: dict[str, Callable[[Node, list[Stream]], Stream]] = {
    "EventTimeWatermark": _watermark,
    "Project": _project,
    "Expand": _expand,
    "Aggregate": _aggregate,
    "Deduplicate": _deduplicate,
    "Distinct": _deduplicate,
    "DeduplicateWithinWatermark": _within_watermark,
    "Union": _union,
    "Join": _join,
}
