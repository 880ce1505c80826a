"""What in a plan depends on how buckets are grouped into micro-batches.

Replicas group buckets differently, so the grouping must not show in the output. Most operators see to that
themselves. Some do not: operators that run a user's code over the rows of one micro-batch, or count them, and
aggregates whose value depends on the order of rows or on the order in which partial results were merged. The
engine gives these one bucket per micro-batch. Sums of floating-point numbers lie in between: only their last
digits differ, which is reported and accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from understudy.engine.plan import PlanNode

#: Operators that run a user's code over the rows of one micro-batch, or count them.
SENSITIVE_OPERATORS = {
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "FlatMapGroupsInPandas": "applyInPandas",
    "FlatMapGroupsInArrow": "applyInArrow",
    "FlatMapCoGroupsInPandas": "cogroup.applyInPandas",
    "FlatMapCoGroupsInArrow": "cogroup.applyInArrow",
    "MapInPandas": "mapInPandas",
    "MapInArrow": "mapInArrow",
    "GlobalLimit": "limit",
    "LocalLimit": "limit",
}

#: Aggregates whose value depends on the order in which rows arrive. In a set, values of one hash are in it.
_ORDER_SENSITIVE = {
    "First", "Last", "CollectList", "CollectSet", "CollectUnion", "AnyValue", "MaxBy", "MinBy", "ListAgg",
}  # fmt: skip
#: Aggregates that merge approximations, or choose among equals by their places in a heap or a hash table: how
#: rows were grouped shows in the value. (Sketches that choose by chance are refused, see `determinism`.)
_GROUPING_SENSITIVE = {
    "ApproximatePercentile", "HistogramNumeric", "MaxMinByK", "Mode",
    "ApproxTopK", "ApproxTopKAccumulate", "ApproxTopKCombine",
    "HllSketchAgg", "HllUnionAgg", "ThetaSketchAgg", "ThetaUnionAgg", "ThetaIntersectionAgg",
    "TupleSketchAggDouble", "TupleUnionAggDouble", "TupleIntersectionAggDouble",
    "TupleSketchAggInteger", "TupleUnionAggInteger", "TupleIntersectionAggInteger",
}  # fmt: skip
_ROUNDED_ALWAYS = {
    "StddevSamp", "StddevPop", "VarianceSamp", "VariancePop", "Skewness", "Kurtosis", "Corr", "CovSample",
    "CovPopulation", "RegrSlope", "RegrIntercept", "RegrR2", "RegrSXX", "RegrSXY", "RegrSYY", "Product",
}  # fmt: skip
_ROUNDED_IF_FLOATS = {"Sum", "Average", "RegrAvgX", "RegrAvgY"}
_FLOATS = {"double", "float"}


def sensitive_aggregate(columns: Iterable[PlanNode], mixed: bool) -> str | None:
    """The first aggregate that shows the grouping. `mixed`: the order of rows depends on it already."""
    for column in columns:
        for part in column.walk():
            if _is_grouping_sensitive(part) or (mixed and part.kind in _ORDER_SENSITIVE):
                return function_name(part.kind)
    return None


def _is_grouping_sensitive(part: PlanNode) -> bool:
    # Of a mode with "reverseOpt" Spark takes the least or the greatest among equals.
    return part.kind in _GROUPING_SENSITIVE and "reverseOpt" not in part.fields


def rounded(columns: Iterable[PlanNode]) -> tuple[str, ...]:
    """Aggregates of floating-point numbers: their last digits depend on the order of additions."""
    found = []
    for column in columns:
        for part in column.walk():
            if part.kind in _ROUNDED_ALWAYS or (
                part.kind in _ROUNDED_IF_FLOATS
                and any(p.type in _FLOATS or p.kind == "Divide" for p in part.walk())
            ):
                found.append(f"{function_name(part.kind)} as {column.name}")
    return tuple(found)


def function_name(kind: str) -> str:
    """An expression's kind the way SQL spells it."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind).lower()
