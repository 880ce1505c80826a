"""The shape of a fragment's state: all that decides whether an old state goes on under changed code.

The shape is plain data that JSON holds, so it outlives the code it was read from. `fitting` compares two.

It is read off Spark's *optimised* plan, because the state is what that plan keeps, not what the user wrote.
Spark leaves out aggregates and columns that nothing above uses, and moves a projection into the aggregate
below it. So to drop an output column may drop a part of the state, and to put output columns into another
order may swap the sums and counts of the windows that are open: Spark compares types alone, by position.

What the state does not depend on is in the shape by its digest, to tell that it has changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from understudy.engine.canonical import Columns, Place, digest
from understudy.engine.event_time import conjuncts
from understudy.engine.extent import join_kind
from understudy.engine.facts import Facts
from understudy.engine.plan import PlanNode, inlined

#: A fragment's shape; `fitting` says what each of its facts means for a state.
Shape = Mapping[str, Any]

#: Joins that put out pairs and nothing else, so they do not remember which rows had a match.
_PAIRS_ONLY = {"Inner", "Cross"}


def shape_of(
    *,
    plan: PlanNode,
    optimised: PlanNode,
    leaves: Sequence[str | None],
    facts: Facts,
    inputs: Mapping[str, str],
    time: str,
    width_us: int,
    schema: pa.Schema,
) -> Shape:
    """`inputs` are their time columns by name; `leaves` those of the optimised plan (see `Columns`)."""
    reading = _Reading(leaves)
    whole = reading.follow(optimised)
    return {
        "inputs": [[name, its_time] for name, its_time in inputs.items()],
        "reads": sum(node.kind.startswith("Streaming") for node in inlined(plan).walk()),
        "time": time,
        "width_us": width_us,
        "lag_us": int(facts.lag_us),
        "extent_us": None if facts.extent_us == math.inf else int(facts.extent_us),
        "stepwise": facts.grouping is not None,
        "operators": reading.operators,
        "output": [[field.name, str(field.type), field.nullable] for field in schema],
        "plan": whole.exact,
    }


class _Reading:
    """One walk over an optimised plan, from its inputs upwards, that collects the operators with a state."""

    def __init__(self, leaves: Sequence[str | None]) -> None:
        self._columns = Columns(leaves)
        self.operators: list[dict[str, Any]] = []

    def follow(self, node: PlanNode) -> Place:
        children = [self.follow(child) for child in node.children]
        live = [child.streaming for child in children]
        if live and all(live):
            self._note(node, children)
        return self._columns.define(node, children)

    def _note(self, node: PlanNode, children: Sequence[Place]) -> None:
        match node.kind:
            case "Aggregate":
                self._add("groupBy", keys=self._of(node.tree("groupingExpressions")), sums=self._sums(node))
            case "Deduplicate":
                self._add("dropDuplicates", keys=self._of(node.tree("keys")))
            case "Join":
                self._join(node, *children)
            case "FlatMapGroupsInPandasWithState":
                self._add(
                    "applyInPandasWithState",
                    keys=self._of(node.tree("groupingAttributes")),
                    schema=[_fact(_schema_text(node.fields["stateType"]))],
                    timeout=[_fact(_object_name(node.fields["timeout"]))],
                )
            case "GlobalLimit":
                self._add("limit", rows=self._of(node.tree("limitExpr")))

    def _sums(self, node: PlanNode) -> list[dict[str, str]]:
        """The aggregates in the order in which Spark keeps them; what is used twice it keeps once."""
        found = self._of(
            part
            for column in node.tree("aggregateExpressions")
            for part in column.walk()
            if part.kind == "AggregateExpression"
        )
        return list({each["exact"]: each for each in found}.values())

    def _join(self, node: PlanNode, left: Place, right: Place) -> None:
        kind = join_kind(node)
        parts = [part for root in node.tree("condition") for part in conjuncts(root)]
        keys = [part for part in parts if part.kind in {"EqualTo", "EqualNullSafe"}]
        bounds = [part for part in parts if part not in keys and _compares_times(part)]
        others = [part for part in parts if part not in keys and part not in bounds]
        self._add(
            "join",
            type=[_fact(kind)],
            keys=self._of(keys),
            bounds=_sorted(self._of(bounds)),
            left=[self._columns[number].facts() for number in left.output],
            right=[self._columns[number].facts() for number in right.output],
            # Of pairs it is a filter, as they come out.
            condition=[] if kind in _PAIRS_ONLY else _sorted(self._of(others)),
        )

    def _add(self, kind: str, **parts: list[dict[str, str]]) -> None:
        self.operators.append({"kind": kind, **parts})

    def _of(self, expressions: Any) -> list[dict[str, str]]:
        return [self._columns.of(expression).facts() for expression in expressions]


def _fact(text: str) -> dict[str, str]:
    return {"shown": text, "exact": digest(text), "type": ""}


def _sorted(parts: list[dict[str, str]]) -> list[dict[str, str]]:
    """AND joins them, so their order means nothing."""
    return sorted(parts, key=lambda part: part["exact"])


def _compares_times(part: PlanNode) -> bool:
    return any(
        each.kind == "AttributeReference" and each.type.startswith("timestamp") for each in part.walk()
    )


def _schema_text(schema: Mapping[str, Any]) -> str:
    return ", ".join(f"{field['name']} {_type_text(field['type'])}" for field in schema["fields"])


def _type_text(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "struct":
            return f"struct<{_schema_text(kind)}>"
        case "array":
            return f"array<{_type_text(kind['elementType'])}>"
        case "map":
            return f"map<{_type_text(kind['keyType'])}, {_type_text(kind['valueType'])}>"
    return str(kind["type"])


def _object_name(value: Any) -> str:
    text = str(value.get("object", "")) if isinstance(value, dict) else str(value)
    return text.rpartition(".")[2].rstrip("$")
