"""What the analysed plan says about a fragment: how far its output may lag, how far back its state reaches.

The plan is followed from its inputs upwards. At each operator a `Stream` (see `event_time`) says which
columns carry event time and how far each lags behind the boundary, the end of the last sealed input bucket.
Here are the walk and the operators that keep nothing; those that keep state are in `extent`.

- An input's time column lags 0: no later row of an input is older than the boundary.
- A projection computes times from times. A column computed by adding an interval lags that much less; the
  greatest of several lags as the best of them, the least as the worst.
- A union's column lags as the worst of those that it is made of.
- A name that SQL's WITH has given stands for what it names, under other column numbers.
- The new columns of any other operator are not followed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from understudy.engine.event_time import HIDDEN_TIME, Stream, Time, Window, merged, time_of
from understudy.engine.extent import aggregate, deduplicate, join, user_code
from understudy.engine.plan import PlanNode, ids_of, inlined


@dataclass(frozen=True)
class Facts:
    """What the plan says about a fragment, for its declared time column."""

    lag_us: float
    """How far behind the boundary output may be; infinite if there is no bound."""
    extent_us: float
    """How much older than the boundary an input row may be that the state depends on."""
    stirring_us: float
    """For how long after a row the passing of time alone may do something: close a window, fire a timer."""
    unbounded: str | None
    """The operator whose state has no bound, if there is one."""
    grouping: str | None
    """The operator whose result depends on how buckets are grouped into micro-batches, if there is one."""
    rounding: tuple[str, ...]
    """Aggregates of floating-point numbers: their last digits depend on the order of additions."""


def facts_of(plan: PlanNode, time: Iterable[str]) -> Facts:
    """The facts of an analysed plan whose output column `time` (a path) decides the bucket of a row."""
    stream = _follow(inlined(plan))
    lag_us = _lag_of_output(plan, stream, list(time))
    return Facts(
        lag_us,
        math.inf if stream.unbounded else stream.extent_us,
        stream.extent_us,
        stream.unbounded,
        stream.grouping,
        tuple(dict.fromkeys(stream.rounding)),
    )


def _lag_of_output(plan: PlanNode, stream: Stream, path: list[str]) -> float:
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


def _output_names(plan: PlanNode) -> dict[int, str]:
    return {e.id: e.name for node in plan.walk() for e in node.expressions() if e.id is not None}


def _follow(node: PlanNode) -> Stream:
    """The stream that comes out of a plan."""
    children = [_follow(child) for child in node.children]
    if not children:
        return Stream(node.kind.startswith("Streaming"), ids_of(node.tree("output")))
    handler = _HANDLERS.get(node.kind)
    if handler is not None:
        return handler(node, children)
    # An operator that nothing is known of may do anything with each of its inputs.
    child = children[0] if len(children) == 1 else replace(merged(children), times={}, mixed=True)
    if node.tree("output"):
        child = replace(child, output=ids_of(node.tree("output")), times={})
    if node.kind == "Generate":
        child = replace(child, output=child.output + ids_of(node.tree("generatorOutput")))
    return user_code(node, child)


def _named(node: PlanNode, children: list[Stream]) -> Stream:
    """A stream under the new numbers that its columns have where its name is used."""
    (stream,) = children
    output = ids_of(node.tree("output"))
    if len(stream.output) != len(output):
        # An operator below did not tell its columns, so none is followed further.
        return replace(stream, output=output, times={}, mixed=True, fresh=())
    renamed = dict(zip(stream.output, output, strict=True))
    return replace(
        stream,
        output=output,
        times={renamed[number]: time for number, time in stream.times.items() if number in renamed},
        fresh=tuple(
            (_renamed(left, renamed), _renamed(right, renamed), lag_us)
            for left, right, lag_us in stream.fresh
        ),
    )


def _renamed(numbers: frozenset[int], renamed: Mapping[int, int]) -> frozenset[int]:
    return frozenset(renamed[number] for number in numbers if number in renamed)


def _watermark(node: PlanNode, children: list[Stream]) -> Stream:
    (child,) = children
    return replace(child, times={**child.times, **dict.fromkeys(ids_of(node.tree("eventTime")), 0.0)})


def _project(node: PlanNode, children: list[Stream]) -> Stream:
    (child,) = children
    columns = node.tree("projectList")
    times = {c.id: found for c in columns if c.id is not None and (found := time_of(c, child)) is not None}
    hidden = [c.children[0] for c in columns if c.kind == "Alias" and c.name == HIDDEN_TIME]
    for field_read in hidden:
        # The struct that the hidden time is read from stands for it: its end is the input's own time.
        for part in field_read.walk():
            if part.kind == "AttributeReference" and part.id is not None:
                times[part.id] = Window(math.inf, 0.0, 0, whole_ms=False)
    return replace(child, output=ids_of(columns), times=times)


def _expand(node: PlanNode, children: list[Stream]) -> Stream:
    """Each row becomes several. Of sliding windows the first is the worst for the start of a window."""
    (child,) = children
    output = ids_of(node.tree("output"))
    times: dict[int, Time] = {}
    columns = node.tree("projections")
    for position, number in enumerate(output):
        # Where Spark leaves the projections out, a column that kept its number is still the same.
        ways = columns[position :: len(output)]
        found = [time_of(column, child) for column in ways] if ways else [child.times.get(number)]
        known = [value for value in found if value is not None]
        if len(known) == len(found) and known:
            times[number] = known[0]
    return replace(child, output=output, times=times)


def _union(node: PlanNode, children: list[Stream]) -> Stream:
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
    together = merged(children)
    return replace(together, output=first.output, times=times, mixed=len(live) > 1 or together.mixed)


_HANDLERS: dict[str, Callable[[PlanNode, list[Stream]], Stream]] = {
    "CTERelationRef": _named,
    "EventTimeWatermark": _watermark,
    "Project": _project,
    "Expand": _expand,
    "Aggregate": aggregate,
    "Deduplicate": deduplicate,
    "Distinct": deduplicate,
    "Union": _union,
    "Join": join,
}
