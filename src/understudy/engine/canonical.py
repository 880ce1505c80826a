"""A plan without its accidents: what every column is made of, whatever its number and its name.

Two runs of Spark give one column two numbers, and a user may call it differently. Here a column is known by
its `exact` digest, of the expression that makes it with all that it is made of put in, down to the columns of
the inputs. So two columns with one digest hold the same values, as far as a plan can tell: of a user's own
function it tells the name, not the body.

For messages a column is also `shown` the way that a user may have written it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from understudy.engine.event_time import interval_us
from understudy.engine.grouping import function_name
from understudy.engine.plan import PlanNode, ids_of
from understudy.flow.durations import duration_text

_SHOWN_MAX = 120

#: Fields of a node that are numbers of one run of Spark, or say again what is known from elsewhere.
_ACCIDENTS = {
    *("class", "num-children", "exprId", "resultId", "nodeId", "qualifier", "metadata", "explicitMetadata"),
    *("nonInheritableMetadataKeys", "nullable", "func", "evalContext", "jvmId"),
    # Of CASE WHEN: its children are the same expressions.
    "branches",
}
_INFIX = {
    "Add": "+", "Subtract": "-", "Multiply": "*", "Divide": "/", "Remainder": "%", "And": "and", "Or": "or",
    "EqualTo": "=", "EqualNullSafe": "<=>", "TimestampAddInterval": "+",
    "LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">", "GreaterThanOrEqual": ">=",
}  # fmt: skip
_UNSEEN = {"Alias", "AggregateExpression", "KnownNullable", "KnownNotNull", "PreciseTimestampConversion"}
_COLUMNS = {"Project": "projectList", "Aggregate": "aggregateExpressions"}


@dataclass(frozen=True)
class Column:
    shown: str
    exact: str
    type: str = ""

    def facts(self) -> dict[str, str]:
        return {"shown": self.shown, "exact": self.exact, "type": self.type}


@dataclass(frozen=True)
class Place:
    """The rows at one place of a plan: the ids of their columns, and a digest of all that is below."""

    streaming: bool
    output: tuple[int, ...]
    exact: str


class Columns:
    """The columns of one plan, by id. Filled from the inputs upwards: `define` is called for every node."""

    def __init__(self, leaves: Sequence[str | None]) -> None:
        """`leaves` are those of the plan from left to right: an input's name, or None for a table."""
        self._leaves: Iterator[str | None] = iter(leaves)
        self._several = len({name for name in leaves if name is not None}) > 1
        self._known: dict[int, Column] = {}

    def __getitem__(self, number: int) -> Column:
        return self._known.get(number, Column(f"column {number}", digest("unknown")))

    def define(self, node: PlanNode, children: Sequence[Place]) -> Place:
        """What comes out of a node whose children were defined before."""
        if not children:
            return self._leaf(node)
        exact = digest(node.kind, self._fields(node), self._trees(node), [child.exact for child in children])
        output = self._output(node, children)
        return Place(any(child.streaming for child in children), output, exact)

    def of(self, expression: PlanNode) -> Column:
        return Column(shortened(self._shown(expression)), self._exact(expression), type_of(expression))

    def _leaf(self, node: PlanNode) -> Place:
        name = next(self._leaves, None)
        output = node.tree("output")
        for column in output:
            kind = type_of(column)
            shown = f"{name}.{column.name}" if name is not None and self._several else column.name
            self._put(column, Column(shown, digest("leaf", name, column.name, kind), kind))
        exact = digest("input", name) if name is not None else digest(node.kind, self._fields(node))
        return Place(name is not None, ids_of(output), exact)

    def _output(self, node: PlanNode, children: Sequence[Place]) -> tuple[int, ...]:
        below = tuple(number for child in children for number in child.output)
        match node.kind:
            case kind if kind in _COLUMNS:
                columns = node.tree(_COLUMNS[kind])
                self._define_all(columns, (self.of(column) for column in columns))
                return ids_of(columns)
            case "ArrowEvalPython" | "BatchEvalPython":
                self._define_all(node.tree("resultAttrs"), (self.of(udf) for udf in node.tree("udfs")))
                return below + ids_of(node.tree("resultAttrs"))
            case "Expand":
                return self._expand(node, below)
            case "Union":
                return self._union(children)
            case "Join" if "LeftSemi" in str(node.fields["joinType"]) or "LeftAnti" in str(
                node.fields["joinType"]
            ):
                return children[0].output
            case "Generate":
                made = node.tree("generatorOutput")
                self._define_new(made, node, (self._exact(part) for part in node.tree("generator")))
                return below + ids_of(made)
        new = node.tree("output") or node.tree("outputAttrs")
        if new:
            self._define_new(new, node, (part.name for part in node.tree("functionExpr")))
        return ids_of(new) or below

    def _expand(self, node: PlanNode, below: tuple[int, ...]) -> tuple[int, ...]:
        """Each row becomes several, as for sliding windows: a column is made in as many ways."""
        output, columns = node.tree("output"), node.tree("projections")
        if not columns:
            self._define_new(output, node, (self[number].exact for number in below))
            return ids_of(output)
        made = []
        for position in range(len(output)):
            ways = [self.of(column) for column in columns[position :: len(output)]]
            same = len({way.exact for way in ways}) == 1
            made.append(ways[0] if same else Column(ways[0].shown, digest(*(way.exact for way in ways))))
        self._define_all(output, made)
        return ids_of(output)

    def _union(self, children: Sequence[Place]) -> tuple[int, ...]:
        """A union's columns have the ids of its first child's."""
        first = children[0].output
        for position, number in enumerate(first):
            ways = [self[child.output[position]] for child in children if position < len(child.output)]
            if len({way.exact for way in ways}) > 1:
                self._known[number] = Column(ways[0].shown, digest("union", *(way.exact for way in ways)))
        return first

    def _define_all(self, columns: Iterable[PlanNode], made: Iterable[Column]) -> None:
        # First all values, then all names: a column may be made of one that it replaces.
        for column, value in zip(columns, tuple(made), strict=False):
            if column.kind != "AttributeReference" or column.id not in self._known:
                self._put(column, value)

    def _define_new(self, columns: Sequence[PlanNode], node: PlanNode, of: Iterable[str]) -> None:
        """Columns that an operator makes in a way that a plan does not tell."""
        source = (node.kind, *of)
        for position, column in enumerate(columns):
            exact = digest(*source, position, column.name, type_of(column))
            self._put(column, Column(column.name, exact, type_of(column)))

    def _put(self, column: PlanNode, value: Column) -> None:
        if column.id is not None:
            kind = value.type or type_of(column)
            self._known[column.id] = Column(value.shown, value.exact, kind)

    def _exact(self, node: PlanNode) -> str:
        if node.kind == "AttributeReference":
            return (
                self[node.id].exact if node.id in self._known and node.id is not None else digest(node.name)
            )
        if node.kind == "Alias":
            return self._exact(node.children[0])
        return digest(node.kind, self._fields(node), self._trees(node), [*map(self._exact, node.children)])

    def _fields(self, node: PlanNode) -> dict[str, Any]:
        return {name: _scrubbed(value) for name, value in node.fields.items() if _is_own(name, node)}

    def _trees(self, node: PlanNode) -> dict[str, list[str]]:
        return {name: [*map(self._exact, trees)] for name, trees in node.trees.items()}

    def _shown(self, node: PlanNode) -> str:
        children = node.children
        match node.kind:
            case "AttributeReference":
                known = node.id is not None and node.id in self._known
                return self[node.id].shown if known and node.id is not None else node.name
            case "Literal":
                return _literal(node)
            case "Cast":
                return f"cast({self._shown(children[0])} as {type_of(node)})"
            case "GetStructField":
                return f"{self._shown(children[0])}.{node.name or node.fields.get('ordinal')}"
            case "CreateNamedStruct" if (window := self._window(node)) is not None:
                return window
            case "PythonUDF":
                return f"{node.name}({', '.join(map(self._shown, children))})"
            case kind if kind in _UNSEEN and children:
                return self._shown(children[0])
            case kind if kind in _INFIX and len(children) == 2:
                left, right = map(self._shown, children)
                return f"{left} {_INFIX[kind]} {right}".replace("+ -", "- ")
        return f"{function_name(node.kind)}({', '.join(map(self._shown, children))})"

    def _window(self, node: PlanNode) -> str | None:
        """A window as a user writes it, of the struct that Spark spells it out to."""
        parts = node.children
        if len(parts) != 4 or [p.fields.get("value") for p in (parts[0], parts[2])] != ["start", "end"]:
            return None
        end = parts[3]
        while end.kind in _UNSEEN and end.children:
            end = end.children[0]
        time = next((self._shown(p) for p in end.walk() if p.kind == "AttributeReference"), "")
        if end.kind == "TimestampAddInterval":
            return f"session_window({time}, {_literal(end.children[1])})"
        length_us = interval_us(end.children[1]) if end.kind == "Add" else None
        slides = [interval_us(part.children[1]) for part in end.walk() if part.kind == "Remainder"]
        if length_us is None or not slides or slides[0] is None:
            return None
        slide = "" if slides[0] == length_us else f", every {duration_text(slides[0])}"
        return f"window({time}, {duration_text(length_us)}{slide})"


