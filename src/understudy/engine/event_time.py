"""Event time in one expression: which columns carry it, how far they lag, and what bounds a comparison sets.

The rules for operators are in `facts` and `extent`; here are the terms they are written in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from understudy.engine.plan import PlanNode

MS_US = 1000

#: The column that carries the watermark when an input's time is inside a struct (see `query`).
HIDDEN_TIME = "__understudy_time"


@dataclass(frozen=True)
class Window:
    """A window column: lags of its two ends. `length_us` is None for a session; then `gap_us` is its gap."""

    start_us: float
    end_us: float
    length_us: int | None
    gap_us: int = 0
    whole_ms: bool = True


Time = float | Window


@dataclass(frozen=True)
class Stream:
    """The stream at one place of the plan, as far as it is known."""

    streaming: bool
    output: tuple[int, ...]
    times: dict[int, Time] = field(default_factory=dict)
    watermark_us: float = 0.0
    #: For how long after a row the passing of time alone may still do something.
    extent_us: float = 0.0
    unbounded: str | None = None
    grouping: str | None = None
    rounding: tuple[str, ...] = ()
    #: Whether the order of rows depends on the grouping, because several inputs meet below.
    mixed: bool = False
    #: Pairs of sides of an inner join, of which one has only just arrived, and the lag of the newer.
    fresh: tuple[tuple[frozenset[int], frozenset[int], float], ...] = ()


def merged(children: list[Stream]) -> Stream:
    """What holds for several streams together: the worst of each."""
    live = [child for child in children if child.streaming] or children
    return Stream(
        streaming=any(child.streaming for child in children),
        output=(),
        watermark_us=max(child.watermark_us for child in live),
        extent_us=max(child.extent_us for child in live),
        unbounded=next((c.unbounded for c in live if c.unbounded), None),
        grouping=next((c.grouping for c in live if c.grouping), None),
        rounding=tuple(r for c in live for r in c.rounding),
        mixed=any(child.mixed for child in live),
    )


def linear(node: PlanNode) -> tuple[int, int] | None:
    """An attribute plus a fixed interval, as (attribute, microseconds)."""
    if node.kind == "AttributeReference" and node.id is not None:
        return node.id, 0
    if node.kind in {"Alias", "Cast", "DatetimeSub", "KnownNullable"} and len(node.children) == 1:
        return linear(node.children[0])
    if node.kind == "TimestampAddInterval":
        start, interval = linear(node.children[0]), interval_us(node.children[1])
        return None if start is None or interval is None else (start[0], start[1] + interval)
    return None


_UNITS_US = {"microsecond": 1, "millisecond": 1000, "second": 10**6, "minute": 6 * 10**7, "hour": 36 * 10**8,
             "day": 864 * 10**8, "week": 6048 * 10**8}  # fmt: skip


def interval_us(node: PlanNode) -> int | None:
    if node.kind == "UnaryMinus":
        inner = interval_us(node.children[0])
        return None if inner is None else -inner
    if node.kind == "Cast":
        return interval_us(node.children[0])
    if node.kind != "Literal":
        return None
    text = str(node.fields.get("value"))
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    parts = re.findall(r"(-?\d+)\s*([a-z]+)", text.lower().removeprefix("interval"))
    units = [(int(number), _UNITS_US.get(unit.rstrip("s"))) for number, unit in parts]
    if not units or any(unit is None for _, unit in units):
        return None
    return sum(number * unit for number, unit in units if unit is not None)


def time_of(node: PlanNode, stream: Stream) -> Time | None:
    """The lag of an expression, if it is a time that can be followed."""
    if node.kind == "AttributeReference":
        return stream.times.get(node.id) if node.id is not None else None
    if node.kind in {"Alias", "KnownNullable", "KnownNotNull", "DatetimeSub", "PreciseTimestampConversion"}:
        return time_of(node.children[0], stream)
    if node.kind == "Cast":
        return time_of(node.children[0], stream) if node.type == "timestamp" else None
    if node.kind in {"TimestampAddInterval", "Add", "Subtract"}:
        start, interval = time_of(node.children[0], stream), interval_us(node.children[1])
        if not isinstance(start, int | float) or interval is None:
            return None
        return start + interval if node.kind == "Subtract" else start - interval
    if node.kind == "CreateNamedStruct":
        return _window(node, stream)
    if node.kind == "GetStructField":
        parent = time_of(node.children[0], stream)
        if isinstance(parent, Window):
            return parent.start_us if node.fields.get("ordinal") == 0 else parent.end_us
        return None
    if node.kind == "Greatest":
        return _greatest(node, stream)
    if node.kind in {"Least", "Coalesce"}:
        found = [time_of(child, stream) for child in node.children]
        plain = [value for value in found if isinstance(value, int | float)]
        return max(plain) if plain and len(plain) == len(found) else None
    return None


def _greatest(node: PlanNode, stream: Stream) -> float | None:
    """The best of its parts. Spark leaves out nulls, so after an outer join each part may stand alone."""
    found = [time_of(child, stream) for child in node.children]
    plain = [value for value in found if isinstance(value, int | float)]
    if not plain or len(plain) != len(found):
        return None
    ids = {part[0] for child in node.children if (part := linear(child)) is not None and part[1] >= 0}
    for left, right, lag_us in stream.fresh:
        if ids & left and ids & right:
            return lag_us
    return max(plain)


def _window(node: PlanNode, stream: Stream) -> Window | None:
    """A window as Spark spells it out: a struct of start and end computed from the time column."""
    parts = node.children
    if len(parts) != 4 or [p.fields.get("value") for p in (parts[0], parts[2])] != ["start", "end"]:
        return None
    inside = [stream.times[n] for p in parts[3].walk() if (n := p.id) is not None and n in stream.times]
    lags = [value.end_us if isinstance(value, Window) else value for value in inside]
    if not lags:
        return None
    lag_us = max(lags)
    session = linear(_strip(parts[3]))
    if session is not None:
        return Window(math.inf, lag_us, None, gap_us=session[1], whole_ms=False)
    end = _strip(parts[3])
    length_us = interval_us(end.children[1]) if end.kind == "Add" else None
    if length_us is None:
        # A session with a gap that differs by row.
        return Window(math.inf, lag_us, None, gap_us=0, whole_ms=False)
    steps = [interval_us(p) for p in parts[3].walk() if p.kind == "Literal" and p.type == "long"]
    whole_ms = all(step is not None and step % MS_US == 0 for step in steps)
    return Window(lag_us + length_us, lag_us, length_us, whole_ms=whole_ms)


def _strip(node: PlanNode) -> PlanNode:
    while node.kind in {"KnownNullable", "PreciseTimestampConversion"}:
        node = node.children[0]
    return node


def difference(condition: Iterable[PlanNode], left: Stream, right: Stream) -> tuple[float, float]:
    """Bounds of left time - right time, from the comparisons that a join's condition joins by AND."""
    low_us, high_us = -math.inf, math.inf
    for part in (part for root in condition for part in conjuncts(root)):
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


def conjuncts(node: PlanNode) -> Iterable[PlanNode]:
    """The parts of a condition that AND joins."""
    if node.kind == "And":
        for child in node.children:
            yield from conjuncts(child)
    else:
        yield node


def _comparisons(node: PlanNode) -> Iterable[tuple[str, PlanNode, PlanNode]]:
    if node.kind == "Between":
        (value,) = node.tree("input")
        yield "GreaterThanOrEqual", value, node.tree("lower")[0]
        yield "LessThanOrEqual", value, node.tree("upper")[0]
    elif len(node.children) == 2:
        yield node.kind, node.children[0], node.children[1]
