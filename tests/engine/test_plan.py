"""Names that SQL's WITH has given are replaced by what they name."""

from __future__ import annotations

from typing import Any

from understudy.engine.plan import PlanNode, inlined


def node(kind: str, *children: PlanNode, **fields: Any) -> PlanNode:
    return PlanNode(kind, fields, children, {})


def shape(plan: PlanNode) -> Any:
    return [plan.kind, *map(shape, plan.children)] if plan.children else plan.kind


def use(number: int) -> PlanNode:
    return node("CTERelationRef", cteId=number)


def test_every_use_of_a_name_stands_above_what_it_names() -> None:
    plan = node(
        "WithCTE",
        node("CTERelationDef", node("Filter", node("Streaming")), id=1),
        node("CTERelationDef", node("Sort", use(1)), id=2),
        node("CTERelationDef", node("Range"), id=3),
        node("Join", use(1), node("Project", use(2))),
    )
    few = ["CTERelationRef", ["Filter", "Streaming"]]
    assert shape(inlined(plan)) == ["Join", few, ["Project", ["CTERelationRef", ["Sort", few]]]]


def test_a_name_given_inside_a_plan_is_known_there() -> None:
    inner = node("WithCTE", node("CTERelationDef", node("Streaming"), id=7), node("Filter", use(7)))
    assert shape(inlined(node("Union", inner, node("Range")))) == [
        "Union",
        ["Filter", ["CTERelationRef", "Streaming"]],
        "Range",
    ]