def digest(*parts: Any) -> str:
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=8).hexdigest()


def _is_own(name: str, node: PlanNode) -> bool:
    # Spark names a struct's field at times, and always counts it.
    by_number = node.kind == "GetStructField" and name == "name"
    return name not in _ACCIDENTS and name not in node.trees and not by_number


def _scrubbed(value: Any) -> Any:
    """A field's value, without accidents deeper inside. The metadata of a nested type are some, too."""
    if isinstance(value, dict):
        return {name: _scrubbed(inner) for name, inner in value.items() if name not in _ACCIDENTS}
    return [_scrubbed(inner) for inner in value] if isinstance(value, list) else value


def type_of(node: PlanNode) -> str:
    """The data type in a word, or as JSON where it is nested; empty where a plan does not tell it."""
    kind = node.fields.get("dataType", "")
    return kind if isinstance(kind, str) else json.dumps(_scrubbed(kind), sort_keys=True)


def shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 4]} ..."


def _literal(node: PlanNode) -> str:
    text = str(node.fields.get("value"))
    if (
        "interval" in type_of(node)
        and (time_us := interval_us(node)) is not None
        and text.lstrip("-").isdigit()
    ):
        return duration_text(time_us) if time_us >= 0 else f"-{duration_text(-time_us)}"
    return repr(text) if type_of(node) == "string" else text
