"""The extent of an operator that keeps state, and how far what it brings out lags.

The **extent** of a state is how much older than the boundary (the end of the last sealed input bucket) the
oldest input row may be that it depends on; extents of operators in series add up. Infinite means without
bound. The **lag** of a column: no row still to come out has a value in it older than boundary - lag.

- A windowed aggregate emits a group when the watermark passes the window's end: the end lags 0, the start
  and any time taken from inside lag the window's length.
- A session's end lags 0, its start has no bound.
- A join keeps a row while the other side may still bring a match. With l.time - r.time in [low, high], left
  rows are kept for -low and right rows for high. Each side's times lag that much, but the greater of the
  two does not: one of them has only just arrived. Rows without a match come out when they are given up, so
  there it does.
- Deduplication keeps keys until the watermark passes the time or the window among them; without, for ever.
- State that a user's code keeps has no bound that a plan tells of.

State may last for ever and yet be indifferent to time: a count that a user's code keeps changes only when a
row comes. So a `Stream` tells apart that its state has no bound, which `unbounded` says, and its
`extent_us`: for how long after a row the passing of time alone may still do something. Timers have no
bound there either.

Spark's watermark counts milliseconds and is put 1 ms below the boundary, so that the boundary's own rows
are not late. What is emitted by eviction therefore lags up to 999 microseconds more, unless its times are
whole milliseconds, as the ends of windows are when length and slide are.
"""

from __future__ import annotations

import math
from dataclasses import replace

from understudy.engine.event_time import MS_US, Stream, Time, Window, difference, merged, time_of
from understudy.engine.grouping import SENSITIVE_OPERATORS, rounded, sensitive_aggregate
from understudy.engine.plan import PlanNode, ids_of

#: How `Facts.unbounded` calls an aggregate none of whose groups ever closes.
ENDLESS_AGGREGATE = "groupBy without a window"

_EVICTION_LOSS_US = 999

#: Operators that are sensitive to the grouping, and remember what they saw for ever.
_UNBOUNDED = {"applyInPandasWithState", "limit"}


def user_code(node: PlanNode, stream: Stream) -> Stream:
    """The stream after an operator that is sensitive to the grouping; unchanged after any other."""
    name = SENSITIVE_OPERATORS.get(node.kind)
    if not stream.streaming or name is None:
        return stream
    return replace(
        stream,
        grouping=stream.grouping or name,
        unbounded=stream.unbounded or (name if name in _UNBOUNDED else None),
        extent_us=math.inf if _has_timers(node) else stream.extent_us,
    )


def _has_timers(node: PlanNode) -> bool:
    """Whether the user's code can be called because time passed, without a row of its own."""
    return "EventTimeTimeout" in str(node.fields.get("timeout"))


def aggregate(node: PlanNode, children: list[Stream]) -> Stream:
    (child,) = children
    columns = node.tree("aggregateExpressions")
    if not child.streaming:
        return replace(child, output=ids_of(columns))
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

    def time_in_group(expression: PlanNode) -> Time | None:
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
    sensitive = sensitive_aggregate(columns, child.mixed)
    return replace(
        child,
        output=ids_of(columns),
        times=times,
        extent_us=extent_us,
        unbounded=child.unbounded or (_unbounded_aggregate(bool(keys)) if extent_us == math.inf else None),
        grouping=child.grouping or sensitive,
        rounding=child.rounding + rounded(columns),
        fresh=(),
    )


def _unbounded_aggregate(windowed: bool) -> str:
    return "session_window" if windowed else ENDLESS_AGGREGATE


def _under_aggregate(expression: PlanNode) -> tuple[str, PlanNode] | None:
    """The aggregate function of `alias(function(column))` and its column."""
    node = expression
    while node.kind in {"Alias", "AggregateExpression", "Cast"} and node.children:
        node = node.children[0]
    if node.kind in {"Max", "Min", "First", "Last", "AnyValue", "MaxBy", "MinBy"} and node.children:
        return node.kind, node.children[0]
    return None


def deduplicate(node: PlanNode, children: list[Stream]) -> Stream:
    (child,) = children
    if not child.streaming:
        return child
    keys = ids_of(node.tree("keys")) if node.kind == "Deduplicate" else child.output
    kept_us = min((_kept_us(child.times[key]) for key in keys if key in child.times), default=math.inf)
    if kept_us < math.inf:
        return replace(child, extent_us=child.extent_us + child.watermark_us + kept_us + MS_US)
    return replace(
        child,
        unbounded=child.unbounded or "dropDuplicates without the time column",
        grouping=child.grouping or ("dropDuplicates over several inputs" if child.mixed else None),
    )


def _kept_us(time: Time) -> float:
    """For how long after a row a key with this time is remembered."""
    if not isinstance(time, Window):
        return 0.0
    return math.inf if time.length_us is None else time.length_us


def join(node: PlanNode, children: list[Stream]) -> Stream:
    left, right = children
    kind = join_kind(node)
    output = left.output if kind in {"LeftSemi", "LeftAnti"} else left.output + right.output
    if not (left.streaming and right.streaming):
        live = left if left.streaming else right
        return replace(merged(children), output=output, times=live.times)
    low_us, high_us = difference(node.tree("condition"), left, right)
    kept_left_us, kept_right_us = max(0.0, -low_us), max(0.0, high_us)
    base = merged(children)
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
        mixed=True,
        watermark_us=base.watermark_us + kept_us + MS_US,
        extent_us=base.extent_us + base.watermark_us + kept_us + MS_US,
        unbounded=base.unbounded or ("join without a bound on both times" if kept_us == math.inf else None),
        fresh=((frozenset(left.times), frozenset(right.times), newest_us),)
        if kind in {"Inner", "Cross"}
        else (),
    )


def join_kind(node: PlanNode) -> str:
    """Inner, LeftOuter and so on."""
    kind = str(node.fields["joinType"].get("object", node.fields["joinType"].get("product-class", "")))
    return kind.rpartition(".")[2].rstrip("$")


def _later(value: Time, kept_us: float) -> Time:
    if isinstance(value, Window):
        return replace(value, start_us=value.start_us + kept_us, end_us=value.end_us + kept_us)
    return value + kept_us
