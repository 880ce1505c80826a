"""Spark's analysed plan as plain data.

Spark can write a plan as JSON: each tree is a flat list in preorder, and expressions hang in the fields of
plan nodes in the same form. One call brings the whole plan over, and what is learnt from it is then
ordinary Python that needs no JVM (see `facts` and `determinism`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class PlanNode:
    """A plan node or an expression. `kind` is its class's simple name, `trees` are those in its fields."""

    kind: str
    fields: dict[str, Any] = field(repr=False)
    children: tuple[PlanNode, ...]
    trees: dict[str, tuple[PlanNode, ...]] = field(repr=False)

    @property
    def id(self) -> int | None:
        """The expression id of an attribute or alias: what identifies a column across a plan."""
        value = self.fields.get("exprId")
        return value["id"] if isinstance(value, dict) else None

    @property
    def name(self) -> str:
        return str(self.fields.get("name", ""))

    @property
    def type(self) -> str:
        """The data type, as far as the plan tells it in a word; empty for nested types."""
        value = self.fields.get("dataType")
        return value if isinstance(value, str) else ""

    def tree(self, name: str) -> tuple[PlanNode, ...]:
        return self.trees.get(name, ())

    def expressions(self) -> Iterator[PlanNode]:
        """All expressions in this node's fields, root first. Not those of child plan nodes."""
        for trees in self.trees.values():
            for tree in trees:
                yield from tree.walk()

    def find(self, kind: str) -> PlanNode:
        """The first node of a kind; there must be one."""
        return next(node for node in self.walk() if node.kind == kind)

    def walk(self) -> Iterator[PlanNode]:
        """This node and all below it, along children."""
        yield self
        for child in self.children:
            yield from child.walk()


def ids_of(nodes: Iterable[PlanNode]) -> tuple[int, ...]:
    """The expression ids of those that have one, in order."""
    return tuple(node.id for node in nodes if node.id is not None)


def inlined(plan: PlanNode) -> PlanNode:
    """The plan with every use of a name that SQL's WITH has given above a copy of what it names.

    A use is a "CTERelationRef" with that one child. Its own columns, in its "output", are those of the child
    by position, under new numbers. Definitions are gone, and so are those that nothing uses.
    """
    return _inlined(plan, {})


def _inlined(node: PlanNode, named: dict[int, PlanNode]) -> PlanNode:
    children = tuple(_inlined(child, named) for child in node.children)
    match node.kind:
        case "CTERelationDef":
            named[node.fields["id"]] = children[0]
            return children[0]
        case "WithCTE":
            return children[-1]
        case "CTERelationRef":
            children = (named[node.fields["cteId"]],)
    return replace(node, children=children)


def parse_plan(text: str) -> PlanNode:
    """The plan that Spark's `toJSON` wrote."""
    return _tree(json.loads(text))


def _tree(flat: list[dict[str, Any]]) -> PlanNode:
    node, rest = _take(flat, 0)
    if rest != len(flat):
        raise ValueError(f"a plan of {len(flat)} nodes ended after {rest}")
    return node


def _take(flat: list[dict[str, Any]], at: int) -> tuple[PlanNode, int]:
    raw = flat[at]
    at += 1
    children = []
    for _ in range(raw["num-children"]):
        child, at = _take(flat, at)
        children.append(child)
    trees = {name: found for name, value in raw.items() if (found := tuple(_trees_in(value)))}
    return PlanNode(raw["class"].rpartition(".")[2].rstrip("$"), raw, tuple(children), trees), at


def _trees_in(value: Any) -> Iterator[PlanNode]:
    if not isinstance(value, list) or not value:
        return
    if isinstance(value[0], dict):
        if "class" in value[0] and "num-children" in value[0]:
            yield _tree(value)
    else:
        for part in value:
            yield from _trees_in(part)
